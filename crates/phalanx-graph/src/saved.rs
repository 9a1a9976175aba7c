//! A program that predicts and what it has learned, in one file.
//! - SAVED-1: what is loaded gives the same bits as what was saved.
//! - SAVED-2: a file that is damaged or not ours is an error, and nothing is allocated for a length before that many bytes
//!   were seen to be there.
//!
//! The file: eight letters, the version, the length of the head, a checksum of all that follows; the head (program, what
//! it gives, names and types of values); the values in the order of the head, little-endian.

use crate::{
    exec::{RunError, Store, Tensor},
    ir::{GraphError, Program, Sig, VarId, VarKind},
};
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 8] = *b"PHXGRAPH";
const VERSION: u32 = 1;
/// Letters, version, length of the head, checksum.
const PREFIX: usize = 8 + 4 + 8 + 8;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SavedError {
    #[error("`{var}` shall be given, but the program does not compute it")]
    UnknownFetch { var: String },
    #[error("`{var}` is not in the store, or was never set; run or prepare the program on it first")]
    NotStored { var: String },
    #[error("not a saved program: it begins with other letters")]
    Foreign,
    #[error("the file has version {got}, this reads {wanted}; save the program again")]
    Version { wanted: u32, got: u32 },
    #[error("the file is damaged: {what}, wants {wanted}, got {got}")]
    Damaged { what: &'static str, wanted: u64, got: u64 },
    #[error("the file is damaged: {0}")]
    Head(String),
    #[error("the file has `{var}` as {got}, its program wants {wanted}")]
    Misfit { var: String, wanted: String, got: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

#[derive(Serialize, Deserialize)]
struct Head {
    program: Program,
    fetches: Vec<String>,
    values: Vec<(String, Sig)>,
}

/// A program that was loaded.
#[derive(Clone, Debug)]
pub struct Saved {
    pub program: Program,
    /// What is fed.
    pub feeds: Vec<String>,
    /// What was named when it was saved.
    pub fetches: Vec<String>,
    values: Vec<(String, Tensor)>,
}

impl Saved {
    /// Puts what was learned into a store that an executor of the program has prepared.
    pub fn give(&self, store: &mut Store) -> Result<(), RunError> {
        self.values.iter().try_for_each(|(name, value)| store.set(name, value))
    }
}

/// The part of a program's test program that computes these variables, with its parameters and states.
pub fn save(program: &Program, store: &mut Store, fetches: &[&str]) -> Result<Vec<u8>, SavedError> {
    let program = pruned(&program.clone_for_test(), fetches)?;
    let (mut values, mut body) = (Vec::new(), Vec::new());
    for (_, var) in program.vars().filter(|(_, v)| v.is_persistable()) {
        let value = store.get(&var.name).ok_or_else(|| SavedError::NotStored { var: var.name.clone() })?;
        if value.dtype() != var.sig.dtype || value.dims() != var.sig.shape.at(0) {
            let got = format!("{}{:?}", value.dtype(), value.dims());
            return Err(SavedError::Misfit { var: var.name.clone(), wanted: var.sig.to_string(), got });
        }
        values.push((var.name.clone(), var.sig.clone()));
        body.extend_from_slice(&value.to_le_bytes());
    }
    let fetches = fetches.iter().map(|f| f.to_string()).collect();
    let head = Head { program, fetches, values };
    let head = postcard::to_allocvec(&head).map_err(|e| SavedError::Head(e.to_string()))?;
    let mut file = Vec::with_capacity(PREFIX + head.len() + body.len());
    file.extend(MAGIC);
    file.extend(VERSION.to_le_bytes());
    file.extend((head.len() as u64).to_le_bytes());
    file.extend([0; 8]);
    file.extend(head);
    file.extend(body);
    let sum = checksum(&file[PREFIX..]).to_le_bytes();
    file[PREFIX - 8..PREFIX].copy_from_slice(&sum);
    Ok(file)
}

pub fn load(bytes: &[u8]) -> Result<Saved, SavedError> {
    let Some((prefix, rest)) = bytes.split_at_checked(PREFIX) else {
        let (wanted, got) = (PREFIX as u64, bytes.len() as u64);
        return Err(SavedError::Damaged { what: "length", wanted, got });
    };
    if prefix[..8] != MAGIC {
        return Err(SavedError::Foreign);
    }
    let number =
        |at: usize| u64::from_le_bytes(prefix[at..at + 8].try_into().expect("the prefix is long enough"));
    let version = number(8) as u32;
    if version != VERSION {
        return Err(SavedError::Version { wanted: VERSION, got: version });
    }
    let (wanted, got) = (number(20), checksum(rest));
    if wanted != got {
        return Err(SavedError::Damaged { what: "checksum", wanted, got });
    }
    let n_head = number(12);
    let split = usize::try_from(n_head).ok().and_then(|n| rest.split_at_checked(n));
    let Some((head, body)) = split else {
        return Err(SavedError::Damaged {
            what: "length of the head",
            wanted: n_head,
            got: rest.len() as u64,
        });
    };
    let head: Head = postcard::from_bytes(head).map_err(|e| SavedError::Head(e.to_string()))?;
    let values = values(&head, body)?;
    let feeds = head.program.vars().filter(|(_, v)| v.kind == VarKind::Feed).map(|(_, v)| v.name.clone());
    Ok(Saved { feeds: feeds.collect(), program: head.program.clone(), fetches: head.fetches, values })
}

/// The values, each as the program wants it, and none missing.
fn values(head: &Head, mut body: &[u8]) -> Result<Vec<(String, Tensor)>, SavedError> {
    let mut values = Vec::new();
    for (name, sig) in &head.values {
        let var = head.program.find(name).map(|id| head.program.var(id)).filter(|v| v.is_persistable());
        let wanted = var.map_or("nothing".into(), |v| v.sig.to_string());
        if var.is_none_or(|v| v.sig != *sig) {
            return Err(SavedError::Misfit { var: name.clone(), wanted, got: sig.to_string() });
        }
        let n = sig.bytes(0);
        let Some((value, rest)) = body.split_at_checked(n) else {
            let (wanted, got) = (n as u64, body.len() as u64);
            return Err(SavedError::Damaged { what: "length of the values", wanted, got });
        };
        let value = Tensor::from_le_bytes(sig.dtype, &sig.shape.at(0), value)
            .map_err(|e| SavedError::Misfit { var: name.clone(), wanted, got: e.to_string() })?;
        values.push((name.clone(), value));
        body = rest;
    }
    if !body.is_empty() {
        return Err(SavedError::Damaged {
            what: "bytes after the values",
            wanted: 0,
            got: body.len() as u64,
        });
    }
    for (_, var) in head.program.vars().filter(|(_, v)| v.is_persistable()) {
        if !head.values.iter().any(|(name, _)| *name == var.name) {
            return Err(SavedError::NotStored { var: var.name.clone() });
        }
    }
    Ok(values)
}

/// Only what these variables depend on.
fn pruned(program: &Program, fetches: &[&str]) -> Result<Program, SavedError> {
    let mut wanted = vec![false; program.vars().count()];
    for name in fetches {
        let id = program.find(name).ok_or_else(|| SavedError::UnknownFetch { var: name.to_string() })?;
        wanted[id.index()] = true;
    }
    let ops: Vec<_> = program.ops().map(|(_, op)| op).collect();
    let mut kept = Vec::new();
    for op in ops.into_iter().rev() {
        if op.outputs.iter().any(|o| wanted[o.index()]) {
            op.inputs.iter().chain(&op.outputs).for_each(|i| wanted[i.index()] = true);
            kept.push(op);
        }
    }
    let mut new = Program::new();
    let mut place: Vec<Option<VarId>> = vec![None; wanted.len()];
    for (id, var) in program.vars().filter(|(id, _)| wanted[id.index()]) {
        place[id.index()] =
            Some(new.declare(&var.name, var.sig.clone(), var.kind.clone(), var.site.clone())?);
    }
    let at = |ids: &[VarId]| -> Vec<VarId> { ids.iter().filter_map(|i| place[i.index()]).collect() };
    for op in kept.into_iter().rev() {
        new.append_to(op.kind.clone(), &at(&op.inputs), &at(&op.outputs), op.role, op.site.clone())?;
    }
    new.n_streams = program.n_streams;
    new.verify()?;
    Ok(new)
}

/// Notices damage, not malice (FNV-1a).
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}
