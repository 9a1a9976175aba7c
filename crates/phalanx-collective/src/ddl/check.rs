//! Whether a result is what a baseline says, and the report if it is not.
//!
//! - JUDGE-1: a result passes where `|a - b| <= atol + rtol * |b|`; zeros therefore pass. NaN and infinities pass only where both sides have the same
//!   infinity. Integers are compared as integers.
//! - JUDGE-2: all ranks judge together: if one finds a fault, all raise it, with the same rank, index and values.

use phalanx_core::{DType, Rank, ReduceOp};
use serde::{Serialize, Serializer};
use std::{fmt, fs::File, io::Write, path::Path};

/// How far a result may be from the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub rtol: f64,
    /// Without one: a thousandth of `rtol` of the largest value of the baseline.
    pub atol: Option<f64>,
}

/// One element, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    fn is_finite(self) -> bool {
        !matches!(self, Number::Real(x) if !x.is_finite())
    }

    fn magnitude(self) -> f64 {
        match self {
            Number::Whole(x) => x.unsigned_abs() as f64,
            Number::Real(x) => x.abs(),
        }
    }

    /// How far two are apart; infinite for what is not a number.
    fn distance(self, other: Number) -> f64 {
        let off = match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => a.abs_diff(b) as f64,
            (Number::Real(a), Number::Real(b)) => (a - b).abs(),
            _ => f64::INFINITY,
        };
        if off.is_nan() { f64::INFINITY } else { off }
    }

    fn bits(self) -> i64 {
        match self {
            Number::Whole(x) => x,
            Number::Real(x) => x.to_bits() as i64,
        }
    }

    fn of_bits(dtype: DType, bits: i64) -> Number {
        if dtype.is_float() { Number::Real(f64::from_bits(bits as u64)) } else { Number::Whole(bits) }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(x) => fmt::Display::fmt(x, f),
            Number::Real(x) => fmt::Display::fmt(x, f),
        }
    }
}

/// JSON has no NaN and no infinities: these are written as words.
impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Number::Whole(x) => serializer.serialize_i64(*x),
            Number::Real(x) if x.is_finite() => serializer.serialize_f64(*x),
            Number::Real(x) => serializer.serialize_str(&x.to_string()),
        }
    }
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
    pub value: Number,
    pub baseline: Number,
    pub baseline_is: String,
    /// The rank whose input had a NaN or an infinity there.
    pub nan_from: Option<Rank>,
}

/// What the baseline is without MPI.
pub const GATHERED: &str = "all inputs gathered and reduced as f64 in rank order";

/// What a dump names instead of ways where MPI_Allreduce gave the result.
pub const BY_MPI: &str = "MPI_Allreduce";

/// What a result is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Against<'a> {
    /// The inputs of all ranks, one behind the other.
    Gathered(&'a [u8]),
    /// Another result.
    Result(&'a [u8]),
}

/// One element that is too far off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffElement {
    pub index: u64,
    pub value: Number,
    pub baseline: Number,
    /// The first rank whose input was not a finite number there, where all inputs are known.
    pub nan_from: Option<u32>,
}

