//! How a rank waits for memory to change: spin, then yield, then sleep.
//!
//! - WAIT-1: a rank spins only while every rank of its host can have its own core; otherwise it yields its core immediately.
//! - WAIT-2: no wake-up is lost: a sleeper registers before it looks one last time, a writer looks for sleepers after it wrote, and
//!   sequentially consistent fences order the two.
//! - WAIT-3: a wait ends when its condition holds, when the rank it waits for is lost, when the world is doomed (by a message of the hub or,
//!   because the hub may be gone, by the poison word in shared memory), or at its deadline.

use super::{
    IDLE_BELL_AT, POISON_AT,
    doze::{self, Bed},
    map::Map,
};
use crate::lost::{Casualties, Cause, Doom, Lost};
use phalanx_core::Rank;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// How long to spin before yielding, how long to yield before sleeping.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub spins: u32,
    pub spin_for: Duration,
    pub yield_for: Duration,
    /// Longest sleep before a sleeper looks around by itself; wake-ups normally come by the doorbell.
    pub nap: Duration,
}

impl Patience {
    /// Every rank has a core of its own: the peer is running, so look at memory often. Yielding costs nothing on a core that nobody else
    /// wants, and saves the day where somebody does (containers and namespaces hide from each other).
    pub const DEDICATED: Patience = Patience {
        spins: 64,
        spin_for: Duration::from_micros(50),
        yield_for: Duration::from_micros(1000),
        nap: NAP,
    };
    /// Ranks share cores: a rank that spins holds the core its peer needs.
    pub const SHARED: Patience =
        Patience { spins: 1, spin_for: Duration::ZERO, yield_for: Duration::from_micros(200), nap: NAP };
}

/// Why a wait ended without its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    Doomed(Doom),
    /// The deadline passed; the rank was alive.
    Late {
        waited_ms: u64,
    },
}

/// Words of the arena that waiting uses: one bitmap of sleepers and one doorbell a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bells {
    pub sleepers_at: usize,
    pub doorbells_at: usize,
    pub n_local: usize,
}

const BELL_STRIDE: usize = 128;
const NAP: Duration = Duration::from_millis(250);
/// After this long a waiting rank says whom it waits for.
const STALL: Duration = Duration::from_secs(10);

impl Bells {
    pub const fn bytes(n_local: usize) -> usize {
        n_local * BELL_STRIDE
    }

    /// Where a rank's doorbell is; the second half of its line pair is free.
    pub fn bell_at(&self, local: usize) -> usize {
        self.doorbells_at + local * BELL_STRIDE
    }

    /// Wakes sleeping threads. Call after the write that they may be waiting for.
    #[inline]
    pub fn ring_sleepers(&self, map: &Map) {
        doze::after_write();
        for word in 0..self.n_local.div_ceil(64) {
            let sleepers = doze::sleepers(map.u64_at(self.sleepers_at + word * 8));
            if sleepers != 0 {
                self.ring_word(map, word, sleepers);
            }
        }
    }

    #[cold]
    fn ring_word(&self, map: &Map, word: usize, mut sleepers: u64) {
        while sleepers != 0 {
            self.ring(map, word * 64 + sleepers.trailing_zeros() as usize);
            sleepers &= sleepers - 1;
        }
    }

    /// Wakes one rank, whatever it waits for.
    pub fn ring(&self, map: &Map, local: usize) {
        doze::ring(map.u32_at(self.bell_at(local)));
    }

    /// Wakes the threads of one rank that no write of another rank would wake.
    pub fn ring_idle(&self, map: &Map, local: usize) {
        doze::ring(map.u32_at(self.bell_at(local) + IDLE_BELL_AT));
    }

    pub fn ring_all(&self, map: &Map) {
        for local in 0..self.n_local {
            self.ring(map, local);
            self.ring_idle(map, local);
        }
    }
}

