//! The store: parameters and states by name, kept between runs.
//! - STORE-1: a variable that several replicas write has a buffer for each; a caller that reads it sees one value.
//! - STORE-2: where the buffers may differ (statistics, parameters that are not reduced) that value is their mean.
//! - STORE-3: what another process keeps takes no memory here, and is not read as if it were here.
//! - STORE-4: what servers train is not set from outside; where they alone have it, it takes no memory and is not read.

mod renew;

use super::{
    error::RunError,
    first::{begin, fill},
    tensor::Tensor,
};
use crate::{
    ir::{Init, Program, Sig, Var, VarId, VarKind},
    kernel::RawMemory,
};
use phalanx_core::DType;
use std::{collections::BTreeMap, sync::Arc};

/// Parameters and states by name. Programs that name the same variable share it: a test program sees what training
/// left at the end of its last run.
#[derive(Debug)]
pub struct Store {
    /// Behind an `Arc`, because workers hold it as long as a run lasts; between runs nobody else does.
    buffers: Arc<Vec<RawMemory>>,
    entries: Vec<Entry>,
    names: BTreeMap<String, usize>,
    /// Buffers that no entry has any more.
    free: Vec<usize>,
    pub(in crate::exec) seed: u64,
    /// Runs so far.
    pub(in crate::exec) runs: u64,
    /// Grows whenever a variable moves to other buffers: plans that named the old ones are void.
    moves: u64,
    /// Counts writes from outside: by [`Store::set`], and by runs of this process on its own.
    writes: u64,
    /// The last write by such a run.
    ran_alone: u64,
    /// Tells stores from each other.
    token: Arc<()>,
}

#[derive(Clone, Debug)]
struct Entry {
    sig: Sig,
    is_set: bool,
    /// Its buffers, one for each replica that writes its own.
    copies: Vec<usize>,
    /// Whether the copies go different ways. Then its value is their mean.
    apart: bool,
    /// Where that mean is put for those who only read.
    merged: Option<usize>,
    /// The last write by [`Store::set`].
    written: u64,
    /// The process that has the value, if this one has given its memory back.
    kept_by: Option<usize>,
    home: Home,
}

/// Who has the value of a variable that may be on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// This store, or another process.
    Here,
    /// Servers; here is a copy that runs keep up to date.
    Copied,
    /// Servers alone.
    Away,
}

impl Store {
    /// Everything random in it and in the runs on it comes from the seed.
    pub fn new(seed: u64) -> Store {
        Store {
            buffers: Arc::new(Vec::new()),
            entries: Vec::new(),
            names: BTreeMap::new(),
            free: Vec::new(),
            seed,
            runs: 0,
            moves: 0,
            writes: 0,
            ran_alone: 0,
            token: Arc::new(()),
        }
    }

    /// Where everything random comes from: the seed, and the runs so far.
    pub fn randomness(&self) -> (u64, u64) {
        (self.seed, self.runs)
    }

    pub fn set_randomness(&mut self, seed: u64, runs: u64) {
        (self.seed, self.runs) = (seed, runs);
    }

    /// Names and what is stored under them, in the order of names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The value of a variable: that of all replicas, or their mean where each learns its own (STORE-2). `None` also for what
    /// another process keeps ([`Store::kept_by`]).
    pub fn get(&mut self, name: &str) -> Option<Tensor> {
        let &entry = self.names.get(name)?;
        if self.entries[entry].kept_by.is_some() || self.entries[entry].home == Home::Away {
            return None;
        }
        let at = self.view(entry);
        let sig = &self.entries[entry].sig;
        let mut tensor = Tensor::zeros(sig.dtype, &sig.shape.at(0));
        tensor.bytes_mut().copy_from_slice(self.buffers_mut()[at].as_slice());
        Some(tensor)
    }