/// The elements that do not pass, worst first, at most 100 of them.
pub fn judge(
    dtype: DType,
    op: ReduceOp,
    result: &[u8],
    against: Against<'_>,
    tolerance: Tolerance,
) -> Vec<OffElement> {
    let (n, bytes) = (result.len() / dtype.size(), result.len());
    if n == 0 {
        return Vec::new();
    }
    let (gathered, n_ranks) = match against {
        Against::Gathered(all) => (all, all.len() / bytes),
        Against::Result(_) => (&[][..], 0),
    };
    let input = |rank: usize, i: usize| number(dtype, &gathered[rank * bytes..], i);
    let baselines: Vec<Number> = match against {
        Against::Gathered(_) => {
            (0..n).map(|i| reduce(dtype, op, (0..n_ranks).map(|r| input(r, i)))).collect()
        }
        Against::Result(other) => (0..n).map(|i| number(dtype, other, i)).collect(),
    };
    let finite = baselines.iter().filter(|b| b.is_finite());
    let largest = finite.fold(0.0f64, |most, b| most.max(b.magnitude()));
    let atol = tolerance.atol.unwrap_or(tolerance.rtol * 1e-3 * largest);
    let passes = |a: Number, b: Number| match (a.is_finite(), b.is_finite()) {
        (true, true) => a.distance(b) <= atol + tolerance.rtol * b.magnitude(),
        // NaN is reported even where the baseline has it, too: it is what people look for.
        _ => a == b,
    };
    let mut faults: Vec<OffElement> = (0..n)
        .filter_map(|i| {
            let (value, baseline) = (number(dtype, result, i), baselines[i]);
            let nan_from = || (0..n_ranks).find(|&r| !input(r, i).is_finite()).map(|r| r as u32);
            (!passes(value, baseline)).then(|| OffElement {
                index: i as u64,
                value,
                baseline,
                nan_from: nan_from(),
            })
        })
        .collect();
    let off = |f: &OffElement| f.value.distance(f.baseline);
    faults.sort_by(|a, b| off(b).total_cmp(&off(a)).then(a.index.cmp(&b.index)));
    faults.truncate(100);
    faults
}

/// Whether an element of an input is a finite number.
pub fn is_finite(dtype: DType, input: &[u8], index: u64) -> bool {
    number(dtype, input, index as usize).is_finite()
}

/// A reduction in rank order. Integers wrap as their type does, so that they are exact.
fn reduce(dtype: DType, op: ReduceOp, inputs: impl Iterator<Item = Number> + Clone) -> Number {
    let n = inputs.clone().count();
    if dtype.is_float() {
        let reals = inputs.map(|x| if let Number::Real(x) = x { x } else { f64::NAN });
        let fold = |f: fn(f64, f64) -> f64| reals.clone().reduce(f).unwrap_or(0.0);
        return Number::Real(match op {
            ReduceOp::Sum => fold(|a, b| a + b),
            ReduceOp::Average => fold(|a, b| a + b) / n as f64,
            ReduceOp::Min => fold(|a, b| if a.is_nan() || a < b { a } else { b }),
            ReduceOp::Max => fold(|a, b| if a.is_nan() || a > b { a } else { b }),
            ReduceOp::Product => fold(|a, b| a * b),
        });
    }
    let wholes = inputs.map(|x| if let Number::Whole(x) = x { x } else { 0 });
    let whole = |f: fn(i64, i64) -> i64| wholes.clone().reduce(f).unwrap_or(0);
    let is_bool = dtype == DType::Bool;
    Number::Whole(match op {
        ReduceOp::Min => whole(i64::min),
        ReduceOp::Product if is_bool => whole(i64::min),
        ReduceOp::Max => whole(i64::max),
        ReduceOp::Sum | ReduceOp::Average if is_bool => whole(i64::max),
        ReduceOp::Sum => wrapped(dtype, whole(i64::wrapping_add)),
        ReduceOp::Product => wrapped(dtype, whole(i64::wrapping_mul)),
        ReduceOp::Average => whole(i64::wrapping_add) / n as i64,
    })
}

fn wrapped(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::U8 => i64::from(x as u8),
        DType::I8 => i64::from(x as i8),
        DType::U16 => i64::from(x as u16),
        DType::I16 => i64::from(x as i16),
        DType::I32 => i64::from(x as i32),
        _ => x,
    }
}

