//! Calls to servers: one task of each replica asks, another of each replica stores the answer. In between no worker waits.
//! - DESK-1: a desk calls the servers when all its replicas have asked, once; the tasks that store answers run after the answer has
//!   arrived, or after it is known that nobody asks.

use super::{
    collective::{CollectiveError, Data, Done},
    served::{PushedRows, Served},
    travel::{Landing, Lost},
};
use crate::{
    kernel::{Call, KernelError, Real},
    op::{PullRows, PushRows, ReleaseRows, ServedSquares},
};
use phalanx_core::DType;
use std::sync::Arc;

/// What is known of one call in this pass.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Those who have asked, or will not.
    n_in: usize,
    /// Whether somebody will not.
    is_spoiled: bool,
    /// What each asks for.
    ids: Vec<Vec<i64>>,
    /// Where in the answer each one's rows begin.
    first: Vec<usize>,
    back: Option<Result<Arc<Vec<Data>>, CollectiveError>>,
}

impl Desk {
    pub(super) fn begin(&mut self) {
        *self = Desk::default();
    }
}

/// One who has come to a desk. Who leaves without having asked spoils it: nobody waits for an answer then.
pub(super) struct Visit<'a> {
    landing: &'a Landing,
    desk: usize,
    has_asked: bool,
}

impl Landing {
    pub(super) fn visit(&self, desk: usize) -> Visit<'_> {
        Visit { landing: self, desk, has_asked: false }
    }

    /// The answer is there, or will never be.
    fn answered(&self, desk: usize) {
        for &task in &self.plan.answers[desk] {
            self.arrive_at(task as usize);
        }
    }

    fn answer(&self, desk: usize) -> Result<(Arc<Vec<Data>>, Vec<usize>), Lost> {
        let state = self.places.desk(desk);
        match &state.back {
            Some(Ok(back)) => Ok((back.clone(), state.first.clone())),
            Some(Err(error)) => Err(Lost::Failed(error.clone())),
            None => {
                let why = "another replica could not ask".to_string();
                Err(Lost::Failed(CollectiveError::Failed { call: "a call to servers".into(), why }))
            }
        }
    }

    /// Stores rows of a table where a replica wants them.
    pub(super) fn put_rows(
        &self,
        (desk, slot): (usize, usize),
        call: &mut Call<'_>,
        op: &PullRows,
    ) -> Result<(), Lost> {
        let (back, first) = self.answer(desk)?;
        let ids = call.input::<i64>(0);
        match (&back[..], call.out_dtype(0)) {
            ([Data::F32(rows)], DType::F32) => {
                spread(ids, op, &rows[first[slot] * op.width..], call.output(0))
            }
            ([Data::F64(rows)], DType::F64) => {
                spread(ids, op, &rows[first[slot] * op.width..], call.output(0))
            }
            _ => Err(Lost::Misplaced(format!("other rows were returned for table `{}`", op.table))),
        }
    }

    /// Stores one number for a replica, or for all.
    pub(super) fn put_number(&self, desk: usize, call: &mut Call<'_>) -> Result<(), Lost> {
        let (back, _) = self.answer(desk)?;
        let [Data::F64(number)] = &back[..] else {
            return Err(Lost::Misplaced("something else than a sum of squares was returned".into()));
        };
        (0..call.n_outputs()).try_for_each(|slot| whole(number, call.output(slot)))
    }

    /// Stores what an update made of a dense parameter, for all replicas.
    pub(super) fn put_whole(&self, desk: usize, call: &mut Call<'_>) -> Result<(), Lost> {
        let (back, _) = self.answer(desk)?;
        for slot in 0..call.n_outputs() {
            match (&back[..], call.out_dtype(slot)) {
                ([Data::F32(all)], DType::F32) => whole(all, call.output(slot))?,
                ([Data::F64(all)], DType::F64) => whole(all, call.output(slot))?,
                _ => return Err(Lost::Misplaced("another parameter was returned".into())),
            }
        }
        Ok(())
    }
}