    /// The value that one replica has.
    pub fn get_copy(&mut self, name: &str, replica: usize) -> Option<Tensor> {
        let entry = self.names.get(name).map(|&entry| &self.entries[entry]);
        let entry = entry.filter(|entry| entry.kept_by.is_none() && entry.home != Home::Away)?;
        let at = *entry.copies.get(replica).or(entry.copies.first().filter(|_| !entry.apart))?;
        let mut tensor = Tensor::zeros(entry.sig.dtype, &entry.sig.shape.at(0));
        tensor.bytes_mut().copy_from_slice(self.buffers_mut()[at].as_slice());
        Some(tensor)
    }

    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        if self.is_served(name) {
            return Err(RunError::OnServers { var: name.to_string() });
        }
        self.put(name, value)
    }

    /// The same, also for what servers have.
    pub(in crate::exec) fn put(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        let Some(&entry) = self.names.get(name) else {
            return Err(RunError::UnknownState { var: name.to_string() });
        };
        let wanted = &self.entries[entry].sig;
        if wanted.dtype != value.dtype() || wanted.shape.at(0) != value.dims() {
            let (wanted, got) = (Box::new(wanted.clone()), Box::new(Sig::dense(value.dtype(), value.dims())));
            return Err(RunError::StateMisfit { var: name.to_string(), wanted, got });
        }
        self.take_back(entry)?;
        self.fill_all(entry, value.bytes());
        self.writes += 1;
        let entry = &mut self.entries[entry];
        (entry.is_set, entry.written) = (true, self.writes);
        Ok(())
    }

    /// Copies bytes of a variable's value, from `at` on, as many as `out` takes.
    pub fn read_at(&mut self, name: &str, at: usize, out: &mut [u8]) -> Result<(), RunError> {
        let entry = self.known(name)?;
        self.is_here(entry, name)?;
        let from = self.view(entry);
        let bytes = &self.buffers_mut()[from].as_slice::<u8>();
        let part = at.checked_add(out.len()).and_then(|end| bytes.get(at..end));
        out.copy_from_slice(part.ok_or_else(|| RunError::StateRange { var: name.to_string(), at })?);
        Ok(())
    }

    /// Replaces bytes of a variable's value, from `at` on, in all replicas.
    pub fn write_at(&mut self, name: &str, at: usize, bytes: &[u8]) -> Result<(), RunError> {
        let entry = self.known(name)?;
        if self.is_served(name) {
            return Err(RunError::OnServers { var: name.to_string() });
        }
        self.take_back(entry)?;
        let copies = self.entries[entry].copies.clone();
        for copy in copies {
            let all = self.buffers_mut()[copy].as_slice::<u8>();
            let part = at.checked_add(bytes.len()).and_then(|end| all.get_mut(at..end));
            part.ok_or_else(|| RunError::StateRange { var: name.to_string(), at })?.copy_from_slice(bytes);
        }
        self.writes += 1;
        let entry = &mut self.entries[entry];
        (entry.is_set, entry.written) = (true, self.writes);
        Ok(())
    }

    fn known(&self, name: &str) -> Result<usize, RunError> {
        self.find(name).ok_or_else(|| RunError::UnknownState { var: name.to_string() })
    }

    /// The process that has a variable's value, where this one does not: its owner, with Reduce across processes.
    pub fn kept_by(&self, name: &str) -> Option<usize> {
        self.entries[self.find(name)?].kept_by
    }

    /// Bytes of memory that a variable takes here, all its copies together.
    pub fn bytes_of(&self, name: &str) -> usize {
        let entry = self.find(name).map(|entry| &self.entries[entry]);
        let copies = entry.map_or(&[][..], |entry| &entry.copies);
        copies.iter().map(|&at| self.buffers[at].len()).sum()
    }

    /// Whether servers train a variable.
    pub fn is_served(&self, name: &str) -> bool {
        self.find(name).is_some_and(|entry| self.entries[entry].home != Home::Here)
    }

    /// Leaves a variable to servers, which have its value: it cannot be set here any more. Unless a copy stays, its memory is given back.
    pub fn leave_to_servers(&mut self, name: &str, keeps_copy: bool) -> Result<(), RunError> {
        let entry = self.known(name)?;
        self.is_here(entry, name)?;
        if keeps_copy {
            self.entries[entry].home = Home::Copied;
            return Ok(());
        }
        self.give_back(entry);
        self.entries[entry].home = Home::Away;
        Ok(())
    }

    /// What servers have of a variable is here again; they are asked no more, or all of them are told of what is set from now on.
    pub fn take_from_servers(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        let entry = self.known(name)?;
        self.put(name, value)?;
        self.entries[entry].home = Home::Here;
        Ok(())
    }

    fn is_here(&self, entry: usize, name: &str) -> Result<(), RunError> {
        if self.entries[entry].home == Home::Away {
            return Err(RunError::OnServers { var: name.to_string() });
        }
        match self.entries[entry].kept_by {
            Some(process) => Err(RunError::KeptElsewhere { var: name.to_string(), process }),
            None => Ok(()),
        }
    }

    /// Gives the memory of a variable back: from now on this process, another one, has its value.
    pub(in crate::exec) fn leave_to(&mut self, entry: usize, process: usize) {
        self.give_back(entry);
        self.entries[entry].kept_by = Some(process);
    }

    fn give_back(&mut self, entry: usize) {
        let merged = self.entries[entry].merged.take();
        let copies = std::mem::take(&mut self.entries[entry].copies);
        for &at in copies.iter().chain(&merged) {
            self.buffers_mut()[at] = RawMemory::new(0);
        }
        self.free.extend(copies[1..].iter().chain(&merged));
        let has = &mut self.entries[entry];
        (has.copies, has.apart) = (vec![copies[0]], false);
        self.moves += 1;
    }

    /// Makes room again for what another process or servers have kept; it must be filled.
    fn take_back(&mut self, entry: usize) -> Result<(), RunError> {
        if self.entries[entry].kept_by.is_none() && self.entries[entry].home != Home::Away {
            return Ok(());
        }
        let (bytes, at) = (self.entries[entry].sig.bytes(0), self.entries[entry].copies[0]);
        let name = || self.names.iter().find(|(_, at)| **at == entry).map_or("", |(name, _)| name);
        let buffer = memory(name(), bytes)?;
        self.buffers_mut()[at] = buffer;
        self.entries[entry].kept_by = None;
        if self.entries[entry].home == Home::Away {
            self.entries[entry].home = Home::Copied;
        }
        self.moves += 1;
        Ok(())
    }

    /// Puts here what its owner has. Nobody has written it.
    pub(in crate::exec) fn receive(&mut self, entry: usize, value: &Tensor) -> Result<(), RunError> {
        self.take_back(entry)?;
        self.fill_all(entry, value.bytes());
        Ok(())
    }

    pub(in crate::exec) fn keeper(&self, entry: usize) -> Option<usize> {
        self.entries[entry].kept_by
    }

    /// A run that no other process takes part in changes values.
    pub(in crate::exec) fn run_alone(&mut self) {
        self.writes += 1;
        self.ran_alone = self.writes;
    }

    /// Writes from outside so far.
    pub(in crate::exec) fn writes(&self) -> u64 {
        self.writes
    }

    /// Whether a variable may have been written from outside since there were this many writes.
    pub(in crate::exec) fn is_written_since(&self, entry: usize, writes: u64) -> bool {
        self.entries[entry].written.max(self.ran_alone) > writes
    }

    fn fill_all(&mut self, entry: usize, bytes: &[u8]) {
        let copies = std::mem::take(&mut self.entries[entry].copies);
        for &at in &copies {
            self.buffers_mut()[at].as_slice::<u8>().copy_from_slice(bytes);
        }
        self.entries[entry].copies = copies;
    }

    /// Makes room for the program's variables that are not there yet, and gives them their first values.
    pub fn admit(&mut self, program: &Program) -> Result<(), RunError> {
        self.admit_but(program, |_| false)
    }

    /// The same, where other processes may keep some of it.
    pub(in crate::exec) fn admit_but(
        &mut self,
        program: &Program,
        is_elsewhere: impl Fn(VarId) -> bool,
    ) -> Result<(), RunError> {
        for (id, var) in program.vars().filter(|(_, v)| v.is_persistable()) {
            match self.names.get(&var.name) {
                Some(&at) if self.entries[at].sig != var.sig => {
                    let (wanted, got) = (Box::new(self.entries[at].sig.clone()), Box::new(var.sig.clone()));
                    return Err(RunError::StateMisfit { var: var.name.clone(), wanted, got });
                }
                Some(&at) if !is_elsewhere(id) => self.is_here(at, &var.name)?,
                Some(_) => {}
                None => self.insert(var)?,
            }
        }
        Ok(())
    }

    fn insert(&mut self, var: &Var) -> Result<(), RunError> {
        let (VarKind::State(init) | VarKind::Parameter(crate::ir::Learn { init, .. })) = var.kind else {
            return Ok(());
        };
        let mut buffer = memory(&var.name, var.sig.bytes(0))?;
        begin(&var.name, &var.sig, init, self.seed, &mut buffer);
        let at = self.keep(buffer);
        self.names.insert(var.name.clone(), self.entries.len());
        let (sig, is_set) = (var.sig.clone(), init != Init::Given);
        self.entries.push(Entry {
            sig,
            is_set,
            copies: vec![at],
            apart: false,
            merged: None,
            written: 0,
            kept_by: None,
            home: Home::Here,
        });
        Ok(())
    }

    /// Puts a buffer where there is a place for it.
    fn keep(&mut self, buffer: RawMemory) -> usize {
        let buffers = Arc::get_mut(&mut self.buffers).expect(IDLE);
        match self.free.pop() {
            Some(at) => {
                buffers[at] = buffer;
                at
            }
            None => {
                buffers.push(buffer);
                buffers.len() - 1
            }
        }
    }

    /// Gives a variable one buffer for each of the replicas that write it, all with its value. `apart` says that they
    /// will go different ways.
    pub(in crate::exec) fn claim(&mut self, entry: usize, n: usize, apart: bool) -> Result<(), RunError> {
        let has = &self.entries[entry];
        if has.copies.len() == n && has.apart == apart {
            return Ok(());
        }
        let (bytes, missing) = (has.sig.bytes(0), n.saturating_sub(has.copies.len()));
        let name = || self.names.iter().find(|(_, at)| **at == entry).map_or("", |(name, _)| name);
        let added = (0..missing).map(|_| memory(name(), bytes)).collect::<Result<Vec<_>, _>>()?;
        let from = self.view(entry);
        let value = self.buffers_mut()[from].as_slice::<u8>().to_vec();
        while self.entries[entry].copies.len() > n {
            let gone = self.entries[entry].copies.pop().expect("longer than n");
            self.buffers_mut()[gone] = RawMemory::new(0);
            self.free.push(gone);
        }
        for buffer in added {
            let at = self.keep(buffer);
            self.entries[entry].copies.push(at);
        }
        self.entries[entry].apart = apart;
        self.fill_all(entry, &value);
        self.moves += 1;
        Ok(())
    }

    /// All copies become what the first is.
    pub(in crate::exec) fn level(&mut self, entry: usize) {
        let Some((&first, others)) = self.entries[entry].copies.split_first() else { return };
        let (others, value) = (others.to_vec(), self.buffers_mut()[first].as_slice::<u8>().to_vec());
        for at in others {
            self.buffers_mut()[at].as_slice::<u8>().copy_from_slice(&value);
        }
    }

    /// The buffer that holds the value of a variable for those who only read it.
    pub(in crate::exec) fn view(&mut self, entry: usize) -> usize {
        let has = &self.entries[entry];
        if !has.apart || has.copies.len() == 1 {
            return has.copies[0];
        }
        let (bytes, dtype) = (has.sig.bytes(0), has.sig.dtype);
        let to = match has.merged {
            Some(at) => at,
            None => {
                let at = self.keep(RawMemory::new(bytes));
                self.entries[entry].merged = Some(at);
                at
            }
        };
        let copies = std::mem::take(&mut self.entries[entry].copies);
        mean(self.buffers_mut(), &copies, to, dtype);
        self.entries[entry].copies = copies;
        to
    }

    /// The entry of a variable.
    pub(in crate::exec) fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(in crate::exec) fn is_set(&self, entry: usize) -> bool {
        self.entries[entry].is_set
    }

    pub(in crate::exec) fn copy(&self, entry: usize, replica: usize) -> usize {
        self.entries[entry].copies[replica]
    }

    /// Changes whenever buffers may be others than before, and differs from store to store.
    pub(in crate::exec) fn state(&self) -> (Arc<()>, u64) {
        (self.token.clone(), self.moves)
    }

    pub(in crate::exec) fn is_state(&self, state: &Option<(Arc<()>, u64)>) -> bool {
        state.as_ref().is_some_and(|(token, moves)| Arc::ptr_eq(token, &self.token) && *moves == self.moves)
    }

    pub(in crate::exec) fn is_apart(&self, entry: usize) -> bool {
        self.entries[entry].apart
    }

    pub(in crate::exec) fn buffers_mut(&mut self) -> &mut [RawMemory] {
        Arc::get_mut(&mut self.buffers).expect(IDLE)
    }

    /// For the workers of a run, who give it back before the run ends.
    pub(in crate::exec) fn lend(&self) -> Arc<Vec<RawMemory>> {
        self.buffers.clone()
    }
}

