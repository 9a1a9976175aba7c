//! The root of the tree decides the order: what runs, what fails, and when a sequence has repeated often enough to be replayed.

use super::{
    Negotiator, Output,
    fuse::{self, FusionLimits},
    message::{Agreed, Announced, EngineEnd, Item, Merged, OpFault, Response},
};
use crate::engine::spec::{Kind, Name};
use phalanx_core::Rank;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The most batches that may be under way here before more are let go: what completes meanwhile travels together.
const MOST_RUNNING: u64 = 2;
/// Longer sequences are not looked at for repetition.
const LONGEST_CYCLE: usize = 8192;

/// An operation that may run.
#[derive(Debug)]
struct Ready {
    agreed: Arc<Agreed>,
    /// The table in which it has a number.
    table: u32,
    /// Its number, if every rank has it under one.
    known: Option<u32>,
    /// The number that it gets.
    remember: Option<u32>,
}

#[derive(Debug)]
pub struct Root {
    pub limits: FusionLimits,
    /// Submitted by all, not judged yet.
    pub complete: Vec<Announced>,
    ready: Vec<Ready>,
    /// In the order in which they were heard of.
    pub joins: Vec<usize>,
    pub leaving: Option<Rank>,
    /// A verdict on ranks that kept others waiting.
    pub abort: Option<(Rank, EngineEnd)>,
    pub running: u64,
    /// Values to change at the next opportunity.
    pub tune: Option<super::Tuning>,
    /// Operations of the round that is going on, with the phase in which this rank submitted each.
    cycle: Vec<(Name, u64)>,
    names: BTreeSet<Name>,
    before: BTreeSet<Name>,
    order: Vec<(Name, u64)>,
    /// Rounds in a row that had the same operations, and how many it takes to believe it. A replay that ended before its first round did
    /// makes it harder: the program only looks as if it repeated.
    n_alike: u32,
    n_wanted: u32,
    /// While replaying: phases of the recording, phases so far of the round that is going on, the last one, and rounds in a row with fewer.
    recorded_phases: u32,
    round_phases: u32,
    last_phase: u64,
    n_looser: u32,
}

/// Rounds in which the program waited less often than when it was recorded; after them it is recorded again, because more can travel together.
const LOOSER_ROUNDS: u32 = 8;

/// However often replays have failed, they are tried again after this many rounds.
const MOST_WANTED: u32 = 1 << 12;

impl Root {
    pub fn new(limits: FusionLimits) -> Root {
        Root {
            limits,
            complete: Vec::new(),
            ready: Vec::new(),
            joins: Vec::new(),
            leaving: None,
            abort: None,
            running: 0,
            tune: None,
            cycle: Vec::new(),
            names: BTreeSet::new(),
            before: BTreeSet::new(),
            order: Vec::new(),
            n_alike: 0,
            n_wanted: 1,
            recorded_phases: 0,
            round_phases: 0,
            last_phase: 0,
            n_looser: 0,
        }
    }

    /// What is asked for is asked again in the next generation.
    pub fn forget(&mut self) {
        let phases: BTreeSet<u64> = self.order.iter().map(|(_, phase)| *phase).collect();
        (self.recorded_phases, self.round_phases, self.n_looser) = (phases.len() as u32, 0, 0);
        self.complete.clear();
        self.ready.clear();
        self.joins.clear();
        self.leaving = None;
        self.running = 0;
        self.restart_cycle();
    }

    fn restart_cycle(&mut self) {
        self.cycle.clear();
        self.names.clear();
        self.before.clear();
        self.n_alike = 0;
    }

    /// While replaying, the program submits something in this phase.
    pub fn see_phase(&mut self, phase: u64) {
        self.round_phases += u32::from(std::mem::replace(&mut self.last_phase, phase) != phase);
    }