/// Element `i`.
fn number(dtype: DType, bytes: &[u8], i: usize) -> Number {
    let size = dtype.size();
    let b = &bytes[i * size..(i + 1) * size];
    let two = || [b[0], b[1]];
    let four = || [b[0], b[1], b[2], b[3]];
    let eight = || [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]];
    match dtype {
        DType::U8 | DType::Bool => Number::Whole(i64::from(b[0])),
        DType::I8 => Number::Whole(i64::from(b[0] as i8)),
        DType::U16 => Number::Whole(i64::from(u16::from_ne_bytes(two()))),
        DType::I16 => Number::Whole(i64::from(i16::from_ne_bytes(two()))),
        DType::I32 => Number::Whole(i64::from(i32::from_ne_bytes(four()))),
        DType::I64 => Number::Whole(i64::from_ne_bytes(eight())),
        DType::F16 => Number::Real(half::f16::from_ne_bytes(two()).to_f64()),
        DType::BF16 => Number::Real(half::bf16::from_ne_bytes(two()).to_f64()),
        DType::F32 => Number::Real(f64::from(f32::from_ne_bytes(four()))),
        DType::F64 => Number::Real(f64::from_ne_bytes(eight())),
    }
}

/// Numbers in a record that ranks gather.
pub const RECORD: usize = 4;

/// What a rank tells the others of its worst fault.
pub fn record(faults: &[OffElement]) -> [i64; RECORD] {
    faults.first().map_or([0; RECORD], |f| [1, f.index as i64, f.value.bits(), f.baseline.bits()])
}

/// The fault that all ranks raise: that of the lowest rank that has one (JUDGE-2). Whose input was not a finite number there, ranks tell each other
/// afterwards.
pub fn verdict(tensor: &str, dtype: DType, records: &[i64], baseline_is: &str) -> Option<CheckError> {
    let (rank, worst) = records.chunks(RECORD).enumerate().find(|(_, record)| record[0] != 0)?;
    Some(CheckError {
        rank: Rank::at(rank),
        tensor: tensor.to_string(),
        index: worst[1] as u64,
        value: Number::of_bits(dtype, worst[2]),
        baseline: Number::of_bits(dtype, worst[3]),
        baseline_is: baseline_is.to_string(),
        nan_from: None,
    })
}

/// The first rank that told of an input that was not a finite number.
pub fn blame(told: &[i64]) -> Option<Rank> {
    told.iter().position(|is_bad| *is_bad != 0).map(Rank::at)
}

/// What the dump says besides the faults.
#[derive(Clone, Debug, Serialize)]
pub struct DumpHead<'a> {
    pub rank: u32,
    pub tensor: &'a str,
    pub dtype: &'a str,
    pub op: &'a str,
    pub tiers: &'a str,
    /// How the result came about: one way for each tier.
    pub ways: &'a str,
    pub baseline: &'a str,
    pub rtol: f64,
    pub error: &'a str,
}

/// Writes `ddl.dumpRRR` in a folder: a line for the call and one for each of this rank's faults. Where that is not possible, a person is told: the
/// fault is raised all the same.
pub fn dump(folder: &Path, head: &DumpHead<'_>, faults: &[OffElement]) {
    let path = folder.join(format!("ddl.dump{:03}", head.rank));
    if let Err(why) = write(&path, head, faults) {
        phalanx_net::voice::warn(&format!("{} cannot be written: {why}", path.display()));
    }
}

