//! Computes the offsets between the ranks' clocks.
//!
//! - CLOCK-1: after the correction neither the first rank nor the other one leaves an operation before both have submitted it, if an offset that
//!   does not change with time can do that.

use super::read::{Trace, TracedOperation};

/// For each trace, how many microseconds its clock is ahead of the first one's; None where nothing tells.
pub fn offsets(traces: &[Trace]) -> Vec<Option<f64>> {
    let Some(first) = traces.first() else { return Vec::new() };
    traces
        .iter()
        .map(|trace| if trace.rank == first.rank { Some(0.0) } else { offset(first, trace) })
        .collect()
}

/// A time of this rank on the first rank's clock, in microseconds since the first rank's timeline began.
pub fn aligned(first: &Trace, trace: &Trace, offset_us: Option<f64>, at: f64) -> f64 {
    begin(first, trace) + at - offset_us.unwrap_or(0.0)
}

/// When its timeline began, by its own clock.
fn begin(first: &Trace, trace: &Trace) -> f64 {
    // Whole numbers first: microseconds since 1970 leave no room for fractions.
    (trace.epoch_us - first.epoch_us) as f64
}

/// The median difference of the ends of the same operations: all ranks leave one at nearly the same time. Then within what cause and effect
/// allow: nobody leaves before everybody has come.
fn offset(first: &Trace, trace: &Trace) -> Option<f64> {
    let pairs: Vec<(&TracedOperation, &TracedOperation)> =
        first.operations.iter().filter_map(|(key, ours)| Some((ours, trace.operations.get(key)?))).collect();
    let begin = begin(first, trace);
    let together = |kind: &str| !matches!(kind, "BROADCAST" | "REDUCESCATTER");
    let differences = |all: bool| -> Vec<f64> {
        let some = pairs.iter().filter(|(ours, _)| all || together(&ours.kind));
        some.map(|(ours, theirs)| begin + theirs.ended - ours.ended).collect()
    };
    let middle = median(differences(false)).or_else(|| median(differences(true)))?;
    let least = pairs.iter().filter_map(|(ours, theirs)| Some(begin + theirs.submitted? - ours.ended));
    let most = pairs.iter().filter_map(|(ours, theirs)| Some(begin + theirs.ended - ours.submitted?));
    let (least, most) = (least.fold(f64::MIN, f64::max), most.fold(f64::MAX, f64::min));
    // Clocks that drift may leave no room; the median is the best guess then.
    Some(if least <= most { middle.clamp(least, most) } else { middle })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len().is_multiple_of(2) { (values[values.len() / 2 - 1] + upper) / 2.0 } else { upper })
}
