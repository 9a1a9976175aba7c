//! The engine for native operations of other frameworks in this process: a table of C functions, whose callers are threads without Python.
//!
//! `python/phalanx/native/phalanx_native.h` is the same table in C.
//!
//! - NATIVE-1: `done` is called exactly once for every `submit`, after the engine has let go of all memory that the request named.
//! - NATIVE-2: requests of one name run one after the other, in the order of their submission: a loop's next turn may come before the last one is done.
//! - NATIVE-3: the engine's state is never locked here (PY-3); the weak reference here ends with the engine.
//! - NATIVE-4: a thread waits in `submit` no longer than its request allows; what is not done by then goes on without it. A thread of the
//!   engine's never waits here.

use crate::{
    alike::{self, Unlike},
    error,
    state::Running,
};
use phalanx_collective::engine::{EngineError, EngineTensor, Outcome, Request, spec::Form};
use phalanx_core::{DType, Rank, ReduceOp};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    collections::{HashMap, VecDeque},
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Grows with every change of the table.
const VERSION: u32 = 3;
/// Failures are kept until Python asks for them, the newest ones.
const N_FAILURES: usize = 256;

#[repr(C)]
pub struct NativeTensor {
    address: *mut u8,
    shape: *const u64,
    n_dims: u32,
    dtype: u32,
}

#[repr(C)]
pub struct NativeRequest {
    kind: u32,
    op: u32,
    grouped: u32,
    process_set: u32,
    root: u32,
    /// Minus one for the tensors' own type.
    wire: i32,
    /// How long the caller may wait and run operations itself: this saves waking a thread of the engine's. The greatest number: until it is done.
    patience_us: u32,
    prescale: f64,
    postscale: f64,
    name: *const u8,
    n_name: usize,
    /// What the operation is a part of.
    note: *const u8,
    n_note: usize,
    inputs: *const NativeTensor,
    /// Null: in place, or results that the engine makes.
    outputs: *const NativeTensor,
    n_tensors: usize,
    splits: *const u64,
    n_splits: usize,
    /// Of a comparison: what to do on the first line, then the tensors' names. And its number, as `turn` gave it.
    words: *const u8,
    n_words: usize,
    turn: u64,
}

/// Valid during the call only.
#[repr(C)]
pub struct NativeResult {
    /// 0: it is done. 1: an argument is wrong. 2: ranks disagree, or there is no engine. 3: a failure.
    code: u32,
    message: *const u8,
    n_message: usize,
    tensors: *const NativeTensor,
    n_tensors: usize,
    received: *const u64,
    n_received: usize,
}

/// What waits behind an operation of the same set and name.
type JobLines = HashMap<(u32, String), VecDeque<Job>>;
type Done = unsafe extern "C" fn(*mut c_void, *const NativeResult);

#[repr(C)]
pub struct NativeTable {
    version: u32,
    submit: unsafe extern "C" fn(*const NativeRequest, Done, *mut c_void),
    turn: unsafe extern "C" fn(u32, *const u8, usize) -> u64,
}

static TABLE: NativeTable = NativeTable { version: VERSION, submit, turn };
/// The number of the comparison among the kinds of requests.
const COMPARE: u32 = 6;

/// A lock because threads of frameworks ask for it; held for moments.
static ENGINE: Mutex<Weak<Running>> = Mutex::new(Weak::new());
static LINES: Mutex<Option<JobLines>> = Mutex::new(None);
static FAILURES: Mutex<(u64, VecDeque<(u64, Failure)>)> = Mutex::new((0, VecDeque::new()));

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Native operations use this engine from now on; those that wait behind an earlier engine's operation are told so by its end.
pub fn use_engine(engine: &Arc<Running>) {
    *locked(&ENGINE) = Arc::downgrade(engine);
    alike::forget();
}

/// This rank, if there is an engine.
pub fn rank() -> Option<u32> {
    locked(&ENGINE).upgrade().map(|engine| engine.rank().0)
}

#[derive(Clone)]
enum Failure {
    NoEngine,
    Engine(EngineError),
    Unlike(Unlike),
    Argument(String),
}

impl Failure {
    fn code(&self) -> u32 {
        match self {
            Failure::NoEngine | Failure::Unlike(_) | Failure::Engine(EngineError::Mismatch { .. }) => 2,
            Failure::Argument(_)
            | Failure::Engine(
                EngineError::DuplicateName { .. }
                | EngineError::Invalid { .. }
                | EngineError::Op(_)
                | EngineError::NoSuchSet { .. }
                | EngineError::NotAMember { .. }
                | EngineError::BadSet(_),
            ) => 1,
            Failure::Engine(_) => 3,
        }
    }

