//! Membership, decided without clocks, sockets or threads.
//!
//! - HUB-1: the hub sends the roster once, when every rank of the world has joined, and not earlier.
//! - HUB-2: a rank that joins twice or expects another world is refused by name; the hub continues to wait for the right one.
//! - HUB-3: a loss is announced once to every other rank; a rank that left in order is not lost, but named as having left.
//! - HUB-4: missing heartbeats count only while the hub itself is running: after a pause of the hub, counting starts again for every rank.
//! - HUB-5: no rank joins a world that is over: a rank that connects too late gets the reason instead of a roster.
//! - HUB-6: a doom is a verdict only once a rank other than the culprit was told of it: a rank that never joined does not count.
//! - HUB-7: no world forms in which a server has a lower number than a worker, or which has no worker.
//! - HUB-8: ranks that all leave the same number of the last ranks out form a world without these, and these are not waited for. Which
//!   ranks these are is known when the first rank joins: ends that were seen before are judged then.

use super::message::{Down, Member, Up, Verdict};
use crate::{
    ending::End,
    lost::{Cause, Doom, Lost},
};
use phalanx_core::{Rank, TaskRole};
use std::{collections::BTreeMap, ops::Range};

/// Milliseconds of a monotonic clock.
pub type Tick = u64;

/// How often every rank says that it is alive.
pub const BEAT_MS: u64 = 500;
/// How long a rank may be silent.
pub const SILENT_MS: u64 = 3_000;

