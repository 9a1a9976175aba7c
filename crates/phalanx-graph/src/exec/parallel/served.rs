//! Parameters on servers, as an executor sees them. Who has the servers is given by the caller, because this crate knows no networks.

use super::collective::{CollectiveError, Data, Done};
use crate::{
    exec::first_values,
    graph::{ServedClip, ServedVar},
    kernel::Real,
    op::OpKind,
};
use phalanx_core::{DType, kernel::update};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Servers with tables. No caller ever waits for a network: `done` is called once, by any thread, perhaps before the call returns. Every
/// push of a table is a step of it; what one process asks for comes in the order in which it asks.
pub trait Served: Send + Sync + fmt::Debug {
    /// The rows of these numbers, in their order, with all pushes of this process before it. Numbers may repeat.
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done);

    /// The gradients of a step; numbers may repeat. It is over when they are on their way.
    fn push(&self, table: &str, rows: PushedRows, done: Done);

    /// The squares of the gradients that wait for a factor in these tables, those of all processes merged, added up: one number, of f64. It
    /// comes when all processes have pushed them.
    fn squares(&self, tables: &[String], done: Done);

    /// The gradient that waits in a table is multiplied with this factor, and applied; all processes give the same one. It is over when the
    /// factor is on its way.
    fn release(&self, table: &str, factor: f64, done: Done);

    /// This process fails in the middle of a step that others have begun to push.
    fn abort(&self, why: &str);
}

/// Gradients for servers.
#[derive(Clone, Debug, PartialEq)]
pub struct PushedRows {
    pub ids: Vec<i64>,
    /// One row behind the other.
    pub grads: Data,
    pub rate: f64,
}

/// Tables in the memory of this process: for tests, and to see what a program does with servers.
pub struct LocalServed {
    /// A lock because replicas of several executors may ask.
    tables: Mutex<BTreeMap<String, LocalTable>>,
}

#[derive(Debug)]
struct LocalTable {
    var: ServedVar,
    step: i64,
    /// The parameter, then its states.
    parts: Vec<Vec<f64>>,
    /// A gradient that waits for a factor.
    held: Option<PushedRows>,
}

impl fmt::Debug for LocalServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

