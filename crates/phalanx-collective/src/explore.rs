//! Which way of each tier is fastest for each size: tried in the first calls, then kept.
//!
//! - EXPLORE-1: which ways a call takes depends only on the calls before it, and what is kept on times that all ranks agreed on. So all ranks take
//!   the same ways in the same call.
//!
//! Tiers are tried one at a time: each candidate differs from the first one in one tier, and what is kept is the best of each. Pure: [`run`] measures.

mod run;
pub(crate) mod saved;

pub use run::ExploredWays;
pub(crate) use run::Exploring;

use crate::plan::step::CollectiveOp;
use phalanx_core::{Tiers, Topology, Way};
use saved::Entry;
use std::{collections::BTreeMap, fmt, time::Duration};

/// The first round finds cold links and is not counted.
const WARM: usize = 1;
/// Calls of each candidate that are counted; the best of them stands for it.
const TIMED: usize = 3;
/// Another way than the first must be better by this much: the rest is noise.
const MARGIN: f64 = 0.02;

/// Sizes are explored by the power of two above them.
pub(crate) fn bucket(bytes: u64) -> u64 {
    bytes.max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}

/// Ways to try. The first candidate of a list differs from none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub ways: Vec<Way>,
    /// The tiers in which it differs from the first one.
    pub tiers: std::ops::Range<usize>,
}

/// How many of the first tiers are together the ranks of every host.
fn n_inside(tiers: &Tiers, topology: &Topology) -> usize {
    let Some(each) = topology.even() else { return 0 };
    let dims = tiers.dims();
    (1..=dims.len()).rev().find(|&k| dims[..k].iter().product::<u32>() == each).unwrap_or(0)
}

/// The ways that are tried first: the arena inside the hosts, rings between them.
pub fn first_ways(tiers: &Tiers, topology: &Topology) -> Vec<Way> {
    let inside = n_inside(tiers, topology);
    (0..tiers.dims().len()).map(|tier| if tier < inside { Way::Arena } else { Way::Ring }).collect()
}

/// What there is to try. Ways that move data exactly as another one does are left out.
fn candidates(tiers: &Tiers, topology: &Topology) -> Vec<Candidate> {
    let (dims, inside) = (tiers.dims(), n_inside(tiers, topology));
    let first = first_ways(tiers, topology);
    let mut all = vec![Candidate { ways: first.clone(), tiers: 0..0 }];
    let mut push = |over: std::ops::Range<usize>, way: Way| {
        let mut ways = first.clone();
        ways[over.clone()].fill(way);
        all.push(Candidate { ways, tiers: over });
    };
    // The arena stands for all tiers inside a host, so these are left together.
    if dims[..inside].iter().product::<u32>() > 1 {
        [Way::Ring, Way::Halving, Way::Direct].into_iter().for_each(|way| push(0..inside, way));
    }
    for (tier, n) in dims.iter().enumerate().skip(inside).filter(|(_, n)| **n > 2) {
        push(tier..tier + 1, Way::Direct);
        if n.is_power_of_two() {
            push(tier..tier + 1, Way::Halving);
        }
    }
    all
}

/// How far one size is.
#[derive(Clone, Debug)]
enum Progress {
    Trying { candidates: Vec<Candidate>, n_calls: usize, times: Vec<f64> },
    Kept { ways: Vec<Way>, us: f64 },
}

/// What was found for one size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub op: CollectiveOp,
    pub bytes: u64,
    pub ways: Vec<Way>,
    /// Each candidate and its best time, in microseconds.
    pub tried: Vec<(Vec<Way>, f64)>,
}

/// Explores one shape on one world.
#[derive(Clone, Debug)]
pub(crate) struct Explorer {
    tiers: Tiers,
    candidates: Vec<Candidate>,
    sizes: BTreeMap<(&'static str, u64), Progress>,
}

impl Explorer {
    /// What an earlier run found is kept without trying.
    pub fn new(tiers: &Tiers, topology: &Topology, known: &[Entry]) -> Explorer {
        let sizes = known.iter().filter(|entry| entry.tiers == *tiers).map(|entry| {
            let kept = Progress::Kept { ways: entry.ways.clone(), us: entry.us };
            ((entry.op.name(), entry.bytes), kept)
        });
        let sizes = sizes.collect();
        Explorer { tiers: tiers.clone(), candidates: candidates(tiers, topology), sizes }
    }

