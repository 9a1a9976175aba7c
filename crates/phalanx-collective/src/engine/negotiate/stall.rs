//! Finds which ranks others wait for: asks all ranks when one has waited too long.

use super::{
    Negotiator, Output,
    fuse::Batch,
    message::{EngineEnd, Message, RankStatus},
    report::{Missed, Missing, StallReport},
    tree::Tree,
};
use crate::engine::{
    spec::Name,
    whereabouts::{MOST_NAMES, Spot},
};
use phalanx_core::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// How long ranks have to answer.
const ANSWERS_US: u64 = 1_000_000;

#[derive(Debug)]
pub struct StallCheck {
    stall_us: Option<u64>,
    abort_us: Option<u64>,
    last_us: Option<u64>,
    /// At the root, while one is going on.
    answers: Option<Answers>,
    all_answered: bool,
    /// At the root: what has run since it began, and so keeps nobody waiting any more.
    ran: BTreeSet<Name>,
    /// At the root: somebody asks for one.
    wanted: bool,
}

/// What a roll call has heard so far, by place.
#[derive(Debug)]
struct Answers {
    began: u64,
    statuses: BTreeMap<u32, RankStatus>,
    spots: BTreeMap<u32, Spot>,
}

impl Answers {
    fn are_complete(&self, n: usize) -> bool {
        let located = |s: &RankStatus| !s.says_where || self.spots.contains_key(&s.place);
        self.statuses.len() >= n && self.statuses.values().all(located)
    }
}

impl StallCheck {
    pub fn new(stall_ms: Option<u64>, abort_ms: Option<u64>) -> StallCheck {
        // Giving up needs a roll call to know whom to name.
        let stall_ms = stall_ms.or(abort_ms);
        let (stall_us, abort_us) = (stall_ms.map(|ms| ms * 1000), abort_ms.map(|ms| ms * 1000));
        StallCheck {
            stall_us,
            abort_us,
            last_us: None,
            answers: None,
            all_answered: false,
            ran: BTreeSet::new(),
            wanted: false,
        }
    }

    /// These run.
    pub fn ran(&mut self, batch: &Batch) {
        if self.answers.is_some() {
            self.ran.extend(batch.iter().map(|agreed| agreed.name.clone()));
        }
    }

    pub fn is_due(&self, oldest_us: Option<u64>, now_us: u64) -> bool {
        self.next_us(oldest_us, now_us).is_some_and(|at| at <= now_us)
    }

    /// When something is due, given since when something waits.
    pub fn next_us(&self, oldest_us: Option<u64>, _now_us: u64) -> Option<u64> {
        if let Some(Answers { began, .. }) = &self.answers {
            return Some(if self.all_answered { *began } else { began + ANSWERS_US });
        }
        if self.wanted {
            return Some(0);
        }
        let oldest = oldest_us?;
        let every = self.stall_us?;
        // The abort's moment is not missed for the sake of the rhythm.
        let abort = self.abort_us.map(|a| oldest + a).filter(|at| self.last_us.is_none_or(|l| l < *at));
        let rhythm = self.last_us.map_or(oldest, |l| l.max(oldest)) + every;
        Some(abort.map_or(rhythm, |a| a.min(rhythm)))
    }

    /// Takes answers: passes them on, or collects them at the root.
    pub fn hear(&mut self, now_us: u64, mut statuses: Vec<RankStatus>, tree: Tree, out: &mut Vec<Output>) {
        if let Some(to) = tree.parent() {
            return out.push(Output::Send { to, message: Message::Waiting(statuses) });
        }
        match &mut self.answers {
            Some(answers) => {
                // As they would have been said when it began, whenever a rank says it, or says it again.
                let since_ms = now_us.saturating_sub(answers.began) / 1000;
                let waiting = statuses.iter_mut().flat_map(|s| &mut s.waiting);
                waiting.for_each(|(_, ms)| *ms = ms.saturating_sub(since_ms));
                let real = statuses.into_iter().filter(|s| (s.place as usize) < tree.n);
                answers.statuses.extend(real.map(|s| (s.place, s)));
                self.all_answered = answers.are_complete(tree.n);
            }
            None => self.wanted = true,
        }
    }

    /// At the root: takes where programs are. What comes after the roll call is of no use to the next one.
    fn locate(&mut self, spots: Vec<(u32, Spot)>, n: usize) {
        let Some(answers) = &mut self.answers else { return };
        let real = spots.into_iter().filter(|(place, _)| (*place as usize) < n);
        answers.spots.extend(real.map(|(place, spot)| (place, spot.plain())));
        self.all_answered = answers.are_complete(n);
    }
}

impl Negotiator {
    /// What this rank has waited for longest.
    pub fn waiting_for(&self) -> Option<Name> {
        self.mine.iter().min_by_key(|(_, mine)| mine.since_us).map(|(name, _)| name.clone())
    }

    fn status(&self, now_us: u64) -> RankStatus {
        let ms = |since: u64| now_us.saturating_sub(since) / 1000;
        RankStatus {
            place: self.tree.me as u32,
            waiting: self.mine.iter().map(|(name, m)| (name.clone(), ms(m.since_us))).collect(),
            last: self.last.as_ref().map(|(name, at)| (name.clone(), ms(*at))),
            says_where: self.setup.says_where,
        }
    }

