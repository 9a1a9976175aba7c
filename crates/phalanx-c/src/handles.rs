//! Handles: the numbers of operations in C programs, and the state of each.

use crate::{
    abi::Status,
    failure::{self, Failure},
    guard::{self, Completion},
    process::lock,
};
use phalanx_collective::engine::{Answer, Handle};
use std::{
    collections::BTreeMap,
    ffi::CString,
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

/// Before a waiting thread sleeps, it yields this long: most answers are near.
const YIELD_FOR: Duration = Duration::from_micros(100);

pub struct Handles {
    next: AtomicI64,
    /// A lock because any thread submits and releases; held for a look only.
    entries: Mutex<BTreeMap<i64, Arc<SubmittedOp>>>,
}

/// One operation.
pub struct SubmittedOp {
    /// What can be seen of the answer, as soon as there is one.
    view: OnceLock<AnswerView>,
    /// A lock because several threads may ask at once; never held while one waits.
    kept: Mutex<Kept>,
    bell: Arc<Bell>,
}

enum Kept {
    /// And whether its end rings the bell.
    Pending(Handle, bool),
    /// Owns the memory of the outputs.
    Done { _answer: Box<Answer> },
    /// Between the two.
    Nothing,
}

#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *lock(&self.rung) = true;
        self.changed.notify_all();
    }
}

/// An answer in the words of phalanx.h.
pub struct AnswerView {
    pub status: i32,
    pub error: CString,
    pub outputs: Vec<OutputView>,
    pub received: Vec<i64>,
    pub last_joined: Option<i32>,
}

pub struct OutputView {
    /// An address is a number here, because other threads may look at it.
    pub address: usize,
    pub dtype: i32,
    pub shape: Vec<i64>,
}

impl AnswerView {
    fn of(answer: &Answer) -> AnswerView {
        let failed = answer.as_ref().err();
        let done = answer.as_ref().ok();
        let signed = |numbers: &[u64]| numbers.iter().map(|n| *n as i64).collect::<Vec<i64>>();
        let outputs = done.iter().flat_map(|o| &o.tensors).map(|tensor| {
            let bytes = tensor.bytes();
            let address = if bytes.is_empty() { 0 } else { bytes.as_ptr() as usize };
            OutputView { address, dtype: tensor.dtype() as i32, shape: signed(tensor.shape()) }
        });
        AnswerView {
            status: failed.map_or(Status::Ok, failure::status) as i32,
            error: failed.map(|e| guard::text(&e.to_string())).unwrap_or_default(),
            outputs: outputs.collect(),
            received: done.map(|o| signed(&o.received)).unwrap_or_default(),
            last_joined: done.and_then(|o| o.last_joined).map(|r| r.0 as i32),
        }
    }
}

impl Handles {
    pub const fn new() -> Handles {
        Handles { next: AtomicI64::new(1), entries: Mutex::new(BTreeMap::new()) }
    }

    /// Gives an operation its number, and calls back once it is done, which may be now.
    pub fn add(&self, handle: Handle, call: Option<Completion>) -> i64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(SubmittedOp {
            view: OnceLock::new(),
            kept: Mutex::new(Kept::Nothing),
            bell: Arc::default(),
        });
        lock(&self.entries).insert(number, entry.clone());
        let Some(call) = call else {
            *lock(&entry.kept) = Kept::Pending(handle, false);
            return number;
        };
        // Nobody but the callback knows the number yet, and it looks at the view only.
        let (seen, bell) = (entry.clone(), entry.bell.clone());
        handle.on_done(move |answer| {
            let status = seen.view.get_or_init(|| AnswerView::of(answer)).status;
            drop(seen);
            call.call(number, status);
            bell.ring();
        });
        *lock(&entry.kept) = Kept::Pending(handle, true);
        number
    }

    pub fn get(&self, number: i64) -> Result<Arc<SubmittedOp>, Failure> {
        lock(&self.entries).get(&number).cloned().ok_or_else(|| {
            Failure::new(Status::UnknownHandle, format!("{number} is not a handle, or was released"))
        })
    }

    /// EDGE-2: gives up what is done; what is not, stays.
    pub fn release(&self, number: i64) -> Result<(), Failure> {
        self.get(number)?.view()?;
        let released = lock(&self.entries).remove(&number);
        drop(released);
        Ok(())
    }
}

impl SubmittedOp {
    /// Whether it is done; if so the view is there.
    pub fn poll(&self) -> bool {
        // The slot of the answer may be locked by this very thread.
        if guard::in_callback() {
            return self.view.get().is_some();
        }
        let mut kept = lock(&self.kept);
        match std::mem::replace(&mut *kept, Kept::Nothing) {
            Kept::Pending(handle, rings) if !handle.poll() => {
                *kept = Kept::Pending(handle, rings);
                false
            }
            Kept::Pending(handle, rings) => match handle.wait_until(Instant::now()) {
                Ok(answer) => {
                    self.view.get_or_init(|| AnswerView::of(&answer));
                    *kept = Kept::Done { _answer: Box::new(answer) };
                    true
                }
                Err(handle) => {
                    *kept = Kept::Pending(handle, rings);
                    false
                }
            },
            done @ Kept::Done { .. } => {
                *kept = done;
                true
            }
            // `add` is not through yet.
            Kept::Nothing => false,
        }
    }

    /// What is seen of the answer.
    pub fn view(&self) -> Result<&AnswerView, Failure> {
        let view = if self.poll() { self.view.get() } else { None };
        view.ok_or_else(|| {
            Failure::new(Status::Pending, "the operation is not done yet; phalanx_wait() waits for it")
        })
    }

    /// Waits until it is done, at most until the deadline.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<&AnswerView, Failure> {
        if guard::in_callback() {
            guard::may_wait().or_else(|refused| self.view().map(drop).map_err(|_| refused))?;
            return self.view();
        }
        let start = Instant::now();
        let late = || deadline.is_some_and(|d| Instant::now() >= d);
        while !self.poll() {
            if late() {
                let text =
                    "the operation was not done in time; it is still pending and can be waited for again";
                return Err(Failure::new(Status::Timeout, text));
            }
            // After the bell the answer is there within moments.
            if start.elapsed() < YIELD_FOR || *lock(&self.bell.rung) {
                std::thread::yield_now();
            } else {
                self.sleep(deadline);
            }
        }
        self.view()
    }

    /// Sleeps until the operation is done or the time is over.
    fn sleep(&self, deadline: Option<Instant>) {
        if let Kept::Pending(handle, rings @ false) = &mut *lock(&self.kept) {
            *rings = true;
            let bell = self.bell.clone();
            handle.on_done(move |_| bell.ring());
        }
        let mut rung = lock(&self.bell.rung);
        while !*rung {
            let now = Instant::now();
            let rest = deadline.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(now));
            if rest.is_zero() {
                return;
            }
            rung = self.bell.changed.wait_timeout(rung, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