    fn text(&self) -> String {
        match self {
            Failure::NoEngine => {
                "this process has not joined a world, or has left it; call init() first".to_string()
            }
            Failure::Engine(why) => why.to_string(),
            Failure::Unlike(unlike) => unlike.text.clone(),
            Failure::Argument(why) => why.clone(),
        }
    }
}

/// Where the table is, for libraries that submit by themselves; and its version.
#[pyfunction]
pub fn native_table() -> (usize, u32) {
    ((&raw const TABLE).expose_provenance(), VERSION)
}

/// The exception of a failure by the number that its message ends with, if it is not too long ago.
#[pyfunction]
pub fn native_failure(py: Python<'_>, id: u64) -> Option<PyErrObject> {
    let failures = locked(&FAILURES);
    let failure = failures.1.iter().find(|(have, _)| *have == id).map(|(_, failure)| failure.clone());
    drop(failures);
    Some(PyErrObject(match failure? {
        Failure::NoEngine => error::not_initialized(py),
        Failure::Engine(why) => error::of_engine(py, &why),
        Failure::Unlike(unlike) => unlike.to_error(py),
        Failure::Argument(why) => PyValueError::new_err(why),
    }))
}

/// An exception that is returned, not raised.
pub struct PyErrObject(PyErr);

impl<'py> IntoPyObject<'py> for PyErrObject {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.0.into_value(py).into_bound(py).into_any())
    }
}

/// Whom to tell, once nobody uses the memory any more (NATIVE-1).
struct Lease {
    done: Done,
    context: *mut c_void,
    answer: Mutex<Option<Result<Outcome, Failure>>>,
    /// Whether the results are new memory. Tensors that were lent hold this lease, which must not hold them.
    makes: bool,
    /// Of a comparison: words, turn, and whether any difference counts.
    judges: Option<(String, u64, bool)>,
    /// The line in which others may wait (NATIVE-2), and whether this one stands in it.
    line: Option<(u32, String)>,
    is_in_line: AtomicBool,
}

// SAFETY: the caller of `submit` says that its context may be used by any thread, once; nothing else in it belongs to a thread.
unsafe impl Send for Lease {}
// SAFETY: as above; the context is only passed on, by `drop`, which one thread runs.
unsafe impl Sync for Lease {}

impl Lease {
    fn settle(&self, mut answer: Result<Outcome, Failure>) {
        if let (Some((words, turn, is_strict)), Ok(outcome)) = (&self.judges, &answer) {
            let rows = outcome.tensors.first().map_or(&[][..], EngineTensor::bytes);
            answer = match alike::judge(rows, words, *turn, *is_strict) {
                Ok(()) => Ok(Outcome::default()),
                Err(unlike) => Err(Failure::Unlike(unlike)),
            };
        }
        if let Ok(outcome) = answer.as_mut().map_err(|_| ())
            && !self.makes
        {
            outcome.tensors.clear();
        }
        locked(&self.answer).get_or_insert(answer);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let answer = locked(&self.answer).take().unwrap_or(Err(Failure::NoEngine));
        // SAFETY: `submit`'s caller gave both for this one call.
        unsafe { tell(self.done, self.context, &answer) };
        drop(answer);
        if let Some(line) = self.line.take().filter(|_| *self.is_in_line.get_mut()) {
            next_in(&line);
        }
    }
}

/// # Safety
/// `done` takes this context, and has not been called with it.
unsafe fn tell(done: Done, context: *mut c_void, answer: &Result<Outcome, Failure>) {
    let (mut code, mut message) = (0, String::new());
    let (mut tensors, mut received) = (Vec::new(), &[][..]);
    match answer {
        Ok(outcome) => {
            tensors.extend(outcome.tensors.iter().map(|tensor| NativeTensor {
                address: tensor.address(),
                shape: tensor.shape().as_ptr(),
                n_dims: tensor.shape().len() as u32,
                dtype: tensor.dtype() as u32,
            }));
            received = &outcome.received;
        }
        Err(failure) => {
            let mut failures = locked(&FAILURES);
            failures.0 += 1;
            let id = failures.0;
            failures.1.push_back((id, failure.clone()));
            if failures.1.len() > N_FAILURES {
                failures.1.pop_front();
            }
            (code, message) = (failure.code(), format!("{} [phalanx failure {id}]", failure.text()));
        }
    }
    let result = NativeResult {
        code,
        message: message.as_ptr(),
        n_message: message.len(),
        tensors: tensors.as_ptr(),
        n_tensors: tensors.len(),
        received: received.as_ptr(),
        n_received: received.len(),
    };
    // SAFETY: the promise of this function's caller; all that the result points to lives until the call returns.
    unsafe { done(context, &raw const result) };
}

