//! Whether ranks hold the same parameters: they ask it in the first reductions of their gradients, where TensorFlow, Keras and JAX train.
//!
//! - ALIKE-1: in the k-th reduction of a list of parameters all ranks of a set compare, or none: turns are counted by set and a key of each rank's
//!   own for the list, and from zero again where ranks begin together: in a new world, and after a join.
//! - ALIKE-2: a difference that rounding explains is a warning, unless `PHALANX_CHECK` asks for comparisons; any other is an error on every rank,
//!   which names the first parameter that differs and what to write.

use crate::{
    error::{Detail, raise},
    lent::LentTensor,
    native, state,
};
use phalanx_collective::engine::EngineTensor;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use xxhash_rust::xxh3::xxh3_64;

/// The reductions in which ranks compare where `PHALANX_CHECK` says nothing. Not the first: some programs broadcast after the first step, when all
/// variables exist.
const EARLY: std::ops::RangeInclusive<u64> = 2..=4;
/// Of a tensor: a digest of its bytes, its sum with a sign for each element, and the root of its sum of squares.
const N_OUTLINE: usize = 24;
const N_RANK: usize = 8;
/// Sums of tensors that differ by rounding differ by less than this part of the root of the sum of squares; those of other numbers by about all of it.
const ROUNDING: f64 = 1e-3;

#[derive(Default)]
struct Turns {
    counts: BTreeMap<u32, BTreeMap<String, u64>>,
    /// Sets whose ranks do not have the same parameters yet, and know it.
    held: BTreeSet<u32>,
}

/// A lock because threads of frameworks count; held for moments.
static TURNS: Mutex<Turns> = Mutex::new(Turns { counts: BTreeMap::new(), held: BTreeSet::new() });

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a reduction (ALIKE-1). Its number, if ranks compare in it. `every` is `PHALANX_CHECK`.
pub fn turn(set: u32, key: &str, every: Option<u64>) -> Option<u64> {
    let mut turns = turns();
    if turns.held.contains(&set) {
        return None;
    }
    let counts = turns.counts.entry(set).or_default();
    if !counts.contains_key(key) {
        counts.insert(key.to_string(), 0);
    }
    let count = counts.get_mut(key)?;
    *count += 1;
    let is_due = match every {
        None => EARLY.contains(count),
        Some(0) => false,
        // After every n-th step; the first step comes after the first reduction.
        Some(n) => *count > 1 && (*count - 1).is_multiple_of(n),
    };
    is_due.then_some(*count)
}

/// Ranks begin together (ALIKE-1).
pub fn forget() {
    *turns() = Turns::default();
}

/// What a rank sends: its number, and for each tensor its outline.
pub fn row<'a>(rank: u32, tensors: impl Iterator<Item = &'a EngineTensor>) -> Vec<u8> {
    let mut row = u64::from(rank).to_le_bytes().to_vec();
    for tensor in tensors {
        let (sum, size) = match (tensor.as_slice::<f32>(), tensor.as_slice::<f64>()) {
            (Some(values), _) => sums(values.iter().map(|x| f64::from(*x))),
            (None, Some(values)) => sums(values.iter().copied()),
            (None, None) => (f64::NAN, f64::NAN),
        };
        row.extend(xxh3_64(tensor.bytes()).to_le_bytes());
        row.extend(sum.to_le_bytes());
        row.extend(size.to_le_bytes());
    }
    row
}

/// The sum with a sign for each element, so that numbers in another order count as different; and the root of the sum of squares.
fn sums(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut sum, mut squares) = (0.0, 0.0);
    for (i, x) in values.enumerate() {
        // The golden ratio's multiples lie evenly on both sides of one half.
        let is_upper = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
        sum += if is_upper { x } else { -x };
        squares += x * x;
    }
    (sum, squares.sqrt())
}

/// Why ranks may not go on.
#[derive(Clone, Debug)]
pub struct Unlike {
    pub text: String,
    pub ranks: [u32; 2],
    pub tensor: String,
}

impl Unlike {
    pub fn to_error(&self, py: Python<'_>) -> PyErr {
        let details =
            [("tensor", Detail::Text(self.tensor.clone())), ("ranks", Detail::Numbers(self.ranks.to_vec()))];
        raise(py, "MismatchError", &self.text, &details)
    }
}