    /// While replaying, a round is over; true if it is time to record again.
    pub fn end_round(&mut self) -> bool {
        let looser = std::mem::take(&mut self.round_phases).max(1) < self.recorded_phases;
        self.n_looser = if looser { self.n_looser + 1 } else { 0 };
        self.n_looser >= LOOSER_ROUNDS
    }

    /// A replay is over, after this many rounds.
    pub fn learn(&mut self, n_rounds: u64) {
        self.n_wanted = if n_rounds > 0 { 1 } else { (self.n_wanted * 4).min(MOST_WANTED) };
    }

    /// Takes note of the next operation; true if it begins a round that has the same operations as the one before.
    fn closes_cycle(&mut self, agreed: &Agreed) -> bool {
        if !self.names.contains(&agreed.name) {
            return false;
        }
        self.n_alike = if self.names == self.before { self.n_alike + 1 } else { 0 };
        self.before = std::mem::take(&mut self.names);
        self.order = std::mem::take(&mut self.cycle);
        self.n_alike >= self.n_wanted
    }

    fn note(&mut self, agreed: &Agreed, phase: u64) {
        let odd = !agreed.absent.is_empty() || matches!(agreed.spec.kind, Kind::AddSet | Kind::RemoveSet);
        if odd || self.cycle.len() >= LONGEST_CYCLE {
            return self.restart_cycle();
        }
        self.cycle.push((agreed.name.clone(), phase));
        self.names.insert(agreed.name.clone());
    }
}

impl Negotiator {
    /// At the root: answers what can be answered.
    pub(super) fn respond(&mut self, now_us: u64, out: &mut Vec<Output>) {
        if self.root.is_none() || self.replay.is_some() {
            return;
        }
        let mut responses = self.judge();
        // After judging: what is complete may speak of the table before this one.
        if self.table.overflowed() {
            self.obey(now_us, vec![Response::NewTable], out);
        }
        let replay = self.dispatch(&mut responses);
        let n = self.tree.n;
        let root = self.root.as_mut().expect("checked above");
        if let Some(tuning) = root.tune.take() {
            root.limits.fusion_bytes = tuning.fusion_bytes;
            responses.push(Response::Tune(tuning));
        }
        if root.joins.len() == n && root.ready.is_empty() {
            let last = root.joins.last().copied().expect("a set has members") as u32;
            root.joins.clear();
            root.restart_cycle();
            responses.push(Response::AllJoined { last });
        }
        if let Some((rank, why)) = root.abort.take() {
            responses.push(Response::Over { rank, why });
        } else if let Some(rank) = root.leaving.filter(|_| root.ready.is_empty()) {
            responses.push(Response::Over { rank, why: EngineEnd::ShutDown });
        } else if let Some(batches) = replay {
            responses.push(Response::Replay { batches });
        }
        if !responses.is_empty() {
            self.obey(now_us, responses, out);
        }
    }

    /// Sorts what is complete into what may run and what fails.
    fn judge(&mut self) -> Vec<Response> {
        let mut failed = Vec::new();
        let complete = std::mem::take(&mut self.root.as_mut().expect("only at the root").complete);
        for whole in complete {
            let ready = match whole {
                Announced::Known { table, id } => {
                    let agreed = self.table.resolve(table, id).expect("TABLE-2").clone();
                    Ready { agreed, table, known: Some(id), remember: None }
                }
                Announced::Full(merged) => match self.fault_of(&merged) {
                    Some(fault) => {
                        failed.push(Response::Fail { name: merged.name, fault });
                        continue;
                    }
                    None => self.accept(*merged),
                },
            };
            self.root.as_mut().expect("only at the root").ready.push(ready);
        }
        failed
    }

