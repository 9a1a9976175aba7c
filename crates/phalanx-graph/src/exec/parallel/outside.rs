//! Values that are written between runs, or fed, by the caller.
//! - OUTSIDE-1: a run begins only if all processes have alike what they keep alike. Processes compare one number for what
//!   was written since the last run; only where these differ they compare digests of all values.

use super::{Feed, ParallelExecutor, RunError, Store, collective::CollectiveError};
use crate::{graph::Held, ir::VarId, op::OpKind};
use xxhash_rust::xxh3::xxh3_64;

impl ParallelExecutor {
    /// One number for what was written since the last run or is fed now; zero if there is nothing.
    pub(super) fn written(&self, store: &mut Store, feeds: &[(&str, Feed<'_>)]) -> u64 {
        let feeds_store = feeds.iter().any(|(name, _)| {
            self.graph.program.find(name).is_some_and(|id| self.graph.program.var(id).is_persistable())
        });
        if self.run.accord.is_alone() || !feeds_store && store.writes() == self.binding.writes {
            return 0;
        }
        let mut number = 0u64;
        for (index, &(id, _, entry)) in self.compared().enumerate() {
            let is_written = self.is_written(store, entry) && !self.is_own(store, id, entry);
            if is_written || self.is_fed(feeds, id) {
                let value = self.digest_of_value(store, feeds, id, entry);
                number = xxh3_64(&[number, index as u64, value].map(u64::to_le_bytes).concat());
            }
        }
        number
    }

    /// Fails alike in all processes if a value differs.
    pub(super) fn compare_values(
        &mut self,
        store: &mut Store,
        feeds: &[(&str, Feed<'_>)],
    ) -> Result<(), RunError> {
        let owners = &self.graph.parts.owners;
        let is_given = |id, entry, store: &Store| self.is_written(store, entry) || self.is_fed(feeds, id);
        let digest = |&(id, _, entry): &(VarId, Held, usize)| match self.is_own(store, id, entry) {
            true => 0,
            // An owner alone has it, unless it was written everywhere or is fed.
            false if owners.of_var(id).is_some() && !is_given(id, entry, store) => 0,
            false => self.digest_of_value(store, feeds, id, entry) as i64,
        };
        let digests: Vec<i64> = self.compared().map(digest).collect();
        let Some((process, at)) = self.run_mut().accord.compare(digests)? else { return Ok(()) };
        let (id, ..) = self.compared().nth(at).expect("one number was sent for each");
        let var = self.graph.program.var(*id).name.clone();
        Err(CollectiveError::Values { process, var }.into())
    }

    fn is_fed(&self, feeds: &[(&str, Feed<'_>)], id: VarId) -> bool {
        feeds.iter().any(|(name, _)| *name == self.graph.program.var(id).name)
    }

    /// Whether this process has a value that was written since the last run.
    fn is_written(&self, store: &Store, entry: usize) -> bool {
        store.is_written_since(entry, self.binding.writes) && store.keeper(entry).is_none()
    }

    /// Whether runs change values without other processes.
    pub(super) fn changes_alone(&self) -> bool {
        let is_alone = self.run.accord.is_alone() || !self.graph.settings.is_reduced();
        is_alone && self.binding.held().iter().any(|(_, held, _)| *held != Held::Read)
    }

    /// What processes keep alike: all but what each replica has of its own. Statistics over all samples are alike, too.
    fn compared(&self) -> impl Iterator<Item = &(VarId, Held, usize)> {
        let reduced = self.graph.settings.is_reduced();
        let is_alike = |id: VarId, held: Held| held != Held::Apart || self.is_of_all_samples(id);
        self.binding.held().iter().filter(move |(id, held, _)| reduced && is_alike(*id, *held))
    }

    /// Whether another executor lets each replica have its own, such as statistics that this one only reads.
    fn is_own(&self, store: &Store, var: VarId, entry: usize) -> bool {
        store.is_apart(entry) && !self.is_of_all_samples(var)
    }

    fn is_of_all_samples(&self, var: VarId) -> bool {
        let mut writers = self.graph.program.ops.iter().filter(|op| op.outputs.contains(&var));
        writers.any(|op| matches!(op.kind, OpKind::SyncNormStats(_)))
    }

    /// Of the value that the run will begin with.
    fn digest_of_value(&self, store: &mut Store, feeds: &[(&str, Feed<'_>)], id: VarId, entry: usize) -> u64 {
        let name = &self.graph.program.var(id).name;
        match feeds.iter().find(|(fed, _)| fed == name) {
            Some((_, Feed::Split(value) | Feed::Replicate(value))) => xxh3_64(value.bytes()),
            _ => {
                let at = store.view(entry);
                xxh3_64(store.buffers_mut()[at].as_slice::<u8>())
            }
        }
    }
}