    /// Begins a size, if it was not seen before. `label` tells candidates apart: those that would run alike have the same one.
    pub fn meet<L: PartialEq>(&mut self, op: CollectiveOp, bytes: u64, label: impl Fn(&[Way]) -> L) -> bool {
        if self.sizes.contains_key(&(op.name(), bucket(bytes))) {
            return false;
        }
        let mut distinct: Vec<(L, Candidate)> = Vec::new();
        for candidate in &self.candidates {
            let label = label(&candidate.ways);
            if distinct.iter().all(|(known, _)| *known != label) {
                distinct.push((label, candidate.clone()));
            }
        }
        let candidates: Vec<Candidate> = distinct.into_iter().map(|(_, candidate)| candidate).collect();
        let progress = match &candidates[..] {
            // One way is no choice.
            [only] => Progress::Kept { ways: only.ways.clone(), us: 0.0 },
            _ => Progress::Trying { candidates, n_calls: 0, times: Vec::new() },
        };
        self.sizes.insert((op.name(), bucket(bytes)), progress);
        true
    }

    /// The ways of the next call of this size, and a number that no other ways of this size have.
    pub fn ways(&self, op: CollectiveOp, bytes: u64) -> Option<(u16, &[Way])> {
        match self.sizes.get(&(op.name(), bucket(bytes)))? {
            Progress::Kept { ways, .. } => Some((u16::MAX, ways)),
            Progress::Trying { candidates, n_calls, .. } => {
                let i = n_calls % candidates.len();
                Some((i as u16, &candidates[i].ways))
            }
        }
    }

    /// The ways of every size that is not tried any more; none while one still is, and before the first.
    pub fn kept(&self) -> Option<Vec<&[Way]>> {
        let kept = self.sizes.values().map(|progress| match progress {
            Progress::Kept { ways, .. } => Some(&ways[..]),
            Progress::Trying { .. } => None,
        });
        kept.collect::<Option<Vec<_>>>().filter(|kept| !kept.is_empty())
    }

    pub fn is_trying(&self, op: CollectiveOp, bytes: u64) -> bool {
        matches!(self.sizes.get(&(op.name(), bucket(bytes))), Some(Progress::Trying { .. }))
    }

    /// A call of this size has succeeded. With the last one, the times on which ranks have to agree: the largest of all ranks for each.
    pub fn tried(&mut self, op: CollectiveOp, bytes: u64, took: Duration) -> Option<Vec<f64>> {
        let Some(Progress::Trying { candidates, n_calls, times }) =
            self.sizes.get_mut(&(op.name(), bucket(bytes)))
        else {
            return None;
        };
        if *n_calls >= WARM * candidates.len() {
            times.push(took.as_secs_f64() * 1e6);
        }
        *n_calls += 1;
        (*n_calls == (WARM + TIMED) * candidates.len()).then(|| times.clone())
    }

    /// Keeps the best way of each tier.
    pub fn settle(&mut self, op: CollectiveOp, bytes: u64, agreed: &[f64]) -> Option<Found> {
        let Progress::Trying { candidates, .. } = self.sizes.get(&(op.name(), bucket(bytes)))? else {
            return None;
        };
        let n = candidates.len();
        let best = |i: usize| agreed.iter().skip(i).step_by(n).copied().fold(f64::INFINITY, f64::min);
        let tried: Vec<(Vec<Way>, f64)> = (0..n).map(|i| (candidates[i].ways.clone(), best(i))).collect();
        let enough = tried[0].1 * (1.0 - MARGIN);
        let mut ways = candidates[0].ways.clone();
        let mut won = vec![enough; ways.len()];
        for (candidate, (_, us)) in candidates.iter().zip(&tried).skip(1) {
            let over = candidate.tiers.clone();
            if over.clone().all(|tier| *us < won[tier]) {
                won[over.clone()].fill(*us);
                ways[over.clone()].copy_from_slice(&candidate.ways[over]);
            }
        }
        let us = tried.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        let key = (op.name(), bucket(bytes));
        self.sizes.insert(key, Progress::Kept { ways: ways.clone(), us });
        Some(Found { op, bytes: key.1, ways, tried })
    }

