//! An exchange with other processes: one task sends tensors from memory, another stores the results. In between no worker
//! waits for the network.
//! - TRAVEL-1: the task that stores the results of an exchange runs after they have arrived, and the run ends after that task.

use super::{
    accord::Accord,
    collective::{CollectiveError, Data, Offer},
    desk::Desk,
    lower::Planned,
    ready::Ready,
};
use crate::kernel::{Call, Real};
use phalanx_core::DType;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// Where exchanges come back to.
#[derive(Debug)]
pub(super) struct Places {
    /// One for each exchange.
    each: Vec<Mutex<ExchangeState>>,
    /// Whether an exchange of this pass did not fit. Read when the run is over, which orders it: relaxed.
    is_misfit: AtomicBool,
    /// One for each call to servers.
    desks: Vec<Mutex<Desk>>,
    /// Whether the update of this pass has begun. As above.
    is_past_gate: AtomicBool,
}

impl Places {
    pub(super) fn new(n: usize, n_desks: usize) -> Places {
        let each = (0..n).map(|_| Mutex::default()).collect();
        let desks = (0..n_desks).map(|_| Mutex::default()).collect();
        let (is_misfit, is_past_gate) = (AtomicBool::new(false), AtomicBool::new(false));
        Places { each, is_misfit, desks, is_past_gate }
    }

    /// No exchange of a pass is on its way.
    pub(super) fn begin(&self) {
        self.is_misfit.store(false, Ordering::Relaxed);
        self.is_past_gate.store(false, Ordering::Relaxed);
        (0..self.desks.len()).for_each(|desk| self.desk(desk).begin());
    }