const IDLE: &str = "workers give the store back before a run ends, and runs borrow the store";

/// A buffer for a variable, if there is so much memory.
fn memory(var: &str, bytes: usize) -> Result<RawMemory, RunError> {
    RawMemory::try_new(bytes).ok_or_else(|| RunError::Memory { what: format!("`{var}`"), bytes })
}

/// The mean of what the replicas have. Integers are not averaged: the first has the value.
fn mean(buffers: &mut [RawMemory], copies: &[usize], to: usize, dtype: DType) {
    let n = copies.len() as f64;
    let mut wide = vec![0.0; buffers[to].len() / dtype.size()];
    match dtype {
        DType::F32 => {
            for &at in copies {
                wide.iter_mut().zip(buffers[at].as_slice::<f32>()).for_each(|(w, v)| *w += f64::from(*v));
            }
            fill(buffers[to].as_slice::<f32>(), |i| (wide[i] / n) as f32);
        }
        DType::F64 => {
            for &at in copies {
                wide.iter_mut().zip(buffers[at].as_slice::<f64>()).for_each(|(w, v)| *w += *v);
            }
            fill(buffers[to].as_slice::<f64>(), |i| wide[i] / n);
        }
        _ => {
            let first = buffers[copies[0]].as_slice::<u8>().to_vec();
            buffers[to].as_slice::<u8>().copy_from_slice(&first);
        }
    }
}
