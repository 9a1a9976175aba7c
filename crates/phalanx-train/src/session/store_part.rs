//! The values of a static program, as checkpoints see them.

use phalanx_checkpoint::{Part, PartError, TensorInfo};
use phalanx_graph::{Program, Store};
use std::cell::RefCell;

/// The parameters and states of one program in a store. Of a variable that each replica has for itself, the mean is saved (STORE-2).
#[derive(Debug)]
pub struct StorePart<'a> {
    tensors: Vec<TensorInfo>,
    /// Reading merges what replicas have apart; a checkpoint reads on one thread.
    store: RefCell<&'a mut Store>,
}

impl<'a> StorePart<'a> {
    /// The store must have room for the program's variables ([`Store::admit`]).
    pub fn new(program: &Program, store: &'a mut Store) -> StorePart<'a> {
        let stored = program.vars().filter(|(_, var)| var.is_persistable());
        let info = |name: &str, dtype, dims: Vec<usize>| TensorInfo::new(name, dtype, dims);
        let tensors = stored.map(|(_, var)| info(&var.name, var.sig.dtype, var.sig.shape.at(0))).collect();
        StorePart { tensors, store: RefCell::new(store) }
    }
}

impl Part for StorePart<'_> {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.tensors.clone()
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError> {
        let at = usize::try_from(offset)?;
        self.store.borrow_mut().read_at(name, at, out).map_err(PartError::from)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), PartError> {
        let at = usize::try_from(offset)?;
        self.store.get_mut().write_at(name, at, bytes).map_err(PartError::from)
    }
}