    pub(super) fn pass_gate(&self) {
        self.is_past_gate.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_past_gate(&self) -> bool {
        self.is_past_gate.load(Ordering::Relaxed)
    }

    pub(super) fn desk(&self, desk: usize) -> MutexGuard<'_, Desk> {
        // What it holds is whole at any time.
        self.desks[desk].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_misfit(&self) -> bool {
        self.is_misfit.load(Ordering::Relaxed)
    }

    fn lock(&self, exchange: usize) -> MutexGuard<'_, ExchangeState> {
        // What it holds is whole at any time.
        self.each[exchange].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct ExchangeState {
    /// Memory of the last time, for the next.
    spare: Vec<Data>,
    back: Option<Result<Vec<Data>, CollectiveError>>,
}

/// What an arriving exchange must know of the run it belongs to. It may be held for a moment longer than the run lasts.
#[derive(Clone, Debug)]
pub(super) struct Landing {
    pub plan: Arc<Planned>,
    pub ready: Arc<Ready>,
    pub places: Arc<Places>,
}

impl Landing {
    /// The exchange of this number is back, or was never on its way.
    pub(super) fn arrive(&self, exchange: usize) {
        self.arrive_at(self.plan.takes[exchange] as usize);
    }

    /// Something that this task waits for has come from outside.
    pub(super) fn arrive_at(&self, task: usize) {
        let schedule = &self.plan.schedule;
        if schedule.arrive(task) {
            self.ready.push(schedule.tasks[task].home, schedule.priority[task], task as u32);
        }
    }

    /// Takes what an exchange needs from memory and starts it.
    pub(super) fn bring(&self, exchange: usize, call: &mut Call<'_>, accord: &Accord) {
        // Before anything that could fail: whatever becomes of it, it arrives (TRAVEL-1).
        let arrival = Arrival { landing: self.clone(), exchange, back: None };
        let spare = std::mem::take(&mut self.places.lock(exchange).spare);
        let offer = if call.is_sparse(0) { rows(call, spare) } else { Offer::Sum(elements(call, spare)) };
        accord.bring(exchange, offer, Box::new(move |back| arrival.tell(back)));
    }

    /// Puts what has come back into memory.
    pub(super) fn take(&self, exchange: usize, call: &mut Call<'_>) -> Result<(), Lost> {
        let back = self.places.lock(exchange).back.take();
        let back = back
            .ok_or_else(|| Lost::Misplaced("the reduced tensor was not returned".into()))?
            .map_err(Lost::Failed)?;
        match back.as_slice() {
            [Data::F32(all)] => fill(call.output(0), all)?,
            [Data::F64(all)] => fill(call.output(0), all)?,
            [Data::I64(numbers), Data::F32(values)] => put(call, numbers, values)?,
            [Data::I64(numbers), Data::F64(values)] => put(call, numbers, values)?,
            _ => return Err(Lost::Misplaced("another tensor was returned".into())),
        }
        self.places.lock(exchange).spare = back;
        Ok(())
    }
}

/// An exchange on its way. It arrives once, if only because all its holders have let go of it.
struct Arrival {
    landing: Landing,
    exchange: usize,
    back: Option<Result<Vec<Data>, CollectiveError>>,
}

impl Arrival {
    fn tell(mut self, back: Result<Vec<Data>, CollectiveError>) {
        self.back = Some(back);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let Arrival { landing, exchange, back } = self;
        let lost = || CollectiveError::Failed { call: "an exchange".into(), why: "it was lost".into() };
        let back = back.take().unwrap_or_else(|| Err(lost()));
        if matches!(back, Err(CollectiveError::Misfit { .. })) {
            landing.places.is_misfit.store(true, Ordering::Relaxed);
        }
        landing.places.lock(*exchange).back = Some(back);
        landing.arrive(*exchange);
    }
}

/// Why nothing was put into memory.
#[derive(Debug)]
pub(super) enum Lost {
    Failed(CollectiveError),
    Misplaced(String),
}

fn fill<T: Copy>(out: &mut [T], from: &[T]) -> Result<(), Lost> {
    if out.len() != from.len() {
        let why = format!("{} elements were returned instead of {}", from.len(), out.len());
        return Err(Lost::Misplaced(why));
    }
    out.copy_from_slice(from);
    Ok(())
}

fn put<T: Real>(call: &mut Call<'_>, numbers: &[i64], values: &[T]) -> Result<(), Lost> {
    let (all_numbers, all_values) = call.rows_out::<T>(0);
    fill(all_numbers, numbers)?;
    fill(all_values, values)
}

/// The elements that are added up.
fn elements(call: &Call<'_>, mut spare: Vec<Data>) -> Data {
    match (call.dtype(0), spare.pop()) {
        (DType::F64, Some(Data::F64(old))) => Data::F64(filled(old, [call.input(0)])),
        (DType::F64, _) => Data::F64(filled(Vec::new(), [call.input(0)])),
        (_, Some(Data::F32(old))) => Data::F32(filled(old, [call.input(0)])),
        (_, _) => Data::F32(filled(Vec::new(), [call.input(0)])),
    }
}

/// The rows of all replicas, one replica behind the other.
fn rows(call: &Call<'_>, mut spare: Vec<Data>) -> Offer {
    let slots = 0..call.n_inputs();
    let values = match (call.dtype(0), spare.pop()) {
        (DType::F64, Some(Data::F64(old))) => Data::F64(filled(old, slots.map(|s| call.rows(s).1))),
        (DType::F64, _) => Data::F64(filled(Vec::new(), slots.map(|s| call.rows(s).1))),
        (_, Some(Data::F32(old))) => Data::F32(filled(old, slots.map(|s| call.rows(s).1))),
        (_, _) => Data::F32(filled(Vec::new(), slots.map(|s| call.rows(s).1))),
    };
    let old = match spare.pop() {
        Some(Data::I64(old)) => old,
        _ => Vec::new(),
    };
    let numbers = (0..call.n_inputs()).map(|slot| match call.dtype(0) {
        DType::F64 => call.rows::<f64>(slot).0,
        _ => call.rows::<f32>(slot).0,
    });
    Offer::Join(vec![Data::I64(filled(old, numbers)), values])
}

fn filled<'a, T: Copy + 'a>(mut old: Vec<T>, parts: impl IntoIterator<Item = &'a [T]>) -> Vec<T> {
    old.clear();
    parts.into_iter().for_each(|part| old.extend_from_slice(part));
    old
}