/// How long a caller waits (NATIVE-4).
#[derive(Clone, Copy)]
enum Patience {
    None,
    For(Duration),
    UntilDone,
}

impl Patience {
    fn of(patience_us: u32) -> Patience {
        match patience_us {
            0 => Patience::None,
            u32::MAX => Patience::UntilDone,
            us => Patience::For(Duration::from_micros(us.into())),
        }
    }
}

/// A request that waits for its turn.
struct Job {
    request: Request,
    lease: Arc<Lease>,
}

impl Job {
    /// NATIVE-4.
    fn run(self, patience: Patience) {
        let Job { request, lease } = self;
        let Some(engine) = locked(&ENGINE).upgrade() else {
            drop(request);
            return lease.settle(Err(Failure::NoEngine));
        };
        let request = if matches!(patience, Patience::None) { request } else { request.awaited() };
        let handle = match engine.submit(request) {
            Ok(handle) => handle,
            Err(why) => return lease.settle(Err(Failure::Engine(why))),
        };
        // An engine that is told to end waits for those who use it.
        drop(engine);
        let answered = match patience {
            Patience::None => Err(handle),
            Patience::For(time) => handle.wait_until(Instant::now() + time),
            Patience::UntilDone => Ok(handle.wait()),
        };
        match answered {
            Ok(answer) => lease.settle(answer.map_err(Failure::Engine)),
            Err(handle) => handle.then(move |answer| lease.settle(answer.map_err(Failure::Engine))),
        }
    }
}

/// Runs the next request of this name, if one waits.
fn next_in(line: &(u32, String)) {
    let mut lines = locked(&LINES);
    let Some(lines_now) = lines.as_mut() else { return };
    let next = lines_now.get_mut(line).and_then(VecDeque::pop_front);
    if next.is_none() {
        lines_now.remove(line);
    }
    drop(lines);
    if let Some(job) = next {
        // This may be a thread of the engine's, which must not wait for itself.
        job.run(Patience::None);
    }
}

/// Submits a request; `done` hears what became of it, on any thread, perhaps before this returns.
///
/// # Safety
/// The request is valid during the call; the tensors' memory is as `EngineTensor::lent` asks until `done` is called, and `done` may be called
/// with `context` on any thread.
unsafe extern "C" fn submit(request: *const NativeRequest, done: Done, context: *mut c_void) {
    // SAFETY: the caller says that the request is valid, and with it all that it points to.
    let (request, name, words) = unsafe {
        let request = &*request;
        (request, text(request.name, request.n_name), text(request.words, request.n_words))
    };
    let line = (!name.is_empty()).then(|| (request.process_set, name.clone()));
    let (answer, is_in_line) = (Mutex::new(None), AtomicBool::new(false));
    let (makes, patience) = (matches!(request.kind, 1 | 3 | 4), Patience::of(request.patience_us));
    let judges = (request.kind == COMPARE).then(|| (words, request.turn, check_every().is_some()));
    let lease = Arc::new(Lease { done, context, answer, makes, judges, line: line.clone(), is_in_line });
    // SAFETY: as above.
    let read = || unsafe { read(request, name, &lease) };
    let made = catch_unwind(AssertUnwindSafe(read));
    let request = match made.unwrap_or_else(|_| Err(Failure::Argument("phalanx has a bug: a panic".into()))) {
        Ok(request) => request,
        Err(why) => return lease.settle(Err(why)),
    };
    let job = Job { request, lease };
    let Some(line) = line else { return job.run(patience) };
    let mut lines = locked(&LINES);
    // Relaxed: the lease goes to other threads through locks.
    job.lease.is_in_line.store(true, Ordering::Relaxed);
    let lines_now = lines.get_or_insert_default();
    if let Some(waiting) = lines_now.get_mut(&line) {
        return waiting.push_back(job);
    }
    lines_now.insert(line, VecDeque::new());
    drop(lines);
    job.run(patience);
}

/// Counts a reduction under this key; its number if ranks compare parameters in it, otherwise 0.
///
/// # Safety
/// `n_key` bytes are at `key`.
unsafe extern "C" fn turn(set: u32, key: *const u8, n_key: usize) -> u64 {
    // SAFETY: the promise of the caller.
    let key = unsafe { text(key, n_key) };
    alike::turn(set, &key, check_every()).unwrap_or(0)
}

