//! Whether a result is what the sum of all inputs in `f64` says, and the report if it is not.
//!
//! - JUDGE-1: a result passes where `|a - b| <= atol + rtol * |b|`; zeros therefore pass. NaN and infinities pass only where both sides have the same.
//! - JUDGE-2: all ranks judge together: if one finds a fault, all raise it, with the same rank, index and values.

use phalanx_core::{DType, Rank, ReduceOp};
use serde::Serialize;
use std::{fs::File, io::Write, path::PathBuf};

/// How far a result may be from the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub rtol: f64,
    /// Without one: a thousandth of `rtol` of the largest value of the baseline.
    pub atol: Option<f64>,
}

/// A result that is not what it should be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{tensor}: element {index} is {value} on rank {rank}, but the baseline ({baseline_is}) is {baseline}{}",
    nan_from.map(|r| format!("; the input of rank {r} was not a finite number")).unwrap_or_default()
)]
pub struct CheckError {
    pub rank: Rank,
    pub tensor: String,
    pub index: u64,
    pub value: f64,
    pub baseline: f64,
    pub baseline_is: &'static str,
    /// The rank whose input had a NaN or an infinity there.
    pub nan_from: Option<Rank>,
}

/// What the baseline is without MPI.
pub const GATHERED: &str = "all inputs gathered and reduced as f64 in rank order";

/// One element that is too far off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffElement {
    pub index: u64,
    pub value: f64,
    pub baseline: f64,
    pub nan_from: Option<u32>,
}

/// The elements that do not pass, worst first, at most 100 of them. `gathered` has the inputs of all ranks, one behind the other.
pub fn judge(
    dtype: DType,
    op: ReduceOp,
    result: &[u8],
    gathered: &[u8],
    tolerance: Tolerance,
) -> Vec<OffElement> {
    let (n, bytes) = (result.len() / dtype.size(), result.len());
    if n == 0 {
        return Vec::new();
    }
    let n_ranks = gathered.len() / bytes;
    let input = |rank: usize, i: usize| number(dtype, &gathered[rank * bytes..], i);
    let baselines: Vec<f64> = (0..n).map(|i| reduce(dtype, op, (0..n_ranks).map(|r| input(r, i)))).collect();
    let largest = baselines.iter().filter(|b| b.is_finite()).fold(0.0f64, |most, b| most.max(b.abs()));
    let atol = tolerance.atol.unwrap_or(tolerance.rtol * 1e-3 * largest);
    let passes = |a: f64, b: f64| match (a.is_finite(), b.is_finite()) {
        (true, true) => (a - b).abs() <= atol + tolerance.rtol * b.abs(),
        // NaN is reported even where the baseline has it, too: it is what people look for.
        _ => a == b,
    };
    let mut faults: Vec<OffElement> = (0..n)
        .filter_map(|i| {
            let (value, baseline) = (number(dtype, result, i), baselines[i]);
            let nan_from = (0..n_ranks).find(|&r| !input(r, i).is_finite()).map(|r| r as u32);
            (!passes(value, baseline)).then_some(OffElement { index: i as u64, value, baseline, nan_from })
        })
        .collect();
    let off = |f: &OffElement| {
        let off = (f.value - f.baseline).abs();
        if off.is_nan() { f64::INFINITY } else { off }
    };
    faults.sort_by(|a, b| off(b).total_cmp(&off(a)).then(a.index.cmp(&b.index)));
    faults.truncate(100);
    faults
}

/// A reduction in rank order. Integers wrap as their type does, so that they are exact.
fn reduce(dtype: DType, op: ReduceOp, inputs: impl Iterator<Item = f64> + Clone) -> f64 {
    let n = inputs.clone().count() as f64;
    let fold = |f: fn(f64, f64) -> f64| inputs.clone().reduce(f).unwrap_or(0.0);
    if dtype.is_float() {
        return match op {
            ReduceOp::Sum => fold(|a, b| a + b),
            ReduceOp::Average => fold(|a, b| a + b) / n,
            ReduceOp::Min => fold(|a, b| if a.is_nan() || a < b { a } else { b }),
            ReduceOp::Max => fold(|a, b| if a.is_nan() || a > b { a } else { b }),
            ReduceOp::Product => fold(|a, b| a * b),
        };
    }
    let whole = |f: fn(i64, i64) -> i64| inputs.clone().map(|x| x as i64).reduce(f).unwrap_or(0);
    let is_bool = dtype == DType::Bool;
    match op {
        ReduceOp::Min => whole(i64::min) as f64,
        ReduceOp::Product if is_bool => whole(i64::min) as f64,
        ReduceOp::Max => whole(i64::max) as f64,
        ReduceOp::Sum | ReduceOp::Average if is_bool => whole(i64::max) as f64,
        ReduceOp::Sum => wrapped(dtype, whole(i64::wrapping_add)),
        ReduceOp::Product => wrapped(dtype, whole(i64::wrapping_mul)),
        ReduceOp::Average => (whole(i64::wrapping_add) / n as i64) as f64,
    }
}

fn wrapped(dtype: DType, x: i64) -> f64 {
    match dtype {
        DType::U8 => f64::from(x as u8),
        DType::I8 => f64::from(x as i8),
        DType::U16 => f64::from(x as u16),
        DType::I16 => f64::from(x as i16),
        DType::I32 => f64::from(x as i32),
        _ => x as f64,
    }
}