impl LocalServed {
    /// With the first values that a store of this seed would give them.
    pub fn new(vars: &[ServedVar], seed: u64) -> LocalServed {
        let table = |var: &ServedVar| {
            let first = first_values(&var.name, &var.dims, var.init, seed);
            let rounded = |at: usize| match var.dtype {
                DType::F64 => first(at),
                _ => f64::from(first(at) as f32),
            };
            let (n, room) = (var.volume(), var.height * var.width);
            let values = (0..room).map(|at| if at < n { rounded(at) } else { 0.0 }).collect();
            let mut parts: Vec<Vec<f64>> = vec![values];
            parts.extend(var.states.iter().map(|_| vec![var.first_state; room]));
            (var.name.clone(), LocalTable { var: var.clone(), step: 0, parts, held: None })
        };
        LocalServed { tables: Mutex::new(vars.iter().map(table).collect()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LocalTable>> {
        // A step is applied by code that does not panic.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parameter (part 0) or a state, without the padding of its last row.
    pub fn values(&self, table: &str, part: usize) -> Option<Vec<f64>> {
        let tables = self.lock();
        let table = tables.get(table)?;
        Some(table.parts.get(part)?[..table.var.volume()].to_vec())
    }
}

impl Served for LocalServed {
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done) {
        let tables = self.lock();
        let Some(table) = tables.get(table) else { return done(Err(unknown(table))) };
        let width = table.var.width;
        let rows = ids.iter().flat_map(|&id| &table.parts[0][id as usize * width..][..width]);
        let data = match table.var.dtype {
            DType::F64 => Data::F64(rows.copied().collect()),
            _ => Data::F32(rows.map(|&v| v as f32).collect()),
        };
        drop(tables);
        done(Ok(vec![data]));
    }

    fn push(&self, table: &str, rows: PushedRows, done: Done) {
        let mut tables = self.lock();
        let Some(table) = tables.get_mut(table) else { return done(Err(unknown(table))) };
        match table.var.clip {
            ServedClip::Factor => table.held = Some(rows),
            _ => table.learn(&rows, None),
        }
        drop(tables);
        done(Ok(Vec::new()));
    }

    fn squares(&self, names: &[String], done: Done) {
        let tables = self.lock();
        let mut sum = 0.0;
        for name in names {
            let Some(table) = tables.get(name) else { return done(Err(unknown(name))) };
            let Some(rows) = &table.held else { return done(Err(nothing_waits(name))) };
            sum += match &rows.grads {
                Data::F64(grads) => squares(&merged(&rows.ids, grads, table.var.width)),
                Data::F32(grads) => squares(&merged(&rows.ids, grads, table.var.width)),
                _ => 0.0,
            };
        }
        drop(tables);
        done(Ok(vec![Data::F64(vec![sum])]));
    }

    fn release(&self, name: &str, factor: f64, done: Done) {
        let mut tables = self.lock();
        let Some(table) = tables.get_mut(name) else { return done(Err(unknown(name))) };
        let Some(rows) = table.held.take() else { return done(Err(nothing_waits(name))) };
        table.learn(&rows, Some(factor));
        drop(tables);
        done(Ok(Vec::new()));
    }

    fn abort(&self, _: &str) {}
}

fn unknown(table: &str) -> CollectiveError {
    CollectiveError::Failed { call: format!("a call for table `{table}`"), why: "nobody serves it".into() }
}

fn nothing_waits(table: &str) -> CollectiveError {
    CollectiveError::Failed { call: format!("a factor for table `{table}`"), why: "no gradient waits".into() }
}

/// Each row once, its values added up in the order they came.
fn merged<T: Real>(ids: &[i64], grads: &[T], width: usize) -> BTreeMap<i64, Vec<T>> {
    let mut merged: BTreeMap<i64, Vec<T>> = BTreeMap::new();
    for (&id, g) in ids.iter().zip(grads.chunks_exact(width)) {
        match merged.get_mut(&id) {
            Some(sum) => sum.iter_mut().zip(g).for_each(|(sum, &g)| *sum += g),
            None => drop(merged.insert(id, g.to_vec())),
        }
    }
    merged
}

fn squares<T: Real + Into<f64>>(merged: &BTreeMap<i64, Vec<T>>) -> f64 {
    merged.values().flatten().map(|&g| g.into() * g.into()).sum()
}

impl LocalTable {
    /// Applies a gradient, multiplied with a factor that was given.
    fn learn(&mut self, rows: &PushedRows, factor: Option<f64>) {
        match &rows.grads {
            Data::F64(grads) => self.apply::<f64>(&rows.ids, grads, rows.rate, factor),
            Data::F32(grads) => self.apply::<f32>(&rows.ids, grads, rows.rate, factor),
            _ => {}
        }
    }

    fn apply<T: Real + Into<f64>>(&mut self, ids: &[i64], grads: &[T], rate: f64, factor: Option<f64>) {
        let (width, var) = (self.var.width, &self.var);
        let mut merged = merged(ids, grads, width);
        let by = match var.clip {
            ServedClip::Norm(limit) => Some(update::clip_factor(T::of(squares(&merged)), limit)),
            _ => factor.map(T::of),
        };
        if let Some(by) = by {
            merged.values_mut().flatten().for_each(|g| *g *= by);
        }
        self.step += 1;
        for (id, mut g) in merged {
            let range = id as usize * width..(id as usize + 1) * width;
            let mut parts: Vec<Vec<T>> = self
                .parts
                .iter()
                .map(|part| part[range.clone()].iter().map(|&v| T::of(v)).collect())
                .collect();
            let (p, states) = parts.split_first_mut().expect("the parameter is the first part");
            if var.decay != 0.0 {
                update::decay(&mut g, p, T::of(var.decay));
            }
            let rate = T::of(rate);
            match (&var.update, states) {
                (OpKind::Sgd(_), _) => update::sgd(p, &g, rate),
                (OpKind::Momentum(rule), [v]) => rule.apply(p, v, &g, rate),
                (OpKind::Adagrad(rule), [s]) => rule.apply(p, s, &g, rate),
                (OpKind::Adam(rule), [m, v]) => rule.at(self.step, rate).apply(p, m, v, &g),
                (OpKind::RmsProp(rule), [s, v]) => rule.apply(p, s, v, &g, rate),
                _ => {}
            }
            for (part, new) in self.parts.iter_mut().zip(&parts) {
                part[range.clone()].iter_mut().zip(new).for_each(|(to, &v)| *to = v.into());
            }
        }
    }
}
