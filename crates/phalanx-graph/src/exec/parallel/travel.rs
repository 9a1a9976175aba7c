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
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// What an exchange does with the tensors that are brought.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// Adds them up.
    Sum,
    /// Puts the rows of all replicas and processes one behind the other.
    Rows,
    /// Adds up the first input. The others are the parts of it that each process wants, and how many elements each has.
    Parts(Arc<[usize]>),
    /// Puts what processes bring, elements of this type, one behind the other.
    Share(DType),
}

/// Where in what comes back each output begins.
#[derive(Clone, Debug)]
pub(super) struct Spots {
    /// If it is all of it.
    pub whole: Vec<usize>,
    /// If it is this process's part.
    pub part: Vec<usize>,
    /// Whether nothing takes more of it.
    pub is_last: bool,
}

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
    /// Memory of the last time, for the next: for what is brought, and for what comes back elsewhere.
    spare: Vec<Data>,
    memory: Vec<Data>,
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
    pub(super) fn bring(&self, exchange: usize, route: &Route, call: &mut Call<'_>, accord: &Accord) {
        // Before anything that could fail: whatever becomes of it, it arrives (TRAVEL-1).
        let mut arrival = Arrival { landing: self.clone(), exchange, n_brought: 1, back: None };
        let ExchangeState { spare, memory, .. } = std::mem::take(&mut *self.places.lock(exchange));
        let n = call.n_inputs();
        let offer = match route {
            Route::Rows => rows(call, spare),
            Route::Parts(counts) if accord.collective.sums_parts() => {
                Offer::Parts { data: elements(call, call.dtype(0), 1..n, spare), counts: counts.to_vec() }
            }
            Route::Sum | Route::Parts(_) => Offer::Sum(elements(call, call.dtype(0), 0..1, spare)),
            Route::Share(dtype) => Offer::Join(vec![elements(call, *dtype, 0..n, spare)]),
        };
        if let Offer::Join(lists) = &offer {
            arrival.n_brought = lists.len();
        }
        accord.bring(exchange, offer, memory, Box::new(move |back| arrival.tell(back)));
    }

    /// Puts what has come back into memory.
    pub(super) fn take(
        &self,
        exchange: usize,
        spots: &Spots,
        call: &mut Call<'_>,
        accord: &Accord,
    ) -> Result<(), Lost> {
        let back = self.places.lock(exchange).back.take();
        let back = back
            .ok_or_else(|| Lost::Misplaced("the reduced tensor was not returned".into()))?
            .map_err(Lost::Failed)?;
        let spot = |slot: usize| match accord.collective.sums_parts() {
            true => spots.part[slot],
            false => spots.whole[slot],
        };
        let mut slots = 0..call.n_outputs();
        match back.as_slice() {
            [Data::F32(all)] => slots.try_for_each(|s| cut(call.output(s), all, spot(s)))?,
            [Data::F64(all)] => slots.try_for_each(|s| cut(call.output(s), all, spot(s)))?,
            [Data::I64(numbers), Data::F32(values)] => put(call, numbers, values)?,
            [Data::I64(numbers), Data::F64(values)] => put(call, numbers, values)?,
            _ => return Err(Lost::Misplaced("another tensor was returned".into())),
        }
        let mut place = self.places.lock(exchange);
        match spots.is_last {
            true if place.spare.is_empty() => place.spare = back,
            true => place.memory = back,
            false => place.back = Some(Ok(back)),
        }
        Ok(())
    }
}

/// An exchange on its way. It arrives once, if only because all its holders have let go of it.
struct Arrival {
    landing: Landing,
    exchange: usize,
    /// As many lists come back; behind them may be those that were brought.
    n_brought: usize,
    back: Option<Result<Vec<Data>, CollectiveError>>,
}

impl Arrival {
    fn tell(mut self, back: Result<Vec<Data>, CollectiveError>) {
        self.back = Some(back);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let Arrival { landing, exchange, n_brought, back } = self;
        let lost = || CollectiveError::Failed { call: "an exchange".into(), why: "it was lost".into() };
        let mut back = back.take().unwrap_or_else(|| Err(lost()));
        if matches!(back, Err(CollectiveError::Misfit { .. })) {
            landing.places.is_misfit.store(true, Ordering::Relaxed);
        }
        let spare = match &mut back {
            Ok(back) => back.split_off(back.len().min(*n_brought)),
            Err(_) => Vec::new(),
        };
        *landing.places.lock(*exchange) = ExchangeState { spare, memory: Vec::new(), back: Some(back) };
        landing.arrive(*exchange);
    }
}

/// Why nothing was put into memory.
#[derive(Debug)]
pub(super) enum Lost {
    Failed(CollectiveError),
    Misplaced(String),
}

/// Copies what begins at `at`.
fn cut<T: Copy>(out: &mut [T], all: &[T], at: usize) -> Result<(), Lost> {
    let part = all.get(at..at + out.len());
    let few =
        || format!("{} elements were returned, which are too few for {} from {at}", all.len(), out.len());
    out.copy_from_slice(part.ok_or_else(|| Lost::Misplaced(few()))?);
    Ok(())
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

/// The elements of these inputs, one input behind the other.
fn elements(call: &Call<'_>, dtype: DType, inputs: Range<usize>, mut spare: Vec<Data>) -> Data {
    match (dtype, spare.pop()) {
        (DType::F64, Some(Data::F64(old))) => Data::F64(filled(old, inputs.map(|i| call.input(i)))),
        (DType::F64, _) => Data::F64(filled(Vec::new(), inputs.map(|i| call.input(i)))),
        (_, Some(Data::F32(old))) => Data::F32(filled(old, inputs.map(|i| call.input(i)))),
        (_, _) => Data::F32(filled(Vec::new(), inputs.map(|i| call.input(i)))),
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

fn filled<'a, T: Copy + 'a>(mut old: Vec<T>, parts: impl Iterator<Item = &'a [T]> + Clone) -> Vec<T> {
    old.clear();
    // At once: what grows is copied each time.
    old.reserve_exact(parts.clone().map(<[T]>::len).sum());
    parts.for_each(|part| old.extend_from_slice(part));
    old
}
