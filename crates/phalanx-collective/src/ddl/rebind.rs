//! `-rebind_iter N`: a rank that is slow in three checks running moves to other cores.
//!
//! - REBIND-1: a rank is slow in a check if all others waited for it, for a tenth of the time or more; what happens between two checks decides nothing.
//! - REBIND-2: a rank moves to as many cores as it had, the least busy ones among those that it did not have and may use.

use super::report::{Iterations, Turn};
use phalanx_core::Rank;
use phalanx_net::cores;
use std::{collections::BTreeMap, time::Instant};

/// Checks in a row after which a rank moves.
const IN_A_ROW: u32 = 3;
/// The part of the time that others must have waited for it.
const SHARE: f64 = 0.1;

/// Who was slow lately. The same on all ranks: it sees what they gathered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlowStreak {
    rank: Option<Rank>,
    n: u32,
}

impl SlowStreak {
    /// One check: each rank's time in calls, and how long the iterations took. The rank that has to move, if there is one.
    pub fn check(&mut self, waits: &[f64], elapsed: f64) -> Option<Rank> {
        let slow = slow(waits, elapsed);
        self.n = if slow.is_some() && slow == self.rank { self.n + 1 } else { u32::from(slow.is_some()) };
        self.rank = slow;
        if self.n < IN_A_ROW {
            return None;
        }
        *self = SlowStreak::default();
        slow
    }
}

/// REBIND-1.
fn slow(waits: &[f64], elapsed: f64) -> Option<Rank> {
    let last = (0..waits.len()).min_by(|a, b| waits[*a].total_cmp(&waits[*b]))?;
    let next = waits.iter().enumerate().filter(|(rank, _)| *rank != last).map(|(_, w)| *w);
    let next = next.fold(f64::INFINITY, f64::min);
    (next.is_finite() && next - waits[last] > SHARE * elapsed).then_some(Rank::at(last))
}

/// REBIND-2. The error says why there is nowhere to go.
fn target(own: &[u32], movable: &[u32], work: &BTreeMap<u32, u64>) -> Result<Vec<u32>, &'static str> {
    let mut others: Vec<u32> = movable.iter().copied().filter(|core| !own.contains(core)).collect();
    if others.is_empty() && own.len() > 1 {
        return Err(
            "it may use all cores already; bind ranks with `phalanx run --bind`, or see what else its host runs",
        );
    }
    if others.is_empty() {
        return Err("it may use no other core; start ranks with `phalanx run --bind`, or not bound");
    }
    others.sort_by_key(|core| (work.get(core).copied().unwrap_or(0), *core));
    others.truncate(own.len());
    others.sort_unstable();
    Ok(others)
}

/// Checks this process every N iterations.
#[derive(Debug)]
pub struct Rebinder {
    iterations: Iterations,
    streak: SlowStreak,
    movable: Vec<u32>,
    busy: BTreeMap<u32, u64>,
}

impl Rebinder {
    /// Every N iterations; 0: never.
    pub fn new(every: u32) -> Rebinder {
        let (movable, busy) = if every > 0 { (cores::movable(), cores::busy()) } else { Default::default() };
        Rebinder { iterations: Iterations::new(every), streak: SlowStreak::default(), movable, busy }
    }

    /// A call with this tensor begins.
    pub fn begin(&mut self, tensor: &str) -> Instant {
        self.iterations.begin(tensor)
    }

    /// It has ended. What this rank tells the others, if it is time for a check.
    pub fn end(&mut self, began: Instant) -> Option<Vec<f64>> {
        self.iterations.end(began);
        let is_due = self.iterations.take_turn() == Turn::Due;
        is_due
            .then(|| vec![self.iterations.in_calls().as_secs_f64(), self.iterations.elapsed().as_secs_f64()])
    }

    /// What all ranks told. If this rank has to move, it does, and the text says so.
    pub fn check(&mut self, me: Rank, all: &[f64]) -> Option<String> {
        self.iterations.reset();
        let waits: Vec<f64> = all.chunks(2).map(|words| words[0]).collect();
        let elapsed = all.chunks(2).map(|words| words[1]).fold(0.0, f64::max);
        let busy = cores::busy();
        let since = |(core, ticks): (&u32, &u64)| {
            (*core, ticks.saturating_sub(self.busy.get(core).copied().unwrap_or(0)))
        };
        let work: BTreeMap<u32, u64> = busy.iter().map(since).collect();
        self.busy = busy;
        if self.streak.check(&waits, elapsed) != Some(me) {
            return None;
        }
        let own = cores::allowed();
        let what = format!("rank {me} was slow in {IN_A_ROW} checks running");
        let moved = target(&own, &self.movable, &work).map_err(str::to_string).and_then(|cores| {
            cores::move_to(&cores).map_err(|why| format!("the system refused to move it: {why}"))?;
            Ok(cores)
        });
        Some(match moved {
            Ok(cores) => format!("{what} and moves from {} to {}", named(&own), named(&cores)),
            Err(why) => format!("{what} and stays where it is: {why}"),
        })
    }
}

fn named(cores: &[u32]) -> String {
    let numbers: Vec<String> = cores.iter().map(u32::to_string).collect();
    format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, numbers.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_checks_in_a_row_move_a_rank() {
        let mut streak = SlowStreak::default();
        let slow_2 = [5.0, 5.5, 1.0];
        let says: Vec<Option<Rank>> = (0..7).map(|_| streak.check(&slow_2, 10.0)).collect();
        let moved = [false, false, true, false, false, true, false];
        assert_eq!(says, moved.map(|moves| moves.then_some(Rank(2))), "REBIND-1");
        let mut broken = SlowStreak::default();
        for waits in [[5.0, 5.0, 1.0], [5.0, 5.0, 1.0], [1.0, 5.0, 5.0], [5.0, 5.0, 1.0], [5.0, 5.0, 4.5]] {
            assert_eq!(broken.check(&waits, 10.0), None, "another rank, or none, begins anew");
        }
        assert_eq!(SlowStreak::default().check(&[0.0], 1.0), None, "alone nobody waits");
    }

    #[test]
    fn two_ranks_that_are_late_together_are_not_one_slow_rank() {
        assert_eq!(slow(&[5.0, 1.0, 1.2], 10.0), None);
        assert_eq!(slow(&[5.0, 1.0, 2.2], 10.0), Some(Rank(1)));
    }

    #[test]
    fn the_least_busy_cores_that_it_does_not_have_are_taken() {
        let work = BTreeMap::from([(0, 900), (1, 50), (2, 10), (3, 10)]);
        assert_eq!(target(&[0], &[0, 1, 2, 3], &work), Ok(vec![2]), "REBIND-2");
        assert_eq!(target(&[0, 3], &[0, 1, 2, 3], &work), Ok(vec![1, 2]));
        assert_eq!(target(&[1, 2, 3], &[0, 1, 2, 3], &work), Ok(vec![0]), "fewer, where there are no more");
        assert!(target(&[0, 1], &[0, 1], &work).unwrap_err().starts_with("it may use all cores already"));
        assert!(target(&[0], &[0], &work).unwrap_err().starts_with("it may use no other core"));
    }
}