/// How long the hub's words about a poisoned arena may take.
const HUBS_WORD: Duration = Duration::from_millis(50);
/// Set where a rank is lost, not where one gave up.
const POISON_LOST: u64 = 1 << 63;
const POISON_RANK: u64 = (1 << 31) - 1;

/// A doom as a word of memory: whom this rank blames, and this rank itself, plus one so that it is never zero.
pub(super) fn poison_of(doom: &Doom, me: Rank) -> u64 {
    let (flag, culprit) = match doom {
        Doom::Lost(lost) => (POISON_LOST, lost.rank),
        Doom::GaveUp { rank, .. } => (0, *rank),
        Doom::Mismatch { .. } => (0, me),
    };
    flag | (u64::from(me.0) + 1) << 32 | u64::from(culprit.0) & POISON_RANK
}

/// What to make of a poison without the hub's word: its author may have been cut off itself and blame somebody who is well.
fn doom_of(poison: u64, me: Rank, casualties: &Casualties) -> Doom {
    let culprit = Rank((poison & POISON_RANK) as u32);
    let author = Rank(((poison >> 32 & POISON_RANK) as u32).wrapping_sub(1));
    let lost = |rank, cause| Doom::Lost(Lost { rank, cause });
    match (casualties.cause(culprit), casualties.cause(author)) {
        (Some(cause), _) => lost(culprit, cause),
        (None, Some(cause)) => lost(author, cause),
        (None, None) if culprit == me => lost(author, Cause::Disconnected),
        (None, None) if poison & POISON_LOST != 0 => lost(culprit, Cause::Disconnected),
        (None, None) => Doom::GaveUp { rank: culprit, why: "one of its operations failed".into() },
    }
}

/// Everything one wait needs to know besides its condition.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub map: &'a Map,
    pub bells: Bells,
    pub me_local: usize,
    pub me: Rank,
    pub patience: Patience,
    pub casualties: &'a Casualties,
    pub n_sleeping: &'a AtomicU32,
    pub n_idle: &'a AtomicU32,
    pub whom: Rank,
    pub timeout: Duration,
}

