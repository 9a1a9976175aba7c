//! Asynchronous training in one process: every replica takes the next batch, computes its gradients with a copy of the
//! parameters, updates the store's, and takes a new copy. No replica waits for another's computations.
//! - HOGWILD-1: each batch that the reader gives is one update, by one replica.
//! - HOGWILD-2: an update is whole: it sees and leaves the store as if it were the only one. The copy that a replica
//!   computes with is the store as its own last update left it.
//! - HOGWILD-3: the first failure ends all replicas, each after the batch it is at. A batch whose network failed has
//!   changed nothing, updates that were done stay (one that fails itself, in part), and store and executor can be used
//!   again.
//! - HOGWILD-4: an update whose batch size was seen before allocates nothing, apart from what the reader does.
//!
//! What the network writes itself (statistics of batch norm) is put into the store with the update of its batch: the last
//! one counts. Which replica gets which batch, and so the result, depends on luck.

mod run;

use super::{Executor, Options, RunError, Setup, Store, Tensor, parallel::check_loss};
use crate::{
    graph::{BuildError, Effective, Halves},
    ir::{Program, VarId},
    kernel::{Env, RawMemory},
    plan::Reuse,
};
use phalanx_core::DType;
use run::{HogwildRun, HogwildState, Reading};
use std::{
    fmt,
    sync::{Mutex, atomic::AtomicBool},
};

/// What is fed for one step, by name.
pub type NamedFeeds = Vec<(String, Tensor)>;

/// Whatever kept a reader from reading.
pub type ReaderError = Box<dyn std::error::Error + Send + Sync>;

/// One update that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    pub replica: usize,
    /// Which batch it was made from, as the reader gave them, from 0 in each run.
    pub batch: u64,
    /// The loss of that batch, before the update.
    pub loss: f64,
}

/// A reader of what an iterator gives.
pub fn each(
    batches: impl IntoIterator<Item = NamedFeeds>,
) -> impl FnMut(&mut NamedFeeds) -> Result<bool, ReaderError> {
    let mut batches = batches.into_iter();
    move |batch| {
        let next = batches.next();
        Ok(next.map(|next| *batch = next).is_some())
    }
}

/// A training program whose replicas learn without waiting for each other.
pub struct Hogwild {
    settings: Effective,
    loss: String,
    halves: Halves,
    replicas: Vec<Replica>,
    seed: Option<u64>,
}

/// What one replica has for itself.
#[derive(Debug)]
struct Replica {
    executor: Executor,
    /// Its copy of the store: buffers lie as there, those that the network does not use are empty.
    own: Vec<RawMemory>,
    batch: NamedFeeds,
    loss: [Tensor; 1],
}

impl fmt::Debug for Hogwild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, loss) = (self.replicas.len(), &self.loss);
        f.debug_struct("Hogwild").field("replicas", &n).field("loss", loss).finish_non_exhaustive()
    }
}

impl Hogwild {
    /// Takes the same setup as other executors; `async_mode` holds whatever it says there.
    pub fn new(program: &Program, loss: &str, mut setup: Setup) -> Result<Hogwild, BuildError> {
        setup.build.async_mode = true;
        let settings = setup.settings(true)?;
        check_loss(program, Some(loss))?;
        let halves = Halves::new(program)?;
        if halves.n_network == program.ops.len() {
            return Err(BuildError::NoUpdate { loss: loss.to_string() });
        }
        let build = &settings.build;
        let reuse = Reuse { across: build.memory_optimize, in_place: build.enable_inplace };
        let options = Options { reuse, check_finite: build.check_nan_inf, seed: setup.seed };
        let replica = |_| {
            let executor = Executor::new(halves.program.clone(), options)?;
            let loss = [Tensor::zeros(DType::F32, &[])];
            Ok(Replica { executor, own: Vec::new(), batch: Vec::new(), loss })
        };
        let replicas = (0..settings.replicas).map(replica).collect::<Result<_, BuildError>>()?;
        Ok(Hogwild { settings, loss: loss.to_string(), halves, replicas, seed: setup.seed })
    }

    /// The strategies as they hold.
    pub fn effective(&self) -> &Effective {
        &self.settings
    }

    /// Lets every replica learn from `num_iteration_per_run` batches, or fewer if the reader ends; gives the updates in
    /// the order in which they were made.
    pub fn run(
        &mut self,
        store: &mut Store,
        reader: impl FnMut(&mut NamedFeeds) -> Result<bool, ReaderError> + Send,
    ) -> Result<Vec<Update>, RunError> {
        let mut updates = Vec::new();
        self.run_into(store, reader, &mut updates)?;
        Ok(updates)
    }

    /// The same, appended to what is there already; after a failure these are the updates that were made before it.
    ///
    /// The reader fills in a batch, or says `false` at the end; it is given one that was used, whose memory it may use
    /// again. It is called by all replicas, one at a time.
    pub fn run_into(
        &mut self,
        store: &mut Store,
        mut reader: impl FnMut(&mut NamedFeeds) -> Result<bool, ReaderError> + Send,
        updates: &mut Vec<Update>,
    ) -> Result<(), RunError> {
        let Hogwild { settings, loss, halves, replicas, seed } = self;
        for replica in replicas.iter_mut() {
            replica.settle(store, halves)?;
        }
        store.run_alone();
        let (seed, runs) = (seed.unwrap_or(store.seed), store.runs);
        let run = HogwildRun {
            halves,
            loss,
            env: Env {
                seed,
                run: runs,
                first_sample: 0,
                loss_scale: 1.0,
                check_finite: settings.build.check_nan_inf,
            },
            reading: Mutex::new(Reading { reader: &mut reader, n: 0, is_over: false }),
            state: Mutex::new(HogwildState { store, updates, failed: None }),
            is_over: AtomicBool::new(false),
        };
        let n_batches = settings.exec.num_iteration_per_run;
        let (first, others) = replicas.split_first_mut().expect("settings have at least one");
        std::thread::scope(|scope| {
            for (i, replica) in others.iter_mut().enumerate() {
                let (run, name) = (&run, format!("hogwild-{}", i + 1));
                let work = move || run.work(i + 1, replica, n_batches);
                if let Err(why) = std::thread::Builder::new().name(name).spawn_scoped(scope, work) {
                    run.fail(RunError::Broken { why: why.to_string() });
                }
            }
            run.work(0, first, n_batches);
        });
        run.end()
    }
}

impl Replica {
    /// Finds the program's variables in the store and copies what the network uses.
    fn settle(&mut self, store: &mut Store, halves: &Halves) -> Result<(), RunError> {
        self.executor.settle(store)?;
        let buffers = store.buffers_mut();
        self.own.resize_with(buffers.len(), || RawMemory::new(0));
        for &id in &halves.seen {
            let at = self.executor.place(id);
            if self.own[at].len() != buffers[at].len() {
                self.own[at] = RawMemory::new(buffers[at].len());
            }
        }
        self.take(buffers, &halves.seen);
        Ok(())
    }

    /// Copies these variables of the store.
    fn take(&mut self, buffers: &mut [RawMemory], which: &[VarId]) {
        for &id in which {
            let at = self.executor.place(id);
            self.own[at].as_slice::<u8>().copy_from_slice(buffers[at].as_slice());
        }
    }

    /// Puts its own copies of these variables into the store.
    fn put(&mut self, buffers: &mut [RawMemory], which: &[VarId]) {
        for &id in which {
            let at = self.executor.place(id);
            buffers[at].as_slice::<u8>().copy_from_slice(self.own[at].as_slice());
        }
    }
}
