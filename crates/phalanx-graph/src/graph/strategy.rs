//! The user's options for a parallel run, checked once as a whole.
//! - STRATEGY-1: the user's options are never changed; the values in effect are in [`Effective`].
//! - STRATEGY-2: all conflicts are reported, not the first.

use std::{fmt, path::PathBuf};

/// What becomes of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceStrategy {
    /// Every replica has parameters of its own and updates them with the sum of all gradients.
    AllReduce,
    /// The replicas of a process share their parameters; each byte is updated once, by an idle worker. Of several processes
    /// one owns each parameter: it alone has the states of the optimizer and updates it, and sends it to all.
    Reduce,
    /// Replicas learn alone.
    NoReduce,
}

/// What the gradient of the loss begins with in each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientScale {
    /// One over the number of replicas that have samples, whatever share of them each has.
    CoeffNumDevice,
    One,
    /// Fed with every run, as `<loss>@GRAD`.
    Customized,
    /// The replica's share of all samples: the result is that of one replica with the whole batch. A replica that learns
    /// alone (NoReduce) has all of its own.
    BySamples,
}

/// Which graph is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildStrategy {
    pub reduce_strategy: ReduceStrategy,
    pub gradient_scale: GradientScale,
    /// Sums gradients in buckets of about `bucket_bytes`.
    pub fuse_all_reduce_ops: bool,
    pub bucket_bytes: usize,
    /// Runs small updates of one kind as one task.
    pub fuse_all_optimizer_ops: bool,
    /// Runs an addition and the activation that follows it as one task.
    pub fuse_elewise_add_act_ops: bool,
    /// Each replica runs its operations in the order of the program.
    pub enable_sequential_execution: bool,
    /// Batch norm takes its statistics from all replicas.
    pub sync_batch_norm: bool,
    /// Variables that are never alive together share memory.
    pub memory_optimize: bool,
    /// Outputs take the place of inputs that end there.
    pub enable_inplace: bool,
    /// Each replica takes its share in this many pieces, one after another in the same memory; their gradients are added up
    /// before the update.
    pub accumulate: usize,
    /// Replicas learn each from batches of its own, at its own pace, and nobody waits for the others: for
    /// [`crate::Hogwild`] only.
    pub async_mode: bool,
    /// Parameters that live on servers (`Setup::served`), not in the store: tables whose gradients are rows leave the program,
    /// others stay as copies that the servers update.
    pub served: Vec<String>,
    /// How many processes train together; what the collective says if not given.
    pub num_trainers: Option<usize>,
    pub trainer_id: Option<usize>,
    /// A file for each pass, beginning with this.
    pub debug_graphviz_path: Option<PathBuf>,
    /// Looks for NaN and infinity after every operation.
    pub check_nan_inf: bool,
}

impl Default for BuildStrategy {
    fn default() -> BuildStrategy {
        BuildStrategy {
            reduce_strategy: ReduceStrategy::AllReduce,
            gradient_scale: GradientScale::BySamples,
            fuse_all_reduce_ops: true,
            bucket_bytes: 4 << 20,
            fuse_all_optimizer_ops: false,
            fuse_elewise_add_act_ops: false,
            enable_sequential_execution: false,
            sync_batch_norm: false,
            memory_optimize: true,
            enable_inplace: true,
            accumulate: 1,
            async_mode: false,
            served: Vec::new(),
            num_trainers: None,
            trainer_id: None,
            debug_graphviz_path: None,
            check_nan_inf: false,
        }
    }
}

/// How it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionStrategy {
    /// Workers, the caller's thread among them; 0 means one for each replica, but not more than there are cores.
    pub num_threads: usize,
    /// The number of runs after which the memory of temporaries is given back; 0 means never.
    pub num_iteration_per_drop_scope: usize,
    /// How often `run` runs the program on what it is given.
    pub num_iteration_per_run: usize,
    /// Visits everything, computes nothing.
    pub dry_run: bool,
}

impl Default for ExecutionStrategy {
    fn default() -> ExecutionStrategy {
        ExecutionStrategy {
            num_threads: 0,
            num_iteration_per_drop_scope: 100,
            num_iteration_per_run: 1,
            dry_run: false,
        }
    }
}

/// What is not the strategies' to decide.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// How many replicas the caller asks for.
    pub replicas: Option<usize>,
    /// The value of `CPU_NUM`, if there is one.
    pub cpu_num: Option<&'a str>,
    pub cores: usize,
    pub processes: usize,
    pub process: usize,
    pub has_loss: bool,
}

/// What holds, after everything was taken into account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub replicas: usize,
    pub processes: usize,
    pub process: usize,
    pub threads: usize,
    /// With `num_trainers` and `trainer_id` filled in.
    pub build: BuildStrategy,
    /// With `num_threads` filled in.
    pub exec: ExecutionStrategy,
}

impl Effective {
    /// Whether gradients of several replicas are added up, here or elsewhere.
    pub fn is_reduced(&self) -> bool {
        self.build.reduce_strategy != ReduceStrategy::NoReduce && self.copies() * self.processes > 1
    }