    fn fault_of(&self, merged: &Merged) -> Option<OpFault> {
        if let Some(conflict) = &merged.conflict {
            return Some(OpFault::Conflict(conflict.clone()));
        }
        let spec = &merged.spec;
        if spec.kind.is_uneven() && spec.forms.iter().any(|f| f.shape.is_empty()) {
            let rank = self.rank_at(merged.first as usize);
            return Some(OpFault::NoRows { rank, kind: spec.kind.to_string() });
        }
        (spec.kind == Kind::Broadcast && merged.absent.contains(&spec.root))
            .then(|| OpFault::RootJoined { root: self.rank_at(spec.root as usize) })
    }

    fn accept(&mut self, merged: Merged) -> Ready {
        let Merged { name, spec, rows, absent, .. } = merged;
        let mut by_place = vec![Vec::new(); if rows.is_empty() { 0 } else { self.tree.n }];
        for (place, row) in rows {
            by_place[place as usize] = row;
        }
        let lasting = absent.is_empty() && !matches!(spec.kind, Kind::AddSet | Kind::RemoveSet);
        let remember = if lasting { self.table.worth(&name) } else { None };
        let agreed = Arc::new(Agreed { name, spec, rows: by_place, absent });
        Ready { agreed, table: self.table.number, known: None, remember }
    }

    /// Lets batches go; or finds that they need not be told any more.
    fn dispatch(&mut self, responses: &mut Vec<Response>) -> Option<Vec<Vec<u32>>> {
        loop {
            let root = self.root.as_mut().expect("only at the root");
            if root.ready.is_empty() || root.running >= MOST_RUNNING {
                return None;
            }
            let list: Vec<Arc<Agreed>> = root.ready.iter().map(|r| r.agreed.clone()).collect();
            let batch = fuse::fuse(&list, root.limits).swap_remove(0);
            for agreed in batch.iter() {
                let closes = self.root.as_mut().expect("only at the root").closes_cycle(agreed);
                if closes && let Some(batches) = self.replayable() {
                    return Some(batches);
                }
                let phase = self.mine.get(&agreed.name).map_or(0, |m| m.phase);
                self.root.as_mut().expect("only at the root").note(agreed, phase);
            }
            let root = self.root.as_mut().expect("only at the root");
            let names: BTreeSet<&Name> = batch.iter().map(|a| &a.name).collect();
            let (go, stay) =
                std::mem::take(&mut root.ready).into_iter().partition(|r| names.contains(&r.agreed.name));
            root.ready = stay;
            root.running += 1;
            let number = self.table.number;
            // Numbers of a table that has been replaced meanwhile are void.
            let item = |ready: Ready| match ready.known.filter(|_| ready.table == number) {
                Some(id) => Item::Known(id),
                None => {
                    let remember = ready.remember.filter(|_| ready.table == number);
                    Item::New { agreed: Box::new((*ready.agreed).clone()), remember }
                }
            };
            responses.push(Response::Run((go as Vec<Ready>).into_iter().map(item).collect()));
        }
    }

    /// The batches of the round that has repeated, if nothing else is going on.
    fn replayable(&self) -> Option<Vec<Vec<u32>>> {
        let root = self.root.as_ref().expect("only at the root");
        let ours = |name: &Name| root.before.contains(name);
        let quiet = root.joins.is_empty()
            && root.leaving.is_none()
            && root.tune.is_none()
            && root.ready.iter().all(|r| ours(&r.agreed.name))
            && self.entries.keys().all(ours);
        if !self.setup.replay || !quiet {
            return None;
        }
        let mut ids: BTreeMap<&Name, u32> = BTreeMap::new();
        // Only what was submitted without waiting for each other may wait for each other.
        let mut phases: BTreeMap<u64, Vec<Arc<Agreed>>> = BTreeMap::new();
        for (name, phase) in &root.order {
            let (id, agreed) = self.table.find(name)?;
            ids.insert(name, id);
            phases.entry(*phase).or_default().push(agreed.clone());
        }
        let batches = phases.values().flat_map(|list| fuse::fuse(list, root.limits));
        Some(batches.map(|b| b.iter().map(|a| ids[&a.name]).collect()).collect())
    }
}
