//! A program that predicts and its parameters, in one file.
//! - SAVED-1: a loaded program gives the same bits as the saved one.
//! - SAVED-2: a file that is damaged or not ours is an error, and nothing is allocated for a length before that many bytes
//!   were seen to be there.
//!
//! The file: its envelope, with a head (program, what it takes and gives, names and types of values) and the values in the
//! order of the head, little-endian. The state of a training is in separate files, [`values`].

mod envelope;
mod values;

pub use values::{Unfit, Values, load_values, save_values};

use crate::{
    exec::{RunError, Store, Tensor},
    ir::{GraphError, Program, Sig, VarId, VarKind},
};
use envelope::{Kind, end, open, seal, value};
use serde::{Deserialize, Serialize};

const KIND: Kind = Kind { magic: *b"PHXGRAPH", version: 2 };

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SavedError {
    #[error("`{var}` is a result, but the program does not compute it")]
    UnknownFetch { var: String },
    #[error("`{var}` is needed for the results, but is not among the feeds")]
    Needed { var: String },
    #[error("`{var}` is a feed, but no result needs it; leave it out")]
    NotNeeded { var: String },
    #[error("`{var}` is not in the store, or was never set; run or prepare the program on it first")]
    NotStored { var: String },
    #[error(
        "`{var}` is not in this process: process {process} owns it (Reduce across processes); call `gather` of the \
         executor in all processes first"
    )]
    KeptElsewhere { var: String, process: usize },
    #[error("`{var}` is on servers while it is trained; save it when the training is closed")]
    OnServers { var: String },
    #[error(
        "{title} is a function from outside, which cannot be written down; save results that do not need it"
    )]
    Function { title: String },
    #[error("not a file of this kind: its first bytes are different")]
    Foreign,
    #[error("the file has version {got}, this reads {wanted}; save it again")]
    Version { wanted: u32, got: u32 },
    #[error("the file is damaged: {what}, wants {wanted}, got {got}")]
    Damaged { what: &'static str, wanted: u64, got: u64 },
    #[error("the file is damaged: {0}")]
    Head(String),
    #[error("the file has `{var}` as {got}, its program wants {wanted}")]
    Misfit { var: String, wanted: String, got: String },
    #[error("the file does not fit the program: {}", listed(faults))]
    Unfit { faults: Vec<Unfit> },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn listed(faults: &[Unfit]) -> String {
    faults.iter().map(Unfit::to_string).collect::<Vec<_>>().join("; ")
}

#[derive(Serialize, Deserialize)]
struct Head {
    program: Program,
    feeds: Vec<String>,
    fetches: Vec<String>,
    values: Vec<(String, Sig)>,
    notes: String,
}

/// A program that was loaded.
#[derive(Clone, Debug)]
pub struct Saved {
    pub program: Program,
    /// What is fed, in the order that was asked for.
    pub feeds: Vec<String>,
    /// What was named when it was saved.
    pub fetches: Vec<String>,
    /// What the saving program has written beside it; nothing here reads it.
    pub notes: String,
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
    let feeds = fed(&program).map(str::to_string).collect();
    written(program, store, feeds, fetches, "")
}

/// The same, if exactly these variables must be fed for it; a program that loads it gets them in this order, and the
/// notes.
pub fn save_as(
    program: &Program,
    store: &mut Store,
    feeds: &[&str],
    fetches: &[&str],
    notes: &str,
) -> Result<Vec<u8>, SavedError> {
    let program = pruned(&program.clone_for_test(), fetches)?;
    check_feeds(&program, feeds)?;
    written(program, store, feeds.iter().map(|f| f.to_string()).collect(), fetches, notes)
}

/// What must be fed.
fn fed(program: &Program) -> impl Iterator<Item = &str> {
    program.vars().filter(|(_, v)| v.kind == VarKind::Feed).map(|(_, v)| v.name.as_str())
}

fn check_feeds(program: &Program, feeds: &[&str]) -> Result<(), SavedError> {
    if let Some(var) = fed(program).find(|name| !feeds.contains(name)) {
        return Err(SavedError::Needed { var: var.to_string() });
    }
    let is_twice = |i: usize, name: &str| feeds[..i].contains(&name);
    let odd =
        feeds.iter().enumerate().find(|&(i, name)| is_twice(i, name) || fed(program).all(|f| f != *name));
    odd.map_or(Ok(()), |(_, var)| Err(SavedError::NotNeeded { var: var.to_string() }))
}

fn written(
    program: Program,
    store: &mut Store,
    feeds: Vec<String>,
    fetches: &[&str],
    notes: &str,
) -> Result<Vec<u8>, SavedError> {
    if let Some(title) = program.foreign() {
        return Err(SavedError::Function { title: title.to_string() });
    }
    let (mut values, mut body) = (Vec::new(), Vec::new());
    for (_, var) in program.vars().filter(|(_, v)| v.is_persistable()) {
        let value = stored(store, &var.name)?;
        if value.dtype() != var.sig.dtype || value.dims() != var.sig.shape.at(0) {
            let got = format!("{}{:?}", value.dtype(), value.dims());
            return Err(SavedError::Misfit { var: var.name.clone(), wanted: var.sig.to_string(), got });
        }
        values.push((var.name.clone(), var.sig.clone()));
        body.extend_from_slice(&value.to_le_bytes());
    }
    let fetches = fetches.iter().map(|f| f.to_string()).collect();
    seal(KIND, &Head { program, feeds, fetches, values, notes: notes.to_string() }, &body)
}

pub fn load(bytes: &[u8]) -> Result<Saved, SavedError> {
    let (head, body): (Head, _) = open(KIND, bytes)?;
    let feeds: Vec<&str> = head.feeds.iter().map(String::as_str).collect();
    check_feeds(&head.program, &feeds)?;
    let values = values(&head, body)?;
    let Head { program, feeds, fetches, notes, .. } = head;
    Ok(Saved { program, feeds, fetches, notes, values })
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
        values.push((name.clone(), value(&mut body, name, sig.dtype, &sig.shape.at(0))?));
    }
    end(body)?;
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

/// A value, or why it is not here.
fn stored(store: &mut Store, var: &str) -> Result<Tensor, SavedError> {
    if let Some(process) = store.kept_by(var) {
        return Err(SavedError::KeptElsewhere { var: var.to_string(), process });
    }
    if store.is_served(var) && store.bytes_of(var) == 0 {
        return Err(SavedError::OnServers { var: var.to_string() });
    }
    store.get(var).ok_or_else(|| SavedError::NotStored { var: var.to_string() })
}