impl Wait<'_> {
    /// Waits until the condition holds.
    #[inline]
    pub fn until(&self, ready: impl Fn() -> bool) -> Result<(), Unmet> {
        for _ in 0..self.patience.spins.min(64) {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.patiently(&ready)
    }

    #[cold]
    fn patiently(&self, ready: &dyn Fn() -> bool) -> Result<(), Unmet> {
        let start = Instant::now();
        let mut looks = 0u32;
        while start.elapsed() < self.patience.spin_for {
            for _ in 0..64 {
                if ready() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(16) {
                self.look_around(ready, start)?;
            }
        }
        while start.elapsed() < self.patience.spin_for + self.patience.yield_for {
            rustix::thread::sched_yield();
            if ready() {
                return Ok(());
            }
        }
        self.asleep(ready, start)
    }

    /// See [`Arena::linger`](super::Arena::linger).
    pub fn linger(&self, yield_for: Duration, ready: &dyn Fn() -> bool, idle: &dyn Fn() -> bool) -> bool {
        let start = Instant::now();
        while !idle() && start.elapsed() < yield_for {
            if ready() {
                return true;
            }
            rustix::thread::sched_yield();
        }
        loop {
            if ready() {
                return true;
            }
            if self.is_doomed() {
                return false;
            }
            let is_idle = idle();
            let judge = || Ok(ready() || idle() != is_idle || self.is_doomed());
            let bed = if is_idle { self.idle_bed() } else { self.bed() };
            bed.nap::<Unmet>(self.patience.nap, &judge).ok();
        }
    }

    /// See [`Arena::look_out`](super::Arena::look_out).
    pub fn look_out(&self, deadline: Instant, ready: &dyn Fn() -> bool) -> bool {
        for _ in 0..self.patience.spins.min(64) {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        while start.elapsed() < self.patience.spin_for {
            for _ in 0..64 {
                if ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        while start.elapsed() < self.patience.spin_for + self.patience.yield_for {
            rustix::thread::sched_yield();
            if ready() {
                return true;
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        !left.is_zero()
            && self.bed().nap::<Unmet>(left.min(self.patience.nap), &|| Ok(ready())).is_ok_and(|yes| yes)
            || ready()
    }

    fn is_doomed(&self) -> bool {
        let poisoned = || self.map.u64_at(POISON_AT).load(Ordering::Acquire) != 0;
        self.casualties.any() && self.casualties.doomed().is_some() || poisoned()
    }

    fn asleep(&self, ready: &dyn Fn() -> bool, start: Instant) -> Result<(), Unmet> {
        let mut told = false;
        loop {
            if self.nap(&|| if ready() { Ok(true) } else { self.look_around(ready, start) })? || ready() {
                return Ok(());
            }
            if !told && start.elapsed() > STALL {
                told = true;
                let waited = start.elapsed().as_secs();
                crate::voice::warn(&format!(
                    "rank {} has waited {waited} s for rank {}, which is alive but has not made the call",
                    self.me, self.whom
                ));
            }
        }
    }

    /// Sleeps once, unless `judge` has an answer (see [`Bed::nap`]).
    fn nap(&self, judge: &dyn Fn() -> Result<bool, Unmet>) -> Result<bool, Unmet> {
        self.bed().nap(self.patience.nap, judge)
    }

    fn bed(&self) -> Bed<'_> {
        Bed {
            sleepers: self.map.u64_at(self.bells.sleepers_at + self.me_local / 64 * 8),
            bit: 1 << (self.me_local % 64),
            bell: self.map.u32_at(self.bells.bell_at(self.me_local)),
            n_sleeping: self.n_sleeping,
        }
    }

    /// Where no other rank sees the sleeper.
    fn idle_bed(&self) -> Bed<'_> {
        let bell = self.map.u32_at(self.bells.bell_at(self.me_local) + IDLE_BELL_AT);
        Bed { bit: 0, bell, n_sleeping: self.n_idle, ..self.bed() }
    }

    /// Ok(true): ready after all; Ok(false): keep waiting.
    fn look_around(&self, ready: &dyn Fn() -> bool, start: Instant) -> Result<bool, Unmet> {
        if self.casualties.any()
            && let Some(doom) = self.casualties.verdict(self.whom)
        {
            // It may have done its part before it was lost (LOST-1).
            return if ready() { Ok(true) } else { Err(Unmet::Doomed(doom)) };
        }
        let poison = self.map.u64_at(POISON_AT).load(Ordering::Acquire);
        if poison != 0 {
            // The hub, if there is one, has said more about it.
            let said = self.casualties.await_agreement(HUBS_WORD);
            let doom = said.unwrap_or_else(|| doom_of(poison, self.me, self.casualties));
            return if ready() { Ok(true) } else { Err(Unmet::Doomed(doom)) };
        }
        if start.elapsed() > self.timeout {
            return Err(Unmet::Late { waited_ms: start.elapsed().as_millis() as u64 });
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poison_blames_whom_the_hub_lost_and_never_its_reader() {
        let lost = |rank, cause| Doom::Lost(Lost { rank: Rank(rank), cause });
        let casualties = Casualties::new(4);
        let poison = poison_of(&lost(0, Cause::Disconnected), Rank(1));
        assert_eq!(doom_of(poison, Rank(2), &casualties), lost(0, Cause::Disconnected));
        assert_eq!(
            doom_of(poison, Rank(0), &casualties),
            lost(1, Cause::Disconnected),
            "rank 0 knows that it is well"
        );
        casualties.lose(Lost { rank: Rank(1), cause: Cause::Unreachable });
        assert_eq!(
            doom_of(poison, Rank(2), &casualties),
            lost(1, Cause::Unreachable),
            "the author was cut off"
        );
        let gave_up = Doom::GaveUp { rank: Rank(0), why: String::new() };
        assert_ne!(poison_of(&gave_up, Rank(0)), 0);
    }
}