/// Element `i` as a number; of 64-bit integers the nearest one.
fn number(dtype: DType, bytes: &[u8], i: usize) -> f64 {
    let size = dtype.size();
    let b = &bytes[i * size..(i + 1) * size];
    let two = || [b[0], b[1]];
    let four = || [b[0], b[1], b[2], b[3]];
    let eight = || [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]];
    match dtype {
        DType::U8 | DType::Bool => f64::from(b[0]),
        DType::I8 => f64::from(b[0] as i8),
        DType::U16 => f64::from(u16::from_ne_bytes(two())),
        DType::I16 => f64::from(i16::from_ne_bytes(two())),
        DType::I32 => f64::from(i32::from_ne_bytes(four())),
        DType::I64 => i64::from_ne_bytes(eight()) as f64,
        DType::F16 => half::f16::from_ne_bytes(two()).to_f64(),
        DType::BF16 => half::bf16::from_ne_bytes(two()).to_f64(),
        DType::F32 => f64::from(f32::from_ne_bytes(four())),
        DType::F64 => f64::from_ne_bytes(eight()),
    }
}

/// Numbers in a record that ranks gather.
pub const RECORD: usize = 5;

/// What a rank tells the others of its worst fault.
pub fn record(faults: &[OffElement]) -> [f64; RECORD] {
    faults.first().map_or([0.0; RECORD], |f| {
        [1.0, f.index as f64, f.value, f.baseline, f.nan_from.map_or(-1.0, f64::from)]
    })
}

/// The fault that all ranks raise: that of the lowest rank that has one (JUDGE-2).
pub fn verdict(tensor: &str, records: &[f64]) -> Option<CheckError> {
    let (rank, worst) = records.chunks(RECORD).enumerate().find(|(_, record)| record[0] != 0.0)?;
    Some(CheckError {
        rank: Rank::at(rank),
        tensor: tensor.to_string(),
        index: worst[1] as u64,
        value: worst[2],
        baseline: worst[3],
        baseline_is: GATHERED,
        nan_from: (worst[4] >= 0.0).then_some(Rank(worst[4] as u32)),
    })
}

/// What the dump says besides the faults.
#[derive(Clone, Debug, Serialize)]
pub struct DumpHead<'a> {
    pub rank: u32,
    pub tensor: &'a str,
    pub dtype: &'a str,
    pub op: &'a str,
    pub tiers: &'a str,
    pub ways: &'a str,
    pub baseline: &'a str,
    pub rtol: f64,
    pub error: &'a str,
}

/// Writes `ddl.dumpRRR` in the working directory: a line for the call and one for each of this rank's faults.
pub fn dump(head: &DumpHead<'_>, faults: &[OffElement]) -> std::io::Result<PathBuf> {
    let path = PathBuf::from(format!("ddl.dump{:03}", head.rank));
    let mut file = File::create(&path)?;
    writeln!(file, "{}", serde_json::to_string(head)?)?;
    for fault in faults {
        // JSON has no NaN and no infinities: these are written as words.
        let line = format!(
            "{{\"index\":{},\"value\":{},\"baseline\":{},\"nan_from\":{}}}",
            fault.index,
            word(fault.value),
            word(fault.baseline),
            fault.nan_from.map_or("null".into(), |r| r.to_string())
        );
        writeln!(file, "{line}")?;
    }
    Ok(path)
}

fn word(x: f64) -> String {
    if x.is_finite() { format!("{x:?}") } else { format!("\"{x}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    fn of_f32(result: &[f32], inputs: &[f32], rtol: f64) -> Vec<OffElement> {
        let tolerance = Tolerance { rtol, atol: None };
        judge(DType::F32, ReduceOp::Sum, &bytes(result), &bytes(inputs), tolerance)
    }

    #[test]
    fn what_is_near_passes_and_zeros_do_not_trip() {
        let inputs = [1.0, 2.0, 0.0, 3.0, 4.0, 0.0];
        assert_eq!(of_f32(&[4.0, 6.0, 0.0], &inputs, 0.0), []);
        assert_eq!(of_f32(&[4.3, 6.0, 0.0], &inputs, 0.17), [], "JUDGE-1");
        let faults = of_f32(&[4.0, 9.0, 1.0], &inputs, 0.17);
        assert_eq!(faults.iter().map(|f| f.index).collect::<Vec<_>>(), [1, 2], "worst first");
        assert_eq!((faults[0].value, faults[0].baseline), (9.0, 6.0));
    }

    #[test]
    fn a_nan_names_the_rank_whose_input_had_it() {
        let faults = of_f32(&[f32::NAN, 6.0], &[1.0, 2.0, f32::NAN, 4.0], 0.5);
        assert_eq!((faults.len(), faults[0].nan_from), (1, Some(1)));
        let error = verdict("w", &[[0.0; RECORD], record(&faults)].concat()).unwrap();
        assert_eq!(
            error.to_string(),
            "w: element 0 is NaN on rank 1, but the baseline (all inputs gathered and reduced as f64 in rank order) is NaN; \
             the input of rank 1 was not a finite number",
            "JUDGE-2"
        );
    }

    #[test]
    fn integers_wrap_as_their_type_does() {
        let tolerance = Tolerance { rtol: 0.0, atol: None };
        let judged = |op, result| judge(DType::I8, op, &[result], &[100, 100], tolerance);
        assert_eq!(judged(ReduceOp::Sum, 200u8), []);
        assert_eq!(judged(ReduceOp::Max, 100), []);
        assert_eq!(judged(ReduceOp::Min, 99).len(), 1);
        let any = judge(DType::Bool, ReduceOp::Sum, &[1], &[1, 1], tolerance);
        assert_eq!(any, []);
    }

    #[test]
    fn nobody_who_found_nothing_raises_nothing() {
        assert_eq!(verdict("w", &[[0.0; RECORD], [0.0; RECORD]].concat()), None);
        assert_eq!(of_f32(&[], &[], 0.1), []);
    }
}
