//! The text of stall reports: which tensors wait, for which ranks, and what these ranks do.

use crate::engine::{
    spec::Name,
    whereabouts::{MOST_NAMES, Spot},
};
use phalanx_core::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who is missing what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StallReport {
    pub tensors: Vec<Missing>,
    /// The ranks that are missed somewhere.
    pub missed: Vec<Missed>,
}

/// A tensor that waits, and for whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    pub name: Name,
    pub ranks: Vec<Rank>,
    pub waited_ms: u64,
}

/// What is known of a rank that others wait for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Missed {
    pub rank: Rank,
    /// Whether its engine answered in time.
    pub answered: bool,
    /// What it waits for itself, in this set.
    pub waits_in: Vec<Name>,
    /// Its last operation, and how many milliseconds ago that ran.
    pub last: Option<(Name, u64)>,
    /// Whether its program can be asked where it is.
    pub says_where: bool,
    /// What it answered.
    pub spot: Option<Spot>,
}

impl StallReport {
    /// The longest wait in one line, for the log of every rank.
    pub fn line(&self) -> String {
        let Some(worst) = self.tensors.iter().max_by_key(|t| t.waited_ms) else { return String::new() };
        let Missing { name, ranks, waited_ms } = worst;
        let seconds = *waited_ms as f64 / 1e3;
        let mut line = format!("stalled: waiting for {} in {name} ({seconds:.1} s)", ranks_text(ranks));
        line += &seen_text(&self.missed, ranks);
        match self.tensors.len() {
            1 => {}
            2 => line += "; one other tensor waits, too",
            n => line += &format!("; {} other tensors wait, too", n - 1),
        }
        line
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stalled: some ranks have not submitted these tensors:")?;
        for Missing { name, ranks, waited_ms } in &self.tensors {
            let seconds = *waited_ms as f64 / 1e3;
            write!(f, "\n  {name}: waiting {seconds:.1} s for {}", ranks_text(ranks))?;
        }
        for missed in &self.missed {
            write!(f, "{missed}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.rank;
        match &self.last {
            Some((name, ago)) => {
                write!(f, "\n  rank {rank}: last ran {name}, {:.1} s ago", *ago as f64 / 1e3)?;
            }
            None if self.answered => write!(f, "\n  rank {rank}: has not run an operation yet")?,
            None => write!(f, "\n  rank {rank}: its engine did not answer")?,
        }
        if let Some(waits) = self.waits_text() {
            write!(f, "\n  rank {rank}: {waits}")?;
        }
        match self.where_text() {
            Some(text) => write!(f, "\n  rank {rank}: {text}")?,
            None => return Ok(()),
        }
        let outer = self.spot.iter().flat_map(|s| s.frames.iter().skip(1));
        outer.into_iter().try_for_each(|frame| write!(f, "\n    called from {frame}"))
    }
}

impl Missed {
    /// "waits in x, y and 2 more": it is in another collective than the others.
    fn waits_text(&self) -> Option<String> {
        let others = self.spot.iter().flat_map(|s| &s.elsewhere);
        let others = others.map(|(set, name)| format!("{name} of process set {set}"));
        let all: Vec<String> = self.waits_in.iter().map(ToString::to_string).chain(others).collect();
        if all.is_empty() {
            return None;
        }
        let more = all.len().saturating_sub(MOST_NAMES);
        let shown = all[..all.len() - more].join(", ");
        Some(if more > 0 { format!("waits in {shown} and {more} more") } else { format!("waits in {shown}") })
    }

    fn where_text(&self) -> Option<String> {
        match (&self.spot, self.says_where) {
            (Some(spot), _) => spot.frames.first().map(|frame| format!("is at {frame}")),
            (None, true) => Some("did not say where it is: its Python is inside native code".into()),
            (None, false) => None,
        }
    }
}

/// What these ranks do instead, as the end of a sentence.
pub fn seen_text(missed: &[Missed], ranks: &[Rank]) -> String {
    let said = |m: &Missed| {
        let parts: Vec<String> = [m.waits_text(), m.where_text()].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("; rank {} {}", m.rank, parts.join(" and ")))
    };
    missed.iter().filter(|m| ranks.contains(&m.rank)).take(MOST_NAMES).filter_map(said).collect()
}

/// "rank 3" or "ranks 1, 2".
pub fn ranks_text(ranks: &[Rank]) -> String {
    let list = ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list}") } else { format!("ranks {list}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::whereabouts::Frame;

    fn frame(line: u32, function: &str) -> Frame {
        Frame { file: "train.py".into(), line, function: function.into() }
    }

    fn missed(rank: u32) -> Missed {
        Missed {
            rank: Rank(rank),
            answered: true,
            waits_in: Vec::new(),
            last: None,
            says_where: true,
            spot: None,
        }
    }

    #[test]
    fn a_report_says_who_what_how_long_and_where() {
        let spot =
            Spot { frames: vec![frame(12, "step"), frame(40, "main")], elsewhere: vec![(2, "z".into())] };
        let waits_in = vec!["allgather.x".into()];
        let busy = Missed { waits_in, last: Some(("a".into(), 900)), spot: Some(spot), ..missed(1) };
        let native = missed(2);
        let gone = Missed { answered: false, says_where: false, ..missed(3) };
        let ranks = vec![Rank(1), Rank(2), Rank(3)];
        let late = Missing { name: "allreduce.x".into(), ranks, waited_ms: 10_250 };
        let report = StallReport { tensors: vec![late], missed: vec![busy, native, gone] };
        assert_eq!(
            report.to_string(),
            "stalled: some ranks have not submitted these tensors:\n  \
             allreduce.x: waiting 10.2 s for ranks 1, 2, 3\n  \
             rank 1: last ran a, 0.9 s ago\n  \
             rank 1: waits in allgather.x, z of process set 2\n  \
             rank 1: is at train.py:12 in step\n    \
             called from train.py:40 in main\n  \
             rank 2: has not run an operation yet\n  \
             rank 2: did not say where it is: its Python is inside native code\n  \
             rank 3: its engine did not answer"
        );
        assert_eq!(
            report.line(),
            "stalled: waiting for ranks 1, 2, 3 in allreduce.x (10.2 s); rank 1 waits in allgather.x, z of process set 2 and is at \
             train.py:12 in step; rank 2 did not say where it is: its Python is inside native code"
        );
    }

    #[test]
    fn a_line_counts_what_it_leaves_out() {
        let wait = |name: &str, waited_ms| Missing { name: name.into(), ranks: vec![Rank(1)], waited_ms };
        let waits_in = ["a", "b", "c", "d", "e"].map(Into::into).to_vec();
        let tensors = vec![wait("x", 1000), wait("y", 2000), wait("z", 500)];
        let report =
            StallReport { tensors, missed: vec![Missed { waits_in, says_where: false, ..missed(1) }] };
        assert_eq!(
            report.line(),
            "stalled: waiting for rank 1 in y (2.0 s); rank 1 waits in a, b, c and 2 more; 2 other tensors wait, too"
        );
    }
}