    /// What is known so far, for the next run.
    pub fn known(&self) -> Vec<Entry> {
        let known = self.sizes.iter().filter_map(|(&(op, bytes), progress)| match progress {
            // A size with one way was not measured.
            Progress::Kept { ways, us } if *us > 0.0 => {
                let op = CollectiveOp::ALL.into_iter().find(|known| known.name() == op)?;
                Some(Entry { tiers: self.tiers.clone(), op, bytes, ways: ways.clone(), us: *us })
            }
            _ => None,
        });
        known.collect()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tried: Vec<String> =
            self.tried.iter().map(|(ways, us)| format!("{} {us:.1} us", Way::show(ways))).collect();
        let (op, bytes, kept) = (self.op, self.bytes, Way::show(&self.ways));
        write!(f, "explored {op} up to {bytes} bytes: {kept} is kept; tried {}", tried.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: CollectiveOp = CollectiveOp::Allreduce;

    fn explorer(shape: &str, sizes: &[u32], known: &[Entry]) -> Explorer {
        Explorer::new(&shape.parse().unwrap(), &Topology::of_sizes(sizes), known)
    }

    fn shown(shape: &str, sizes: &[u32]) -> Vec<String> {
        explorer(shape, sizes, &[]).candidates.iter().map(|c| Way::show(&c.ways)).collect()
    }

    /// Calls until something is kept; `us` says how long each ways take.
    fn explored(explorer: &mut Explorer, bytes: u64, us: impl Fn(&str) -> f64) -> (Found, Vec<String>) {
        explorer.meet(OP, bytes, |ways| ways.to_vec());
        let mut taken = Vec::new();
        loop {
            let ways = Way::show(explorer.ways(OP, bytes).unwrap().1);
            taken.push(ways.clone());
            let took = Duration::from_secs_f64(us(&ways) / 1e6);
            if let Some(times) = explorer.tried(OP, bytes, took) {
                return (explorer.settle(OP, bytes, &times).unwrap(), taken);
            }
        }
    }

    #[test]
    fn each_tier_is_tried_with_the_ways_that_differ() {
        let of_hosts = ["arena,ring", "ring,ring", "halving,ring", "direct,ring", "arena,direct"];
        assert_eq!(shown("4x3", &[4, 4, 4]), of_hosts);
        assert_eq!(shown("2x6", &[4, 4, 4]), ["ring,ring", "ring,direct"], "two ranks have one way");
        assert_eq!(
            shown("2x2x4", &[4; 4]),
            [
                "arena,arena,ring",
                "ring,ring,ring",
                "halving,halving,ring",
                "direct,direct,ring",
                "arena,arena,direct",
                "arena,arena,halving"
            ]
        );
        assert_eq!(shown("1x3", &[1, 1, 1]), ["arena,ring", "arena,direct"]);
    }

    #[test]
    fn calls_take_candidates_in_turn_and_the_best_of_each_tier_is_kept() {
        let mut explorer = explorer("4x3", &[4, 4, 4], &[]);
        let (found, taken) = explored(&mut explorer, 1000, |ways| match ways {
            "direct,ring" => 7.0,
            "arena,direct" => 8.0,
            "arena,ring" => 10.0,
            _ => 9.0,
        });
        assert_eq!((found.bytes, Way::show(&found.ways).as_str()), (1024, "direct,direct"));
        assert_eq!(taken.len(), 5 * (WARM + TIMED));
        assert!(taken.chunks(5).all(|round| round == &taken[..5]), "EXPLORE-1: by the number of calls");
        assert_eq!(explorer.ways(OP, 700).unwrap(), (u16::MAX, &found.ways[..]), "the same size");
        assert_eq!(explorer.kept(), Some(vec![&found.ways[..]]));
        explorer.meet(OP, 5000, |ways| ways.to_vec());
        assert_eq!(explorer.kept(), None, "another size is tried");
        assert!(explorer.ways(OP, 1025).is_none() && !explorer.is_trying(OP, 600));
        assert!(
            found.to_string().starts_with(
                "explored allreduce up to 1024 bytes: direct,direct is kept; tried arena,ring 10.0 us"
            ),
            "{found}"
        );
    }

    #[test]
    fn noise_does_not_replace_the_first_ways() {
        let mut explorer = explorer("4x3", &[4, 4, 4], &[]);
        let us = |ways: &str| if ways == "arena,ring" { 100.0 } else { 99.0 };
        assert_eq!(Way::show(&explored(&mut explorer, 8, us).0.ways), "arena,ring");
    }

    #[test]
    fn ways_that_run_alike_are_tried_once_and_one_way_is_no_choice() {
        let mut explorer = explorer("4x3", &[4, 4, 4], &[]);
        explorer.meet(OP, 64, |ways| ways[0] == Way::Arena);
        assert!(explorer.is_trying(OP, 64));
        explorer.meet(OP, 1 << 20, |_| "same");
        assert!(!explorer.is_trying(OP, 1 << 20));
        assert_eq!(explorer.ways(OP, 1 << 20).unwrap().1, [Way::Arena, Way::Ring]);
        assert_eq!(explorer.known(), [], "what was not measured is not saved");
    }

    #[test]
    fn what_an_earlier_run_found_is_kept_without_trying() {
        let (mut first, us) = (explorer("4x3", &[4, 4, 4], &[]), |ways: &str| ways.len() as f64);
        let found = explored(&mut first, 4096, us).0;
        let mut second = explorer("4x3", &[4, 4, 4], &first.known());
        second.meet(OP, 4000, |ways| ways.to_vec());
        assert_eq!(second.ways(OP, 4000).unwrap().1, found.ways);
        assert!(!second.is_trying(OP, 4000));
        let mut other = explorer("2x6", &[4, 4, 4], &first.known());
        other.meet(OP, 4000, |ways| ways.to_vec());
        assert!(other.is_trying(OP, 4000), "another shape");
    }
}