/// What happened.
#[derive(Clone, Debug)]
pub enum HubInput {
    /// An authenticated connection of this rank said something.
    Said(Rank, Up),
    /// Its connection ended: closed, or timed out.
    Closed(Rank, Cause),
    /// The launcher saw how its process ended.
    Ended(Rank, End),
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubOutput {
    Tell(Rank, Down),
    /// Tell it, then close its connection.
    Refuse(Rank, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seat {
    Empty,
    Joined { last_heard: Tick },
    Left,
    Lost,
}

/// Who is here.
#[derive(Debug)]
pub struct Membership {
    seats: Vec<Seat>,
    members: Vec<Option<Member>>,
    formed: bool,
    /// Who ended before anybody joined, in that order (HUB-8).
    early: Vec<Lost>,
    /// Why the world is over.
    doom: Option<Doom>,
    /// Somebody was told of it (HUB-6).
    is_told: bool,
    /// Whom each rank missed first.
    missed: BTreeMap<Rank, Rank>,
    last_tick: Tick,
}

impl Membership {
    pub fn new(n_ranks: u32, now: Tick) -> Membership {
        let n = n_ranks as usize;
        Membership {
            seats: vec![Seat::Empty; n],
            members: vec![None; n],
            formed: false,
            early: Vec::new(),
            doom: None,
            is_told: false,
            missed: BTreeMap::new(),
            last_tick: now,
        }
    }

    pub fn formed(&self) -> bool {
        self.formed
    }

    /// Whether this rank is or was one of the world.
    pub fn has_joined(&self, rank: Rank) -> bool {
        self.members.get(rank.index()).is_some_and(Option::is_some)
    }

    /// Whether nobody needs the hub any more: all have left or are lost, or know why the world is over.
    pub fn over(&self) -> bool {
        self.doom.is_some() || !self.seats.iter().any(|s| matches!(s, Seat::Joined { .. }))
    }

    /// What the ranks agreed on (HUB-6).
    pub fn verdict(&self) -> Verdict {
        Verdict { doom: self.doom.clone().filter(|_| self.is_told), missed: self.missed.clone() }
    }

    /// Ranks that have not joined yet.
    pub fn missing(&self) -> Vec<Rank> {
        self.expected().map(Rank::at).filter(|r| self.members[r.index()].is_none()).collect()
    }

    /// The ranks that shall join: all, but for those that the others leave out (HUB-8).
    fn expected(&self) -> Range<usize> {
        let n_aside = self.members.iter().flatten().next().map_or(0, |first| first.n_aside as usize);
        0..self.seats.len().saturating_sub(n_aside)
    }

    pub fn step(&mut self, now: Tick, input: HubInput, out: &mut Vec<HubOutput>) {
        match input {
            HubInput::Said(rank, Up::Join(member)) => self.join(now, rank, member, out),
            HubInput::Said(rank, said) => self.hear(now, rank, said, out),
            HubInput::Closed(rank, cause) => self.gone(rank, cause, out),
            HubInput::Ended(rank, end) => self.gone(rank, Cause::Ended(end), out),
            HubInput::Tick => self.tick(now, out),
        }
        let culprit = self.doom.as_ref().and_then(Doom::culprit);
        let tells = |o: &HubOutput| matches!(o, HubOutput::Tell(rank, Down::Doomed(_) | Down::Lost(_)) if Some(*rank) != culprit);
        self.is_told |= self.doom.is_some() && out.iter().any(tells);
    }

    fn join(&mut self, now: Tick, rank: Rank, member: Member, out: &mut Vec<HubOutput>) {
        let n_seats = self.seats.len() as u32;
        let n_ranks = n_seats.saturating_sub(member.n_aside);
        let refusal = if member.rank != rank {
            Some(format!("rank {rank} joined as rank {}", member.rank))
        } else if rank.0 >= n_seats || (rank.0 >= n_ranks && member.n_ranks == n_ranks) {
            Some(format!("rank {rank} does not exist in a world of {n_ranks} ranks"))
        } else if member.n_ranks != n_ranks {
            Some(format!(
                "rank {rank} expects a world of {} ranks, the other ranks expect {n_ranks}",
                member.n_ranks
            ))
        } else if self.seats[rank.index()] != Seat::Empty {
            Some(format!("rank {rank} has already joined{}", self.whereabouts(rank)))
        } else {
            self.disagreement(&member)
        };
        if let Some(why) = refusal {
            out.push(HubOutput::Refuse(rank, why));
            return;
        }
        self.seats[rank.index()] = Seat::Joined { last_heard: now };
        self.members[rank.index()] = Some(member);
        let expected = self.expected();
        let absent = self.early.drain(..).find(|lost| expected.contains(&lost.rank.index()));
        self.doom = self.doom.take().or(absent.map(Doom::Lost));
        if let Some(doom) = &self.doom {
            out.push(HubOutput::Tell(rank, Down::Doomed(doom.clone())));
        } else if self.missing().is_empty() {
            self.formed = true;
            let roster: Vec<Member> = self.members.iter().flatten().cloned().collect();
            self.tell_all(&Down::Roster(roster), None, out);
        }
    }

    fn whereabouts(&self, rank: Rank) -> String {
        match &self.members[rank.index()] {
            Some(m) => format!(": process {} on host {}", m.pid, m.host_name),
            None => String::new(),
        }
    }

    fn disagreement(&self, member: &Member) -> Option<String> {
        let first = self.members.iter().flatten().next()?;
        if first.n_aside != member.n_aside {
            let out = |m: &Member| format!("rank {} leaves {} of the last ranks out", m.rank, m.n_aside);
            return Some(format!(
                "{}, {}: every rank must use the last worker as evaluator, or none",
                out(first),
                out(member)
            ));
        }
        if let Some(why) = self.disorder(member) {
            return Some(why);
        }
        let differs = |what: &str, a: &str, b: &str| {
            format!("{what} differs: rank {} has {a:?}, rank {} has {b:?}", first.rank, member.rank)
        };
        if first.build != member.build {
            let said = differs("the phalanx build", &first.build, &member.build);
            return Some(format!("{said}; install the same one for every rank"));
        }
        let mut pairs = first.settings.lines().zip(member.settings.lines());
        let (a, b) = match pairs.find(|(a, b)| a != b) {
            Some(differing) => differing,
            None if first.settings == member.settings => return None,
            None => (first.settings.as_str(), member.settings.as_str()),
        };
        Some(format!(
            "a setting differs: rank {} has {a}, rank {} has {b}; set the same on every rank",
            first.rank, member.rank
        ))
    }

    /// HUB-7.
    fn disorder(&self, member: &Member) -> Option<String> {
        let serves = |m: &Member| m.role == TaskRole::Server;
        if serves(member) && member.rank == Rank::ZERO {
            return Some("rank 0 is a server: a world needs a worker, and workers are numbered first".into());
        }
        let other = self.members.iter().flatten().find(|other| {
            let (low, high) = if other.rank < member.rank { (*other, member) } else { (member, *other) };
            serves(low) && !serves(high)
        })?;
        let (server, worker) = if serves(member) { (member, other) } else { (other, member) };
        Some(format!(
            "rank {} is a server and rank {} a worker: workers are numbered first, so give the servers the highest ranks",
            server.rank, worker.rank
        ))
    }

    fn hear(&mut self, now: Tick, rank: Rank, said: Up, out: &mut Vec<HubOutput>) {
        if let Up::Missed(whom) = said {
            // Also of a rank whose end was told before its last words were read.
            self.missed.entry(rank).or_insert(whom);
        }
        let Some(seat @ Seat::Joined { .. }) = self.seats.get_mut(rank.index()) else { return };
        *seat = Seat::Joined { last_heard: now };
        match said {
            Up::Leave => {
                *seat = Seat::Left;
                self.tell_all(&Down::Lost(Lost { rank, cause: Cause::Left }), Some(rank), out);
            }
            Up::Doomed(doom) if self.doom.is_none() => {
                self.doom = Some(doom.clone());
                self.tell_all(&Down::Doomed(doom), None, out);
                // Rank 0 last: it may serve this hub, and end as soon as it hears.
                out.reverse();
            }
            Up::Alive | Up::Missed(_) | Up::Join(_) | Up::Doomed(_) | Up::Words(_) => {}
        }
    }

    fn gone(&mut self, rank: Rank, cause: Cause, out: &mut Vec<HubOutput>) {
        if !self.expected().contains(&rank.index()) {
            return; // HUB-8
        }
        let seat = &mut self.seats[rank.index()];
        let told = matches!(cause, Cause::Ended(end) if end != End::Untold);
        match seat {
            // The launcher's words of how it ended are news even after its connection closed.
            Seat::Lost if told => {}
            Seat::Lost | Seat::Left => return,
            Seat::Empty if !told => return,
            Seat::Empty | Seat::Joined { .. } => *seat = Seat::Lost,
        }
        let lost = Lost { rank, cause };
        if self.formed {
            self.tell_all(&Down::Lost(lost), Some(rank), out);
        } else if self.members.iter().all(Option::is_none) {
            self.early.push(lost);
        } else if self.doom.is_none() {
            // The world can never form now: every rank that joined is told why, and so is every rank that still comes (HUB-5).
            self.doom = Some(Doom::Lost(lost.clone()));
            self.tell_all(&Down::Doomed(Doom::Lost(lost)), Some(rank), out);
        }
    }

    fn tick(&mut self, now: Tick, out: &mut Vec<HubOutput>) {
        let paused = now.saturating_sub(self.last_tick) > 2 * BEAT_MS;
        self.last_tick = now;
        let mut frozen = Vec::new();
        for (r, seat) in self.seats.iter_mut().enumerate() {
            let Seat::Joined { last_heard } = seat else { continue };
            if paused {
                *last_heard = now; // HUB-4
            }
            let silent_ms = now.saturating_sub(*last_heard);
            if silent_ms > SILENT_MS {
                *seat = Seat::Lost;
                frozen.push(Lost { rank: Rank::at(r), cause: Cause::Frozen { silent_ms } });
            }
        }
        for lost in frozen {
            let rank = lost.rank;
            self.tell_all(&Down::Lost(lost.clone()), Some(rank), out);
            if !self.formed {
                self.doom.get_or_insert(Doom::Lost(lost.clone()));
            }
            // Should it thaw, it must not wait for a world that went on without it.
            out.push(HubOutput::Tell(rank, Down::Doomed(Doom::Lost(lost))));
        }
        let word = if self.formed { Down::Alive } else { Down::Missing(self.missing()) };
        self.tell_all(&word, None, out);
    }

    fn tell_all(&self, down: &Down, but: Option<Rank>, out: &mut Vec<HubOutput>) {
        for (r, seat) in self.seats.iter().enumerate() {
            let rank = Rank::at(r);
            if Some(rank) != but && matches!(seat, Seat::Joined { .. }) {
                out.push(HubOutput::Tell(rank, down.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;

    fn member(rank: u32, n_ranks: u32) -> Member {
        Member {
            rank: Rank(rank),
            n_ranks,
            n_aside: 0,
            role: TaskRole::Worker,
            host_key: 1,
            host_name: "h".into(),
            pid: 100 + rank,
            cores: vec![0],
            core_quota: 1,
            addresses: vec![],
            arena_fd: 3,
            arena_heap_bytes: 0,
            trial_address: 0,
            build: "1".into(),
            settings: String::new(),
        }
    }

    #[test]
    fn the_one_setting_that_differs_is_shown_and_no_other() {
        let with = |rank, strict: u8| Member {
            settings: format!("PHALANX_TRANSPORT=auto\nPHALANX_STRICT={strict}"),
            ..member(rank, 2)
        };
        let mut hub = Membership::new(2, 0);
        hub.members[0] = Some(with(0, 0));
        assert_eq!(hub.disagreement(&with(1, 0)), None);
        assert_eq!(
            hub.disagreement(&with(1, 1)).as_deref(),
            Some(
                "a setting differs: rank 0 has PHALANX_STRICT=0, rank 1 has PHALANX_STRICT=1; set the same on every rank"
            )
        );
    }

    fn run(hub: &mut Membership, now: Tick, input: HubInput) -> Vec<HubOutput> {
        let mut out = Vec::new();
        hub.step(now, input, &mut out);
        out
    }

    fn formed(n_ranks: u32) -> Membership {
        let mut hub = Membership::new(n_ranks, 0);
        for r in 0..n_ranks {
            run(&mut hub, 0, HubInput::Said(Rank(r), Up::Join(member(r, n_ranks))));
        }
        assert!(hub.formed());
        hub
    }

    fn lost(rank: u32, cause: Cause) -> Down {
        Down::Lost(Lost { rank: Rank(rank), cause })
    }

    /// WORLD-1.
    #[test]
    fn the_roster_goes_to_all_when_the_last_rank_joins() {
        let mut hub = Membership::new(2, 0);
        assert_eq!(run(&mut hub, 0, HubInput::Said(Rank(1), Up::Join(member(1, 2)))), []);
        assert_eq!(hub.missing(), [Rank(0)]);
        let out = run(&mut hub, 0, HubInput::Said(Rank(0), Up::Join(member(0, 2))));
        let roster = Down::Roster(vec![member(0, 2), member(1, 2)]);
        assert_eq!(
            out,
            [HubOutput::Tell(Rank(0), roster.clone()), HubOutput::Tell(Rank(1), roster)],
            "HUB-1"
        );
    }

    #[test]
    fn wrong_joins_are_refused_with_both_sides_named() {
        let mut hub = Membership::new(2, 0);
        run(&mut hub, 0, HubInput::Said(Rank(0), Up::Join(member(0, 2))));
        let mut refused =
            |rank: u32, m: Member| match run(&mut hub, 0, HubInput::Said(Rank(rank), Up::Join(m))).as_slice()
            {
                [HubOutput::Refuse(_, why)] => why.clone(),
                other => panic!("HUB-2: {other:?}"),
            };
        assert_eq!(refused(0, member(0, 2)), "rank 0 has already joined: process 100 on host h");
        assert_eq!(refused(1, member(1, 3)), "rank 1 expects a world of 3 ranks, the other ranks expect 2");
        assert_eq!(refused(7, member(7, 2)), "rank 7 does not exist in a world of 2 ranks");
        let other = Member { build: "2".into(), ..member(1, 2) };
        assert!(refused(1, other).contains("rank 0 has \"1\", rank 1 has \"2\""));
    }

    #[test]
    fn servers_come_after_workers() {
        let serving = |rank| Member { role: TaskRole::Server, ..member(rank, 3) };
        let refused = |first: Member, second: Member| {
            let mut hub = Membership::new(3, 0);
            run(&mut hub, 0, HubInput::Said(first.rank, Up::Join(first)));
            match run(&mut hub, 0, HubInput::Said(second.rank, Up::Join(second))).as_slice() {
                [HubOutput::Refuse(_, why)] => Some(why.clone()),
                _ => None,
            }
        };
        let why = "rank 1 is a server and rank 2 a worker: workers are numbered first, so give the servers the highest ranks";
        assert_eq!(refused(serving(1), member(2, 3)).as_deref(), Some(why), "HUB-7");
        assert_eq!(refused(member(2, 3), serving(1)).as_deref(), Some(why), "HUB-7: in any order");
        assert_eq!(refused(member(0, 3), serving(1)), None);
        assert_eq!(refused(serving(2), serving(1)), None);
    }

    #[test]
    fn a_world_may_leave_the_last_ranks_out() {
        let without = |rank| Member { n_aside: 1, ..member(rank, 2) };
        let mut hub = Membership::new(3, 0);
        run(&mut hub, 0, HubInput::Said(Rank(1), Up::Join(without(1))));
        assert_eq!(hub.missing(), [Rank(0)], "HUB-8");
        let refused = run(&mut hub, 0, HubInput::Said(Rank(2), Up::Join(member(2, 3))));
        let why = "rank 1 leaves 1 of the last ranks out, rank 2 leaves 0 of the last ranks out: \
                   every rank must use the last worker as evaluator, or none";
        assert_eq!(refused, [HubOutput::Refuse(Rank(2), why.into())]);
        let out = run(&mut hub, 0, HubInput::Ended(Rank(2), End::Process(Ending::Code(1))));
        assert_eq!(out, [], "HUB-8: it is no loss");
        let out = run(&mut hub, 0, HubInput::Said(Rank(0), Up::Join(without(0))));
        assert_eq!(out[0], HubOutput::Tell(Rank(0), Down::Roster(vec![without(0), without(1)])), "HUB-8");
    }

    #[test]
    fn a_rank_that_is_left_out_may_end_before_the_others_join() {
        let without = |rank| Member { n_aside: 1, ..member(rank, 2) };
        let exited = |rank| HubInput::Ended(Rank(rank), End::Process(Ending::Code(0)));
        let mut hub = Membership::new(3, 0);
        run(&mut hub, 0, exited(2));
        run(&mut hub, 1, HubInput::Said(Rank(0), Up::Join(without(0))));
        run(&mut hub, 2, HubInput::Said(Rank(1), Up::Join(without(1))));
        assert!(hub.formed(), "HUB-8");

        let mut hub = Membership::new(3, 0);
        run(&mut hub, 0, exited(2));
        run(&mut hub, 0, exited(1));
        let out = run(&mut hub, 1, HubInput::Said(Rank(0), Up::Join(without(0))));
        assert!(
            matches!(&out[..], [HubOutput::Tell(Rank(0), Down::Doomed(Doom::Lost(l)))] if l.rank == Rank(1)),
            "HUB-8: {out:?}"
        );
    }

    #[test]
    fn a_dead_rank_is_announced_to_the_others_once() {
        let mut hub = formed(3);
        let out = run(&mut hub, 1, HubInput::Closed(Rank(1), Cause::Disconnected));
        let bare = lost(1, Cause::Disconnected);
        assert_eq!(out, [HubOutput::Tell(Rank(0), bare.clone()), HubOutput::Tell(Rank(2), bare)], "HUB-3");
        assert_eq!(run(&mut hub, 2, HubInput::Closed(Rank(1), Cause::Disconnected)), []);
        assert_eq!(run(&mut hub, 3, HubInput::Ended(Rank(1), End::Process(Ending::Signal(9)))).len(), 2);
    }

    #[test]
    fn a_silent_rank_is_frozen_but_not_after_the_hubs_own_pause() {
        let mut hub = formed(2);
        for now in (0..=SILENT_MS).step_by(BEAT_MS as usize) {
            run(&mut hub, now, HubInput::Said(Rank(0), Up::Alive));
            assert!(
                run(&mut hub, now, HubInput::Tick)
                    .iter()
                    .all(|o| matches!(o, HubOutput::Tell(_, Down::Alive)))
            );
        }
        let out = run(&mut hub, SILENT_MS + BEAT_MS, HubInput::Tick);
        assert_eq!(
            out[0],
            HubOutput::Tell(Rank(0), lost(1, Cause::Frozen { silent_ms: SILENT_MS + BEAT_MS }))
        );

        let mut hub = formed(2);
        let out = run(&mut hub, 60_000, HubInput::Tick);
        assert!(out.iter().all(|o| matches!(o, HubOutput::Tell(_, Down::Alive))), "HUB-4: {out:?}");
    }

    #[test]
    fn a_rank_that_ends_before_the_world_forms_dooms_it() {
        let mut hub = Membership::new(2, 0);
        run(&mut hub, 0, HubInput::Said(Rank(0), Up::Join(member(0, 2))));
        let out = run(&mut hub, 1, HubInput::Ended(Rank(1), End::Process(Ending::Code(1))));
        assert!(
            matches!(&out[..], [HubOutput::Tell(Rank(0), Down::Doomed(Doom::Lost(l)))] if l.rank == Rank(1))
        );
    }

    #[test]
    fn an_end_is_a_verdict_only_for_ranks_that_joined() {
        let exited = HubInput::Ended(Rank(0), End::Process(Ending::Code(0)));
        let mut hub = Membership::new(2, 0);
        run(&mut hub, 1, exited.clone());
        assert_eq!(hub.verdict(), Verdict::default(), "HUB-6: programs without a world judge nobody");
        run(&mut hub, 2, HubInput::Said(Rank(1), Up::Join(member(1, 2))));
        assert!(
            matches!(hub.verdict().doom, Some(Doom::Lost(l)) if l.rank == Rank(0)),
            "it came and was told"
        );

        let mut hub = formed(3);
        run(&mut hub, 1, exited);
        assert_eq!(hub.verdict().doom, None, "nobody needed it");
        run(&mut hub, 2, HubInput::Said(Rank(2), Up::Missed(Rank(1))));
        run(&mut hub, 3, HubInput::Said(Rank(2), Up::Missed(Rank(0))));
        assert_eq!(hub.verdict().missed, BTreeMap::from([(Rank(2), Rank(1))]), "the first stays");
        let doom = Doom::GaveUp { rank: Rank(1), why: "x".into() };
        run(&mut hub, 4, HubInput::Said(Rank(2), Up::Doomed(doom.clone())));
        assert_eq!(hub.verdict().doom, Some(doom));
    }

    #[test]
    fn whoever_comes_too_late_is_told_why_the_world_is_over() {
        let mut hub = Membership::new(3, 0);
        for r in [0, 1] {
            run(&mut hub, 0, HubInput::Said(Rank(r), Up::Join(member(r, 3))));
        }
        run(&mut hub, 1, HubInput::Closed(Rank(1), Cause::Disconnected));
        let out = run(&mut hub, 2, HubInput::Said(Rank(2), Up::Join(member(2, 3))));
        let doom = Doom::Lost(Lost { rank: Rank(1), cause: Cause::Disconnected });
        assert_eq!(out, [HubOutput::Tell(Rank(2), Down::Doomed(doom))], "HUB-5");
        assert!(!hub.formed());
    }

    #[test]
    fn a_frozen_rank_is_told_that_it_was_given_up() {
        let mut hub = formed(2);
        let mut out = Vec::new();
        for now in (0..=SILENT_MS + BEAT_MS).step_by(BEAT_MS as usize) {
            run(&mut hub, now, HubInput::Said(Rank(0), Up::Alive));
            out = run(&mut hub, now, HubInput::Tick);
        }
        let told = |o: &HubOutput| matches!(o, HubOutput::Tell(Rank(1), Down::Doomed(Doom::Lost(l))) if l.rank == Rank(1));
        assert!(out.iter().any(told), "{out:?}");
    }

    #[test]
    fn leaving_is_named_and_closing_afterwards_is_quiet() {
        let mut hub = formed(2);
        let out = run(&mut hub, 1, HubInput::Said(Rank(0), Up::Leave));
        assert_eq!(out, [HubOutput::Tell(Rank(1), lost(0, Cause::Left))], "HUB-3");
        assert_eq!(run(&mut hub, 2, HubInput::Closed(Rank(0), Cause::Disconnected)), []);
        assert_eq!(run(&mut hub, 2, HubInput::Ended(Rank(0), End::Process(Ending::Code(0)))), []);
    }
}