impl Visit<'_> {
    /// Asks for the rows of these numbers; the last one calls the servers for all.
    pub(super) fn pull(
        mut self,
        slot: usize,
        call: &Call<'_>,
        op: &PullRows,
        served: &dyn Served,
    ) -> Result<(), KernelError> {
        let mut ids = Vec::with_capacity(call.input::<i64>(0).len());
        for (at, &id) in call.input::<i64>(0).iter().enumerate() {
            if op.is_row(at, id)? {
                ids.push(id);
            }
        }
        self.has_asked = true;
        let (landing, desk) = (self.landing.clone(), self.desk);
        let n = landing.plan.answers[desk].len();
        let mut state = landing.places.desk(desk);
        state.ids.resize(n, Vec::new());
        state.ids[slot] = ids;
        state.n_in += 1;
        if state.n_in < n {
            return Ok(());
        }
        let (is_spoiled, mut all) = (state.is_spoiled, Vec::new());
        for ids in std::mem::take(&mut state.ids) {
            state.first.push(all.len());
            all.extend(ids);
        }
        drop(state);
        if is_spoiled {
            landing.answered(desk);
            return Ok(());
        }
        let delivery = Delivery { landing, desk, back: None };
        served.pull(&op.table, all, Box::new(move |back| delivery.tell(back)));
        Ok(())
    }

    /// Gives gradients; of a dense one the new parameter comes back.
    pub(super) fn push(mut self, call: &Call<'_>, op: &PushRows, served: &Arc<dyn Served>) {
        self.has_asked = true;
        let (landing, desk) = (self.landing.clone(), self.desk);
        // Before anything that could fail: whatever becomes of it, it is answered.
        let delivery = Delivery { landing, desk, back: None };
        let rows = match call.dtype(call.n_inputs() - 1) {
            DType::F64 => rows::<f64>(call, op, Data::F64),
            _ => rows::<f32>(call, op, Data::F32),
        };
        if op.waits || has_rows(call) {
            return served.push(&op.table, rows, Box::new(move |back| delivery.tell(back)));
        }
        let ids = rows.ids.clone();
        served.push(&op.table, rows, delivery.after(served, &op.table, ids));
    }

    /// Asks for the squares of what waits; the last one calls the servers for all.
    pub(super) fn squares(mut self, op: &ServedSquares, served: &dyn Served) {
        self.has_asked = true;
        let (landing, desk) = (self.landing.clone(), self.desk);
        let mut state = landing.places.desk(desk);
        state.n_in += 1;
        let (is_last, is_spoiled) = (state.n_in == landing.plan.answers[desk].len(), state.is_spoiled);
        drop(state);
        if !is_last {
            return;
        }
        if is_spoiled {
            return landing.answered(desk);
        }
        let delivery = Delivery { landing, desk, back: None };
        served.squares(&op.tables, Box::new(move |back| delivery.tell(back)));
    }

    /// Gives the factor that a gradient waits for; of a dense one the new parameter comes back.
    pub(super) fn release(mut self, call: &Call<'_>, op: &ReleaseRows, served: &Arc<dyn Served>) {
        self.has_asked = true;
        let delivery = Delivery { landing: self.landing.clone(), desk: self.desk, back: None };
        let factor = match call.dtype(0) {
            DType::F64 => call.input::<f64>(0)[0],
            _ => f64::from(call.input::<f32>(0)[0]),
        };
        match op.height {
            0 => served.release(&op.table, factor, Box::new(move |back| delivery.tell(back))),
            n => {
                let ids = (0..n as i64).collect();
                served.release(&op.table, factor, delivery.after(served, &op.table, ids));
            }
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if self.has_asked {
            return;
        }
        let mut state = self.landing.places.desk(self.desk);
        (state.n_in, state.is_spoiled) = (state.n_in + 1, true);
        let is_last = state.n_in == self.landing.plan.answers[self.desk].len();
        drop(state);
        if is_last {
            self.landing.answered(self.desk);
        }
    }
}

/// An answer on its way. It arrives once, if only because all its holders have let go of it.
struct Delivery {
    landing: Landing,
    desk: usize,
    back: Option<Result<Vec<Data>, CollectiveError>>,
}

impl Delivery {
    fn tell(mut self, back: Result<Vec<Data>, CollectiveError>) {
        self.back = Some(back);
    }

    /// These rows are fetched when something has gone well, and are the answer.
    fn after(self, served: &Arc<dyn Served>, table: &str, ids: Vec<i64>) -> Done {
        let (served, table) = (served.clone(), table.to_string());
        Box::new(move |back| match back {
            Ok(_) => served.pull(&table, ids, Box::new(move |back| self.tell(back))),
            Err(error) => self.tell(Err(error)),
        })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let lost = || CollectiveError::Failed { call: "a call to servers".into(), why: "it was lost".into() };
        let back = self.back.take().unwrap_or_else(|| Err(lost()));
        self.landing.places.desk(self.desk).back = Some(back.map(Arc::new));
        self.landing.answered(self.desk);
    }
}

fn spread<T: Real>(ids: &[i64], op: &PullRows, rows: &[T], out: &mut [T]) -> Result<(), Lost> {
    let mut rows = rows.chunks_exact(op.width);
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(op.width)) {
        if Some(id) == op.padding {
            out.fill(T::ZERO);
            continue;
        }
        let row = rows.next();
        out.copy_from_slice(row.ok_or_else(|| {
            Lost::Misplaced(format!("fewer rows were returned for table `{}` than were asked for", op.table))
        })?);
    }
    Ok(())
}

fn whole<T: Copy>(all: &[T], out: &mut [T]) -> Result<(), Lost> {
    let part = all.get(..out.len());
    out.copy_from_slice(part.ok_or_else(|| Lost::Misplaced("a part of a parameter was returned".into()))?);
    Ok(())
}

/// Whether gradients are rows. Where no replica has samples there is only the rate, and there are none.
fn has_rows(call: &Call<'_>) -> bool {
    call.n_inputs() == 1 || call.is_sparse(0)
}

/// The gradients of all inputs but the last, which is the rate.
fn rows<T: Real + Into<f64>>(call: &Call<'_>, op: &PushRows, made: fn(Vec<T>) -> Data) -> PushedRows {
    let last = call.n_inputs() - 1;
    let rate = call.input::<T>(last)[0];
    let rate = if op.scale == 1.0 { rate } else { rate * T::of(op.scale) };
    let (mut ids, mut grads) = (Vec::new(), Vec::new());
    if has_rows(call) {
        for slot in 0..last {
            let (numbers, values) = call.rows::<T>(slot);
            for (&id, row) in numbers.iter().zip(values.chunks_exact(op.width)) {
                // What padding left empty.
                if id >= 0 {
                    ids.push(id);
                    grads.extend_from_slice(row);
                }
            }
        }
    } else {
        grads.extend_from_slice(call.input::<T>(0));
        grads.resize(grads.len().next_multiple_of(op.width), T::ZERO);
        ids.extend(0..(grads.len() / op.width) as i64);
    }
    PushedRows { ids, grads: made(grads), rate: rate.into() }
}