fn write(path: &Path, head: &DumpHead<'_>, faults: &[OffElement]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    writeln!(file, "{}", serde_json::to_string(head)?)?;
    faults.iter().try_for_each(|fault| writeln!(file, "{}", serde_json::to_string(fault)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    fn of_f32(result: &[f32], inputs: &[f32], rtol: f64) -> Vec<OffElement> {
        let tolerance = Tolerance { rtol, atol: None };
        judge(DType::F32, ReduceOp::Sum, &bytes(result), Against::Gathered(&bytes(inputs)), tolerance)
    }

    #[test]
    fn what_is_near_passes_and_zeros_do_not_trip() {
        let inputs = [1.0, 2.0, 0.0, 3.0, 4.0, 0.0];
        assert_eq!(of_f32(&[4.0, 6.0, 0.0], &inputs, 0.0), []);
        assert_eq!(of_f32(&[4.3, 6.0, 0.0], &inputs, 0.17), [], "JUDGE-1");
        let faults = of_f32(&[4.0, 9.0, 1.0], &inputs, 0.17);
        assert_eq!(faults.iter().map(|f| f.index).collect::<Vec<_>>(), [1, 2], "worst first");
        assert_eq!((faults[0].value, faults[0].baseline), (Number::Real(9.0), Number::Real(6.0)));
    }

    #[test]
    fn a_nan_names_the_rank_whose_input_had_it() {
        let faults = of_f32(&[f32::NAN, 6.0], &[1.0, 2.0, f32::NAN, 4.0], 0.5);
        assert_eq!((faults.len(), faults[0].nan_from), (1, Some(1)));
        let records = [[0; RECORD], record(&faults)].concat();
        let mut error = verdict("w", DType::F32, &records, GATHERED).unwrap();
        error.nan_from = blame(&[0, 1]);
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
        let judged = |op, result| judge(DType::I8, op, &[result], Against::Gathered(&[100, 100]), tolerance);
        assert_eq!(judged(ReduceOp::Sum, 200u8), []);
        assert_eq!(judged(ReduceOp::Max, 100), []);
        assert_eq!(judged(ReduceOp::Min, 99).len(), 1);
        let any = judge(DType::Bool, ReduceOp::Sum, &[1], Against::Gathered(&[1, 1]), tolerance);
        assert_eq!(any, []);
    }

    /// JUDGE-1: beyond 2^53 neighbouring integers are one `f64`.
    #[test]
    fn large_integers_are_compared_as_integers() {
        let big = (1i64 << 53) + 1;
        let exact = Tolerance { rtol: 0.0, atol: None };
        let judged = |result: i64, inputs: [i64; 2]| {
            let inputs: Vec<u8> = inputs.iter().flat_map(|x| x.to_ne_bytes()).collect();
            judge(DType::I64, ReduceOp::Sum, &result.to_ne_bytes(), Against::Gathered(&inputs), exact)
        };
        assert_eq!(judged(big, [big - 4, 4]), []);
        let off = judged(big - 1, [big - 4, 4]);
        assert_eq!((off[0].value, off[0].baseline), (Number::Whole(big - 1), Number::Whole(big)));
        assert_eq!(judged(i64::MIN, [i64::MAX, 1]), [], "sums wrap");
        let error = verdict("w", DType::I64, &record(&off), "MPI").unwrap().to_string();
        assert!(
            error.contains("is 9007199254740992 on rank 0, but the baseline (MPI) is 9007199254740993"),
            "{error}"
        );
    }

    #[test]
    fn another_result_is_a_baseline_too() {
        let tolerance = Tolerance { rtol: 0.1, atol: None };
        let judged = |a: f32, b: f32| {
            let (a, b) = (bytes(&[a]), bytes(&[b]));
            judge(DType::F32, ReduceOp::Max, &a, Against::Result(&b), tolerance).len()
        };
        assert_eq!([judged(1.0, 1.05), judged(1.0, 2.0), judged(f32::NAN, f32::NAN)], [0, 1, 1], "JUDGE-1");
        assert_eq!([judged(f32::INFINITY, f32::INFINITY), judged(f32::INFINITY, 1.0)], [0, 1]);
        assert!(!is_finite(DType::F32, &bytes(&[0.0, f32::NAN]), 1) && is_finite(DType::I64, &[0; 8], 0));
    }

    #[test]
    fn a_dump_has_words_for_what_json_has_not() {
        let line = serde_json::to_string(&OffElement {
            index: 3,
            value: Number::Real(f64::NAN),
            baseline: Number::Real(2.0),
            nan_from: None,
        });
        assert_eq!(line.unwrap(), r#"{"index":3,"value":"NaN","baseline":2.0,"nan_from":null}"#);
    }

    #[test]
    fn nobody_who_found_nothing_raises_nothing() {
        assert_eq!(verdict("w", DType::F32, &[[0; RECORD], [0; RECORD]].concat(), GATHERED), None);
        assert_eq!(of_f32(&[], &[], 0.1), []);
    }
}