    /// How often the network is there: once for each piece of each replica's share.
    pub fn copies(&self) -> usize {
        self.replicas * self.build.accumulate
    }

    /// Whether processes own parameters. With tables on servers they do not: servers must know when others may push.
    pub(crate) fn has_owners(&self) -> bool {
        self.build.reduce_strategy == ReduceStrategy::Reduce
            && self.processes > 1
            && self.build.served.is_empty()
    }

    pub(crate) fn shares_parameters(&self) -> bool {
        self.build.reduce_strategy == ReduceStrategy::Reduce && self.replicas > 1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error("CPU_NUM is `{got}`; it must be a number from 1 to {most}")]
    CpuNum { got: String, most: usize },
    #[error("{got} replicas; it must be a number from 1 to {most}")]
    Replicas { got: usize, most: usize },
    #[error("bucket_bytes is 0, but fuse_all_reduce_ops needs buckets; set a size or turn it off")]
    NoBucket,
    #[error("num_iteration_per_run is 0; set it to 1 or more")]
    NoIterations,
    #[error("num_trainers is {wanted}, but the collective has {got} processes")]
    Trainers { wanted: usize, got: usize },
    #[error("trainer_id is {wanted}, but this is process {got} of the collective")]
    Trainer { wanted: usize, got: usize },
    #[error("sync_batch_norm shares statistics between replicas, but NoReduce keeps them apart")]
    SyncAlone,
    #[error("accumulate is 0; it must be at least 1")]
    NoPieces,
    #[error("{replicas} replicas with {pieces} pieces each are more than {most} pieces; lower accumulate")]
    Pieces { replicas: usize, pieces: usize, most: usize },
    #[error("accumulate adds up gradients, but NoReduce keeps them apart")]
    AccumulateAlone,
    #[error("sync_batch_norm needs all samples at once, but accumulate takes them piece by piece")]
    SyncPieces,
    #[error("gradient_scale is Customized, but no loss is named; name the loss whose gradient is fed")]
    ScaleWithoutLoss,
    #[error("num_threads is {got}; the most is {most}")]
    Threads { got: usize, most: usize },
    #[error("async_mode is for the replicas of one process, but {got} processes train together")]
    AsyncProcesses { got: usize },
    #[error(
        "sync_batch_norm makes replicas wait for each other's samples, but in async_mode replicas do not wait"
    )]
    AsyncSync,
    #[error("accumulate adds up gradients before an update, but in async_mode each batch is an update")]
    AsyncPieces,
    #[error("gradient_scale is Customized, but in async_mode a value cannot be fed to one replica")]
    AsyncScale,
    #[error("async_mode trains on batches from a reader, but a dry run does not read")]
    AsyncDry,
}