/// Compares the rows of all ranks (ALIKE-2). `words` has what to do on its first line, and then a name for each tensor.
pub fn judge(rows: &[u8], words: &str, turn: u64, is_strict: bool) -> Result<(), Unlike> {
    let mut lines = words.lines();
    let remedy = lines.next().unwrap_or_default();
    let names: Vec<&str> = lines.collect();
    let rows: Vec<&[u8]> = rows.chunks_exact(N_RANK + names.len() * N_OUTLINE).collect();
    let Some((first, others)) = rows.split_first() else { return Ok(()) };
    let (mut near, mut far, mut n_unlike) = (None, None, 0);
    for (i, name) in names.iter().enumerate() {
        let at = N_RANK + i * N_OUTLINE;
        let mut is_unlike = false;
        for other in others.iter().filter(|row| word(row, at) != word(first, at)) {
            is_unlike = true;
            let found = (*name, word(first, 0) as u32, word(other, 0) as u32);
            let is_near = !is_strict && is_rounding(&first[at + 8..], &other[at + 8..]);
            let kind = if is_near { &mut near } else { &mut far };
            kind.get_or_insert(found);
        }
        n_unlike += usize::from(is_unlike);
    }
    let Some((tensor, a, b)) = far.or(near) else { return Ok(()) };
    let (n, step) = (names.len(), turn - 1);
    let what = format!(
        "ranks have different parameters after step {step}: rank {b} has other values of {tensor} than rank {a} ({n_unlike} of {n} parameters differ)"
    );
    if far.is_none() {
        // All ranks find the same; one says it.
        if is_first(a) {
            phalanx_net::voice::warn(&format!(
                "{what}; they differ as by rounding, for instance on unlike processors. If that is no surprise, set PHALANX_CHECK=0."
            ));
        }
        return Ok(());
    }
    let text = format!("{what}: {remedy} PHALANX_CHECK=0 turns this comparison off.");
    Err(Unlike { text, ranks: [a, b], tensor: tensor.to_string() })
}

fn is_first(rank: u32) -> bool {
    native::rank() == Some(rank)
}

fn is_rounding(a: &[u8], b: &[u8]) -> bool {
    let number = |of: &[u8], at| f64::from_bits(word(of, at));
    let (difference, size) = ((number(a, 0) - number(b, 0)).abs(), number(a, 8).max(number(b, 8)));
    // Not so for NaN.
    difference <= size * ROUNDING && (number(a, 8) - number(b, 8)).abs() <= size * ROUNDING
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// Counts a reduction; its number if ranks compare in it, otherwise 0.
#[pyfunction]
pub fn alike_turn(py: Python<'_>, process_set: u32, key: &str) -> PyResult<u64> {
    let every = state::engine(py)?.world().config().check;
    Ok(turn(process_set, key, every).unwrap_or(0))
}

/// What this rank sends for its tensors.
#[pyfunction]
pub fn alike_row(py: Python<'_>, tensors: Vec<LentTensor>) -> PyResult<Vec<u8>> {
    let rank = state::engine(py)?.rank().0;
    Ok(py.detach(move || row(rank, tensors.iter().map(|LentTensor(tensor)| tensor))))
}

/// Raises a `MismatchError` if the rows of all ranks differ.
#[pyfunction]
pub fn alike_judge(py: Python<'_>, rows: &[u8], words: &str, turn: u64) -> PyResult<()> {
    if turn == 0 {
        return Err(PyValueError::new_err("turns count from 1"));
    }
    let is_strict = state::engine(py)?.world().config().check.is_some();
    judge(rows, words, turn, is_strict).map_err(|unlike| unlike.to_error(py))
}

/// Ranks begin together: their reductions count from zero.
#[pyfunction]
pub fn alike_forget() {
    forget();
}

/// While ranks of the set know that their parameters differ, nothing is counted; afterwards they count from zero.
#[pyfunction]
pub fn alike_hold(process_set: u32, is_held: bool) {
    let mut turns = turns();
    turns.counts.remove(&process_set);
    if is_held {
        turns.held.insert(process_set);
    } else {
        turns.held.remove(&process_set);
    }
}
