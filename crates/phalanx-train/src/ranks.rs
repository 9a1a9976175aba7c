//! The processes that train a program together, as ranks of an engine. No thread of an executor waits in here: the engine calls back.
//! - RANKS-1: each exchange of an executor has one name for all runs, so that the engine soon runs it without negotiation.
//! - RANKS-3: if a rank gives up a run, the run fails on all ranks and the engine keeps running (ACCORD-2); a lost rank is named.

use crate::session::Peers;
use phalanx_collective::{
    Communicator,
    engine::{Answer, Engine, EngineError, EngineTensor, Request},
};
use phalanx_core::{DType, Element, Rank, ReduceOp};
use phalanx_graph::{
    Collective, CollectiveError,
    exec::{Data, Done, Offer},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Somebody's engine, for a moment.
pub type Lent = Arc<dyn AsRef<Engine> + Send + Sync>;

/// The ranks of an engine. With two of them sums have the bits that one process with all replicas would get; with more they
/// have the order of the engine's plans, which is the same in every run.
pub struct Ranks {
    index: usize,
    n: usize,
    /// The engine, as long as it runs: executors may outlive it.
    lend: Box<dyn Fn() -> Option<Lent> + Send + Sync>,
    /// Numbers that executors of each label have taken. A lock because executors on several threads may begin at once.
    enrolled: Mutex<BTreeMap<String, BTreeSet<u64>>>,
    /// How many executors were made of each program. A lock for the same reason.
    made: Mutex<BTreeMap<u64, u64>>,
    /// Whether sums of parts have the bits of whole sums.
    sums_parts: OnceLock<bool>,
}

impl Ranks {
    /// Those of an engine that others may use as well.
    pub fn new(engine: Arc<Engine>) -> Ranks {
        let (index, n) = (engine.rank().index(), engine.size() as usize);
        Ranks::of_lender(index, n, move || Some(engine.clone()))
    }

    /// Those of a world that a launcher has started, or this process alone, with an engine of their own.
    pub fn from_env() -> Result<Ranks, EngineError> {
        Ok(Ranks::new(Arc::new(Engine::start(Communicator::from_env()?)?)))
    }

    /// The same ranks for a session, which has this number among the sessions of its process.
    pub fn peers(self: &Arc<Ranks>, number: u64) -> Peers {
        let ranks = self.clone();
        Peers::new(Rank::at(self.index), self.n as u32, number, Box::new(move || (ranks.lend)()))
    }

    /// Rank `index` of `n`, with an engine that may have ended.
    pub fn of_lender(
        index: usize,
        n: usize,
        lend: impl Fn() -> Option<Lent> + Send + Sync + 'static,
    ) -> Ranks {
        let (lend, sums_parts) = (Box::new(lend), OnceLock::new());
        Ranks { index, n, lend, enrolled: Mutex::default(), made: Mutex::default(), sums_parts }
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks").field("index", &self.index).field("n", &self.n).finish_non_exhaustive()
    }
}

impl Collective for Ranks {
    fn processes(&self) -> usize {
        self.n
    }

    fn index(&self) -> usize {
        self.index
    }

    fn enroll(&self, label: &str) -> String {
        let mut enrolled = self.enrolled.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = enrolled.entry(label.to_string()).or_default();
        let free = (1..).find(|n| !taken.contains(n)).expect("executors can be counted");
        taken.insert(free);
        name_of(label, free)
    }

    fn withdraw(&self, label: &str, name: &str) {
        let mut enrolled = self.enrolled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = enrolled.get_mut(label) {
            taken.retain(|&number| name_of(label, number) != name);
        }
    }

    fn made_before(&self, program: u64) -> u64 {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let number = made.entry(program).or_default();
        *number += 1;
        *number - 1
    }

    fn sums_parts(&self) -> bool {
        // Asked once, because a run counts on one answer.
        *self.sums_parts.get_or_init(|| (self.lend)().is_some_and(|engine| (*engine).as_ref().sums_by_rank()))
    }

    fn start(&self, name: &str, offer: Offer, done: Done) {
        self.submit(name, request(offer), done);
    }

    fn start_again(&self, name: &str, offer: Offer, memory: Vec<Data>, done: Done) {
        self.submit(name, request(offer).recycle(memory.into_iter().map(tensor).collect()), done);
    }
}

impl Ranks {
    fn submit(&self, name: &str, request: Request, done: Done) {
        let call = name.to_string();
        let Some(engine) = (self.lend)() else {
            let why = "the engine has ended, by shutdown()".to_string();
            return done(Err(CollectiveError::Failed { call, why }));
        };
        match (*engine).as_ref().submit(request.name(name)) {
            Ok(handle) => handle.then(move |answer| done(told(call, answer))),
            Err(why) => done(Err(failed(call, &why))),
        }
    }
}

fn name_of(label: &str, number: u64) -> String {
    match number {
        1 => format!("graph: training of `{label}`"),
        n => format!("graph: training of `{label}` ({n})"),
    }
}

fn request(offer: Offer) -> Request {
    match offer {
        Offer::Sum(data) => Request::allreduce(tensor(data)).op(ReduceOp::Sum),
        Offer::Parts { data, counts } => {
            let rows = counts.into_iter().map(|n| n as u64).collect();
            Request::reducescatter_of(tensor(data), rows).op(ReduceOp::Sum)
        }
        Offer::Join(lists) => Request::grouped_allgather(lists.into_iter().map(tensor).collect()),
        Offer::Broadcast { data, root } => Request::broadcast(tensor(data), Rank(root as u32)),
        // Nobody adds up so small numbers.
        Offer::Nothing => Request::allreduce(EngineTensor::new(vec![0i8])),
    }
}

fn tensor(data: Data) -> EngineTensor {
    match data {
        Data::U8(all) => EngineTensor::new(all),
        Data::I64(all) => EngineTensor::new(all),
        Data::F32(all) => EngineTensor::new(all),
        Data::F64(all) => EngineTensor::new(all),
    }
}

fn told(call: String, answer: Answer) -> Result<Vec<Data>, CollectiveError> {
    let outcome = answer.map_err(|why| failed(call, &why))?;
    Ok(outcome.tensors.into_iter().chain(outcome.given).filter_map(data).collect())
}

/// `None` for the answer to [`Offer::Nothing`], where nobody had more to offer.
fn data(tensor: EngineTensor) -> Option<Data> {
    fn all<T: Element>(tensor: EngineTensor, made: fn(Vec<T>) -> Data) -> Option<Data> {
        tensor.into_vec().map(made)
    }
    match tensor.dtype() {
        DType::U8 => all(tensor, Data::U8),
        DType::I64 => all(tensor, Data::I64),
        DType::F32 => all(tensor, Data::F32),
        DType::F64 => all(tensor, Data::F64),
        _ => None,
    }
}

fn failed(call: String, why: &EngineError) -> CollectiveError {
    match why {
        EngineError::Mismatch { .. } => CollectiveError::Misfit { why: why.to_string() },
        _ => CollectiveError::Failed { call, why: why.to_string() },
    }
}
