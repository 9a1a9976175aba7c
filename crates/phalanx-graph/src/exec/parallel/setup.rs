//! The setup of a parallel executor, and the values in effect on this machine.

use super::{Alone, Collective, Served};
use crate::graph::{
    BuildStrategy, Circumstances, Conflicts, Effective, ExecutionStrategy, PassList, validate,
};
use std::sync::Arc;

/// What an executor is made with.
#[derive(Debug)]
pub struct Setup {
    pub build: BuildStrategy,
    pub exec: ExecutionStrategy,
    /// How many; `CPU_NUM` if not given, or else one for each core.
    pub replicas: Option<usize>,
    /// Other processes that train the same program.
    pub collective: Arc<dyn Collective>,
    /// Who has the parameters of `BuildStrategy::served`.
    pub served: Option<Arc<dyn Served>>,
    pub passes: PassList,
    /// Where random numbers of the runs come from, instead of the store's seed.
    pub seed: Option<u64>,
    /// Which of the executors of equal programs it is (ACCORD-4), where that is not the order in which they are made.
    pub number: Option<u64>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            build: BuildStrategy::default(),
            exec: ExecutionStrategy::default(),
            replicas: None,
            collective: Arc::new(Alone),
            served: None,
            passes: PassList::standard(),
            seed: None,
            number: None,
        }
    }
}

impl Setup {
    /// What holds on this machine.
    pub(in crate::exec) fn settings(&self, has_loss: bool) -> Result<Effective, Conflicts> {
        let cpu_num = std::env::var("CPU_NUM").ok();
        let at = Circumstances {
            replicas: self.replicas,
            cpu_num: cpu_num.as_deref(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            processes: self.collective.processes(),
            process: self.collective.index(),
            has_loss,
        };
        validate(&self.build, &self.exec, at)
    }
}