    fn ask_where(&self, out: &mut Vec<Output>) {
        if self.setup.says_where {
            out.push(Output::Locate);
        }
    }

    /// Takes where programs are: passes it on, or keeps it at the root.
    pub(super) fn locate(&mut self, spots: Vec<(u32, Spot)>, out: &mut Vec<Output>) {
        match self.tree.parent() {
            Some(to) => out.push(Output::Send { to, message: Message::Located(spots) }),
            None => self.stall.locate(spots, self.tree.n),
        }
    }

    /// Something is due: asks for a roll call, begins one, or ends it.
    pub(super) fn call_roll_of_all(&mut self, now_us: u64, out: &mut Vec<Output>) {
        self.stall.last_us = Some(now_us);
        if let Some(to) = self.tree.parent() {
            let status = self.status(now_us);
            return out.push(Output::Send { to, message: Message::Waiting(vec![status]) });
        }
        (self.stall.wanted, self.stall.all_answered) = (false, false);
        match self.stall.answers.take() {
            None => {
                let statuses = BTreeMap::from([(0, self.status(now_us))]);
                self.stall.answers = Some(Answers { began: now_us, statuses, spots: BTreeMap::new() });
                self.ask_where(out);
                out.extend(self.tree.children().map(|to| Output::Send { to, message: Message::Roll }));
            }
            Some(answers) => self.conclude(now_us, &answers, out),
        }
    }

    /// Answers a roll call.
    pub(super) fn call_roll(&mut self, now_us: u64, out: &mut Vec<Output>) {
        out.extend(self.tree.children().map(|to| Output::Send { to, message: Message::Roll }));
        if let Some(to) = self.tree.parent() {
            self.stall.last_us = Some(now_us);
            out.push(Output::Send { to, message: Message::Waiting(vec![self.status(now_us)]) });
            self.ask_where(out);
        }
    }

    fn conclude(&mut self, now_us: u64, answers: &Answers, out: &mut Vec<Output>) {
        let n = self.tree.n as u32;
        let since_ms = now_us.saturating_sub(answers.began) / 1000;
        let statuses = &answers.statuses;
        // A rank that answered after they ran does not know them any more, but is not missing.
        let ran = std::mem::take(&mut self.stall.ran);
        let mut waited: BTreeMap<&Name, u64> = BTreeMap::new();
        for (name, ms) in statuses.values().flat_map(|s| &s.waiting).filter(|(name, _)| !ran.contains(name)) {
            let longest = waited.entry(name).or_default();
            *longest = (*longest).max(ms.saturating_add(since_ms));
        }
        let stall_ms = self.stall.stall_us.unwrap_or(0) / 1000;
        let mut tensors = Vec::new();
        let mut missed = BTreeSet::new();
        for (name, waited_ms) in waited {
            let has = |p: &u32| statuses.get(p).is_some_and(|s| s.waiting.iter().any(|(w, _)| w == name));
            let missing: Vec<u32> =
                (0..n).filter(|p| !has(p) && !self.joined.contains(&(*p as usize))).collect();
            if missing.is_empty() || waited_ms < stall_ms / 2 {
                continue;
            }
            missed.extend(&missing);
            let ranks: Vec<Rank> = missing.iter().map(|p| self.rank_at(*p as usize)).collect();
            tensors.push(Missing { name: name.clone(), ranks, waited_ms });
        }
        if tensors.is_empty() {
            return;
        }
        let missed = missed.into_iter().map(|p| self.missed(p, answers, &ran)).collect();
        let report = StallReport { tensors, missed };
        let abort_ms = self.stall.abort_us.map(|us| us / 1000);
        let worst = report.tensors.iter().find(|t| abort_ms.is_some_and(|ms| t.waited_ms >= ms));
        if let Some(Missing { name, ranks, waited_ms }) = worst {
            let missed = report.missed.iter().filter(|m| ranks.contains(&m.rank)).cloned().collect();
            let (name, missing, waited_ms) = (name.clone(), ranks.clone(), *waited_ms);
            let why = EngineEnd::Stalled { name, missing, waited_ms, missed };
            let root = self.root.as_mut().expect("the root concludes");
            root.abort = Some((ranks[0], why));
        }
        self.tell(report, out);
        if self.replay.is_some() && self.root.as_ref().is_some_and(|r| r.abort.is_some()) {
            self.freeze(now_us, out);
        }
    }

    fn missed(&self, place: u32, answers: &Answers, ran: &BTreeSet<Name>) -> Missed {
        let status = answers.statuses.get(&place);
        let waits = status.iter().flat_map(|s| &s.waiting).map(|(name, _)| name);
        Missed {
            rank: self.rank_at(place as usize),
            answered: status.is_some(),
            waits_in: waits.filter(|name| !ran.contains(*name)).take(2 * MOST_NAMES).cloned().collect(),
            last: status.and_then(|s| s.last.clone()),
            says_where: status.is_some_and(|s| s.says_where),
            spot: answers.spots.get(&place).cloned(),
        }
    }

    pub(super) fn tell(&mut self, report: StallReport, out: &mut Vec<Output>) {
        for to in self.tree.children() {
            out.push(Output::Send { to, message: Message::Report(report.clone()) });
        }
        out.push(Output::Report(report));
    }
}
