//! The state of a training in a file, from which training can continue.
//! - VALUES-1: training that continues from a file has the same bits as training that was not interrupted: the run that
//!   random numbers come from is in the file too.
//! - VALUES-2: a file that does not fit changes nothing, and all that does not fit is named at once.
//!
//! Of a variable that each replica has for itself the mean is saved, as the store shows it (STORE-2).

use super::{
    SavedError,
    envelope::{Kind, end, open, seal, value},
};
use crate::exec::{RunError, Store, Tensor};
use crate::ir::{Program, Var};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

const KIND: Kind = Kind { magic: *b"PHXVALUE", version: 1 };

#[derive(Serialize, Deserialize)]
struct Head {
    seed: u64,
    runs: u64,
    /// Names, codes of types, dimensions.
    values: Vec<(String, u8, Vec<u64>)>,
}

/// Values that were loaded.
#[derive(Clone, Debug)]
pub struct Values {
    seed: u64,
    runs: u64,
    values: Vec<(String, Tensor)>,
}

/// A variable that a file does not have, or not as it is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfit {
    pub var: String,
    pub wanted: String,
    pub got: Option<String>,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let got = self.got.as_deref().unwrap_or("nothing");
        write!(f, "`{}` wants {}, the file has {got}", self.var, self.wanted)
    }
}

fn form(value: &Tensor) -> String {
    format!("{}{:?}", value.dtype(), value.dims())
}

/// The values of these variables of a program.
pub fn save_values(
    program: &Program,
    store: &mut Store,
    which: impl Fn(&Var) -> bool,
) -> Result<Vec<u8>, SavedError> {
    let (mut values, mut body) = (Vec::new(), Vec::new());
    for (_, var) in program.vars().filter(|(_, v)| v.is_persistable() && which(v)) {
        let value = super::stored(store, &var.name)?;
        if value.dtype() != var.sig.dtype || value.dims() != var.sig.shape.at(0) {
            let (wanted, got) = (var.sig.to_string(), form(&value));
            return Err(SavedError::Misfit { var: var.name.clone(), wanted, got });
        }
        let dims = value.dims().iter().map(|&d| d as u64).collect();
        values.push((var.name.clone(), value.dtype() as u8, dims));
        body.extend_from_slice(&value.to_le_bytes());
    }
    let (seed, runs) = store.randomness();
    seal(KIND, &Head { seed, runs, values }, &body)
}

pub fn load_values(bytes: &[u8]) -> Result<Values, SavedError> {
    let (head, mut body): (Head, _) = open(KIND, bytes)?;
    let mut values = Vec::new();
    for (name, code, dims) in head.values {
        let dtype = DType::from_code(code).ok_or_else(|| SavedError::Head(format!("element type {code}")))?;
        let dims: Result<Vec<usize>, _> = dims.iter().map(|&d| usize::try_from(d)).collect();
        let dims = dims.map_err(|e| SavedError::Head(e.to_string()))?;
        let value = value(&mut body, &name, dtype, &dims)?;
        values.push((name, value));
    }
    end(body)?;
    values.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(twice) = values.windows(2).find(|two| two[0].0 == two[1].0) {
        return Err(SavedError::Head(format!("it has `{}` twice", twice[0].0)));
    }
    Ok(Values { seed: head.seed, runs: head.runs, values })
}

impl Values {
    fn find(&self, name: &str) -> Option<&Tensor> {
        let at = self.values.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        Some(&self.values[at].1)
    }

    /// Whether the file has these variables as the program wants them. It may have others.
    pub fn fits(&self, program: &Program, which: impl Fn(&Var) -> bool) -> Result<(), SavedError> {
        let mut faults = Vec::new();
        for (_, var) in program.vars().filter(|(_, v)| v.is_persistable() && which(v)) {
            let found = self.find(&var.name);
            let is_like =
                |value: &Tensor| value.dtype() == var.sig.dtype && value.dims() == var.sig.shape.at(0);
            if !found.is_some_and(is_like) {
                let (wanted, got) = (var.sig.to_string(), found.map(form));
                faults.push(Unfit { var: var.name.clone(), wanted, got });
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(SavedError::Unfit { faults }) }
    }

    /// Puts these variables into a store that has room for them.
    pub fn give(
        &self,
        program: &Program,
        store: &mut Store,
        which: impl Fn(&Var) -> bool,
    ) -> Result<(), RunError> {
        for (_, var) in program.vars().filter(|(_, v)| v.is_persistable() && which(v)) {
            if let Some(value) = self.find(&var.name) {
                store.set(&var.name, value)?;
            }
        }
        Ok(())
    }

    /// The next run on the store has the random numbers of the one that would have come next.
    pub fn go_on(&self, store: &mut Store) {
        store.set_randomness(self.seed, self.runs);
    }
}