/// Everything that does not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, conflict) in self.0.iter().enumerate() {
            let before = match (i, self.0.len()) {
                (0, 1) => "",
                (0, _) => "the strategies contradict each other: ",
                _ => "; ",
            };
            write!(f, "{before}{conflict}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}

/// A sum over replicas is one step with an output for each.
const MOST_REPLICAS: usize = 254;
const MOST_THREADS: usize = 1024;

/// Takes both strategies together with the circumstances (STRATEGY-1, STRATEGY-2).
pub fn validate(
    build: &BuildStrategy,
    exec: &ExecutionStrategy,
    at: Circumstances<'_>,
) -> Result<Effective, Conflicts> {
    let mut found = Vec::new();
    let (mut build, mut exec) = (build.clone(), exec.clone());
    let replicas = match (at.replicas, at.cpu_num) {
        (Some(n), _) => n,
        (None, Some(text)) => match text.trim().parse() {
            Ok(n) if (1..=MOST_REPLICAS).contains(&n) => n,
            _ => {
                found.push(Conflict::CpuNum { got: text.to_string(), most: MOST_REPLICAS });
                1
            }
        },
        (None, None) => at.cores.clamp(1, MOST_REPLICAS),
    };
    if !(1..=MOST_REPLICAS).contains(&replicas) {
        found.push(Conflict::Replicas { got: replicas, most: MOST_REPLICAS });
    }
    if build.fuse_all_reduce_ops && build.bucket_bytes == 0 {
        found.push(Conflict::NoBucket);
    }
    if exec.num_iteration_per_run == 0 {
        found.push(Conflict::NoIterations);
    }
    if exec.num_threads > MOST_THREADS {
        found.push(Conflict::Threads { got: exec.num_threads, most: MOST_THREADS });
    }
    match build.num_trainers {
        Some(wanted) if wanted != at.processes => {
            found.push(Conflict::Trainers { wanted, got: at.processes });
        }
        _ => build.num_trainers = Some(at.processes),
    }
    match build.trainer_id {
        Some(wanted) if wanted != at.process => found.push(Conflict::Trainer { wanted, got: at.process }),
        _ => build.trainer_id = Some(at.process),
    }
    if build.sync_batch_norm && build.reduce_strategy == ReduceStrategy::NoReduce {
        found.push(Conflict::SyncAlone);
    }
    match build.accumulate {
        0 => found.push(Conflict::NoPieces),
        1 => {}
        pieces => {
            if pieces.saturating_mul(replicas) > MOST_REPLICAS {
                found.push(Conflict::Pieces { replicas, pieces, most: MOST_REPLICAS });
            }
            if build.reduce_strategy == ReduceStrategy::NoReduce {
                found.push(Conflict::AccumulateAlone);
            }
            if build.sync_batch_norm {
                found.push(Conflict::SyncPieces);
            }
        }
    }
    if build.gradient_scale == GradientScale::Customized && !at.has_loss {
        found.push(Conflict::ScaleWithoutLoss);
    }
    if build.async_mode {
        found.extend(asynchronous(&build, &exec, at));
    }
    if !found.is_empty() {
        return Err(Conflicts(found));
    }
    if build.async_mode {
        // Each replica is a thread, which has no other work.
        exec.num_threads = replicas;
    }
    if exec.num_threads == 0 {
        exec.num_threads = replicas.min(at.cores.max(1));
    }
    let (processes, process, threads) = (at.processes, at.process, exec.num_threads);
    Ok(Effective { replicas, processes, process, threads, build, exec })
}

/// What does not go together with replicas that wait for nobody.
fn asynchronous(build: &BuildStrategy, exec: &ExecutionStrategy, at: Circumstances<'_>) -> Vec<Conflict> {
    let all = [
        (at.processes > 1, Conflict::AsyncProcesses { got: at.processes }),
        (build.sync_batch_norm, Conflict::AsyncSync),
        (build.accumulate > 1, Conflict::AsyncPieces),
        (build.gradient_scale == GradientScale::Customized, Conflict::AsyncScale),
        (exec.dry_run, Conflict::AsyncDry),
    ];
    all.into_iter().filter(|(holds, _)| *holds).map(|(_, conflict)| conflict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Circumstances<'_> =
        Circumstances { replicas: None, cpu_num: None, cores: 4, processes: 1, process: 0, has_loss: true };

    #[test]
    fn the_argument_wins_over_the_environment_and_nonsense_is_refused() {
        let ask = |replicas, cpu_num| {
            let at = Circumstances { replicas, cpu_num, ..HERE };
            validate(&BuildStrategy::default(), &ExecutionStrategy::default(), at)
        };
        assert_eq!(ask(Some(3), Some("7")).unwrap().replicas, 3);
        assert_eq!(ask(None, Some(" 7 ")).unwrap().replicas, 7);
        assert_eq!(ask(None, None).unwrap().replicas, 4);
        assert_eq!(ask(None, Some("7")).unwrap().threads, 4);
        for bad in ["0", "-1", "two", "", "1e9", "100000"] {
            let got = ask(None, Some(bad)).unwrap_err();
            assert!(matches!(&got.0[..], [Conflict::CpuNum { got, .. }] if got == bad), "{bad}");
        }
        assert!(matches!(ask(Some(0), None).unwrap_err().0[..], [Conflict::Replicas { got: 0, .. }]));
    }

    #[test]
    fn all_conflicts_are_told_at_once_and_nothing_is_changed() {
        // STRATEGY-1, STRATEGY-2
        let build = BuildStrategy {
            reduce_strategy: ReduceStrategy::NoReduce,
            sync_batch_norm: true,
            bucket_bytes: 0,
            num_trainers: Some(3),
            trainer_id: Some(2),
            gradient_scale: GradientScale::Customized,
            ..BuildStrategy::default()
        };
        let exec = ExecutionStrategy { num_iteration_per_run: 0, ..ExecutionStrategy::default() };
        let before = (build.clone(), exec.clone());
        let got = validate(&build, &exec, Circumstances { has_loss: false, ..HERE }).unwrap_err();
        assert_eq!(got.0.len(), 6, "{got}");
        assert!(
            got.to_string().starts_with("the strategies contradict each other: bucket_bytes is 0"),
            "{got}"
        );
        // One value that is bad by itself contradicts nothing.
        let one = Conflicts(vec![got.0[0].clone()]).to_string();
        assert!(one.starts_with("bucket_bytes is 0"), "{one}");
        assert_eq!((build, exec), before);
    }

    #[test]
    fn whoever_waits_for_nobody_cannot_do_what_needs_the_others() {
        // STRATEGY-2
        let build = BuildStrategy {
            async_mode: true,
            sync_batch_norm: true,
            accumulate: 2,
            gradient_scale: GradientScale::Customized,
            ..BuildStrategy::default()
        };
        let exec = ExecutionStrategy { dry_run: true, ..ExecutionStrategy::default() };
        let got = validate(&build, &exec, Circumstances { processes: 2, ..HERE }).unwrap_err().0;
        let wanted = asynchronous(&build, &exec, Circumstances { processes: 2, ..HERE });
        assert!(wanted.len() == 5 && wanted.iter().all(|w| got.contains(w)), "{got:?}");
        let alone = BuildStrategy { async_mode: true, ..BuildStrategy::default() };
        let at = Circumstances { replicas: Some(6), ..HERE };
        assert_eq!(validate(&alone, &ExecutionStrategy::default(), at).unwrap().threads, 6);
    }
}
