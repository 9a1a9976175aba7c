//! What lives from run to run: parameters and states, by name.

use super::{error::RunError, tensor::Tensor};
use crate::{
    ir::{Init, Program, Sig, Var, VarKind},
    kernel::{Arena, Stream},
};
use phalanx_core::DType;
use std::collections::BTreeMap;

/// Parameters and states by name. Programs that name the same variable share it: a test program sees what training
/// left at the end of its last run.
#[derive(Debug)]
pub struct Store {
    pub(super) buffers: Vec<Arena>,
    entries: Vec<Entry>,
    names: BTreeMap<String, usize>,
    pub(super) seed: u64,
    /// Runs so far.
    pub(super) runs: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    sig: Sig,
    is_set: bool,
}

impl Store {
    /// Everything random in it and in the runs on it comes from the seed.
    pub fn new(seed: u64) -> Store {
        Store { buffers: Vec::new(), entries: Vec::new(), names: BTreeMap::new(), seed, runs: 0 }
    }

    /// Names and what is stored under them, in the order of names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub fn get(&mut self, name: &str) -> Option<Tensor> {
        let &at = self.names.get(name)?;
        let sig = &self.entries[at].sig;
        let mut tensor = Tensor::zeros(sig.dtype, &sig.shape.at(0));
        tensor.bytes_mut().copy_from_slice(self.buffers[at].as_slice());
        Some(tensor)
    }

    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        let Some(&at) = self.names.get(name) else {
            return Err(RunError::UnknownState { var: name.to_string() });
        };
        let wanted = &self.entries[at].sig;
        if wanted.dtype != value.dtype() || wanted.shape.at(0) != value.dims() {
            let (wanted, got) = (Box::new(wanted.clone()), Box::new(Sig::dense(value.dtype(), value.dims())));
            return Err(RunError::StateMisfit { var: name.to_string(), wanted, got });
        }
        self.buffers[at].as_slice::<u8>().copy_from_slice(value.bytes());
        self.entries[at].is_set = true;
        Ok(())
    }

    /// Makes room for the program's variables that are not there yet, and gives them their first values.
    pub(super) fn admit(&mut self, program: &Program) -> Result<(), RunError> {
        for (_, var) in program.vars().filter(|(_, v)| v.is_persistable()) {
            match self.names.get(&var.name) {
                Some(&at) if self.entries[at].sig != var.sig => {
                    let (wanted, got) = (Box::new(self.entries[at].sig.clone()), Box::new(var.sig.clone()));
                    return Err(RunError::StateMisfit { var: var.name.clone(), wanted, got });
                }
                Some(_) => {}
                None => self.insert(var),
            }
        }
        Ok(())
    }

    fn insert(&mut self, var: &Var) {
        let (VarKind::State(init) | VarKind::Parameter(crate::ir::Learn { init, .. })) = var.kind else {
            return;
        };
        let mut buffer = Arena::new(var.sig.bytes(0));
        self.begin(&var.name, &var.sig, init, &mut buffer);
        self.names.insert(var.name.clone(), self.buffers.len());
        self.entries.push(Entry { sig: var.sig.clone(), is_set: init != Init::Given });
        self.buffers.push(buffer);
    }

    fn begin(&self, name: &str, sig: &Sig, init: Init, buffer: &mut Arena) {
        let dims = sig.shape.at(0);
        // By name, so that the order of declarations does not matter.
        let key = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let stream = Stream::new(self.seed, key, 0);
        let (fan_in, fan_out) = fans(&dims);
        let value = |i: usize| match init {
            Init::Given => 0.0,
            Init::Constant(value) => value,
            Init::Uniform { low, high } => low + (high - low) * stream.uniform(i as u64),
            Init::Normal { mean, std } => mean + std * stream.normal(i as u64),
            Init::Xavier => {
                let limit = libm::sqrt(6.0 / (fan_in + fan_out).max(1) as f64);
                limit * (2.0 * stream.uniform(i as u64) - 1.0)
            }
            Init::Msra => libm::sqrt(2.0 / fan_in.max(1) as f64) * stream.normal(i as u64),
        };
        match sig.dtype {
            DType::F32 => fill(buffer.as_slice::<f32>(), |i| value(i) as f32),
            DType::F64 => fill(buffer.as_slice::<f64>(), value),
            DType::I64 => fill(buffer.as_slice::<i64>(), |i| value(i) as i64),
            _ => fill(buffer.as_slice::<u8>(), |_| 0),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn is_set(&self, at: usize) -> bool {
        self.entries[at].is_set
    }
}

fn fill<T>(out: &mut [T], f: impl Fn(usize) -> T) {
    out.iter_mut().enumerate().for_each(|(i, v)| *v = f(i));
}

/// How many numbers go into and come out of each element's neighbours: `[in, out]`, or filters `[out, in, h, w]`.
fn fans(dims: &[usize]) -> (usize, usize) {
    match dims {
        [] => (1, 1),
        [n] => (*n, *n),
        [rows, cols] => (*rows, *cols),
        [o, i, rest @ ..] => (i * rest.iter().product::<usize>(), o * rest.iter().product::<usize>()),
    }
}