/// `PHALANX_CHECK`.
fn check_every() -> Option<u64> {
    locked(&ENGINE).upgrade().and_then(|engine| engine.world().config().check)
}

/// # Safety
/// `n` bytes are at `first`, unless `n` is zero.
unsafe fn text(first: *const u8, n: usize) -> String {
    // SAFETY: the promise of the caller.
    String::from_utf8_lossy(unsafe { slice(first, n) }).into_owned()
}

/// # Safety
/// `n` values are at `first`, unless `n` is zero.
unsafe fn slice<'a, T>(first: *const T, n: usize) -> &'a [T] {
    // SAFETY: the promise of the caller; nothing is read where there is nothing.
    if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, n) } }
}

/// # Safety
/// As [`submit`].
unsafe fn read(native: &NativeRequest, name: String, lease: &Arc<Lease>) -> Result<Request, Failure> {
    // SAFETY: as many tensors are there as the request says.
    let mut inputs = unsafe { lend(native.inputs, native.n_tensors, lease) }?;
    let grouped = native.grouped != 0 || inputs.len() > 1;
    let lacks = || Failure::Argument("the operation needs exactly one tensor".into());
    let mut one = || inputs.pop().ok_or_else(lacks);
    // SAFETY: as many splits are there as the request says.
    let splits = unsafe { slice(native.splits, native.n_splits) };
    let request = match (native.kind, grouped) {
        (0, false) => Request::allreduce(one()?),
        (0, true) => Request::grouped_allreduce(inputs),
        (1, false) => Request::allgather(one()?),
        (1, true) => Request::grouped_allgather(inputs),
        (2, false) => Request::broadcast(one()?, Rank(native.root)),
        (3, false) => Request::alltoall(one()?, (!splits.is_empty()).then(|| splits.to_vec())),
        (4, false) => Request::reducescatter(one()?),
        (4, true) => Request::grouped_reducescatter(inputs),
        (5, false) => Request::barrier(),
        (COMPARE, _) => {
            let row = alike::row(rank().ok_or(Failure::NoEngine)?, inputs.iter());
            Request::allgather(EngineTensor::new(row))
        }
        (kind, _) => {
            return Err(Failure::Argument(format!("no operation of these tensors has the number {kind}")));
        }
    };
    let request = match native.op {
        0 => request.op(ReduceOp::Average),
        1 => request.op(ReduceOp::Sum),
        2 => request.adasum(),
        3 => request.op(ReduceOp::Min),
        4 => request.op(ReduceOp::Max),
        5 => request.op(ReduceOp::Product),
        op => return Err(Failure::Argument(format!("no reduction has the number {op}"))),
    };
    let mut request = request.scale(native.prescale, native.postscale).set(native.process_set);
    if !name.is_empty() {
        request = request.name(name);
    }
    // SAFETY: the request is valid, and with it all that it points to.
    request = request.note(unsafe { text(native.note, native.n_note) });
    if native.wire >= 0 {
        request = request.compress(dtype(native.wire as u32)?);
    }
    if !native.outputs.is_null() {
        // SAFETY: as many outputs are there as inputs.
        let outputs = unsafe { lend(native.outputs, native.n_tensors, lease) }?;
        request = request.into(outputs).map_err(Failure::Engine)?;
    }
    Ok(request)
}

fn dtype(code: u32) -> Result<DType, Failure> {
    let known = u8::try_from(code).ok().and_then(DType::from_code);
    known.ok_or_else(|| Failure::Argument(format!("no element type has the code {code}")))
}

/// # Safety
/// As [`submit`].
unsafe fn lend(
    first: *const NativeTensor,
    n: usize,
    lease: &Arc<Lease>,
) -> Result<Vec<EngineTensor>, Failure> {
    // SAFETY: the promise of the caller.
    let tensors = unsafe { slice(first, n) };
    let lend = |tensor: &NativeTensor| {
        // SAFETY: the promise of the caller.
        let shape = unsafe { slice(tensor.shape, tensor.n_dims as usize) }.to_vec();
        let form = Form { dtype: dtype(tensor.dtype)?, shape };
        if form.n_bytes() > 0
            && (tensor.address.is_null() || !tensor.address.addr().is_multiple_of(form.dtype.size()))
        {
            return Err(Failure::Argument(format!(
                "a tensor of {} cannot be at {:?}",
                form.dtype, tensor.address
            )));
        }
        // SAFETY: `submit`'s caller keeps the memory until `done`, which the last lease calls; alignment was just checked.
        Ok(unsafe { EngineTensor::lent(tensor.address, form, Box::new(lease.clone())) })
    };
    tensors.iter().map(lend).collect()
}
