//! One communicator's slots in the arena: publish, wait, release.
//!
//! Every member owns a ring of `N_SLOTS` slots. A *turn* is the number of one use of a slot, counted over the lane's lifetime.
//! - LANE-1: a slot's sequence word is `turn + 1` once that turn is published; readers acquire what the writer released.
//! - LANE-2: a member overwrites the slot of turn t only when all members have released turn `t - N_SLOTS`.
//! - LANE-3: a member that publishes turn `t` of a call has released every turn of earlier calls; so seeing a turn of this call implies
//!   the releases of the earlier ones.

use super::{Arena, Board, Unmet, tenants::Tenancy};
use phalanx_core::Rank;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Slots in each member's ring.
pub const N_SLOTS: u32 = 8;
/// Bytes that fit into a slot.
pub const SLOT_BYTES: usize = 256 << 10;
/// Bytes that fit beside the sequence word, so that a tiny message costs one cache line.
pub const INLINE_BYTES: usize = 16;

/// Sequence word, then the call's header, then inline bytes: one cache line. The next one is for factors, which few calls have; the data follow.
const HEADER_AT: usize = 8;
const INLINE_AT: usize = 48;
const FACTORS_AT: usize = 64;
const DATA_AT: usize = 128;
/// Not a multiple of a page, so that equal places of different slots do not fall on the same cache set.
const SLOT_STRIDE: usize = DATA_AT + SLOT_BYTES + 384;
const RELEASE_BYTES: usize = 128;

/// What a member says about a call when it enters it. Plain words, compared by the ranks that read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallHeader {
    /// Operation, element type, reduction, memory kind, whether there are factors, root: packed by the caller.
    pub what: u64,
    /// Elements, or a hash of all counts.
    pub count: u64,
    /// Where this member's input lies in the arena, if it does.
    pub input: u64,
    /// Where its output lies.
    pub output: u64,
    /// The call's number, so that a rank that is a call behind is told apart.
    pub call: u64,
}

/// One member's view of a lane.
#[derive(Debug)]
pub struct Lane {
    arena: Arc<Arena>,
    at: usize,
    me: usize,
    members: Vec<Rank>,
    /// Each member's place on the host. Rings belong to places, not members, so that communicators of disjoint ranks may use one lane.
    places: Vec<usize>,
    /// Where the rings begin.
    rings_at: usize,
    /// First turn of the running call.
    base: u64,
    /// Turns below this are known to be released by the member.
    released: Vec<u64>,
    timeout: Duration,
    /// Shared with the lane's boards, which may outlive it.
    tenancy: Arc<Tenancy>,
}

impl Lane {
    pub(super) const fn bytes(n_local: usize) -> usize {
        (n_local * (RELEASE_BYTES + N_SLOTS as usize * SLOT_STRIDE)).next_multiple_of(4096)
    }

    /// Where a place's word of the lane's board is: the free half of the line pair of its release word.
    const fn board_at(place: usize) -> usize {
        place * RELEASE_BYTES + RELEASE_BYTES / 2
    }

    fn at(arena: &Arena, index: u32) -> usize {
        arena.plan.lanes_at + index as usize * arena.plan.lane_bytes
    }

    fn rings_at(arena: &Arena, index: u32) -> usize {
        Lane::at(arena, index) + arena.ranks.len() * RELEASE_BYTES
    }

    /// Makes this rank's part of a lane as it was before anybody had it: nothing published, nothing released, nothing on the board.
    pub(super) fn wipe(arena: &Arena, index: u32) {
        let (at, place) = (Lane::at(arena, index), arena.me_local);
        let ring = Lane::rings_at(arena, index) + place * N_SLOTS as usize * SLOT_STRIDE;
        let slots = (0..N_SLOTS as usize).map(|slot| ring + slot * SLOT_STRIDE);
        for word in slots.chain([at + place * RELEASE_BYTES, at + Lane::board_at(place)]) {
            // Relaxed: a rank that opens the lane waits for this one first.
            arena.map.u64_at(word).store(0, Ordering::Relaxed);
        }
    }

    /// Lane number `index` of the arena, for these members (which include this rank), in order.
    pub fn open(
        arena: Arc<Arena>,
        index: u32,
        members: Vec<Rank>,
        me: usize,
        timeout: Duration,
    ) -> Option<Lane> {
        if index >= super::MAX_LANES {
            return None;
        }
        let at = Lane::at(&arena, index);
        let place = |rank: &Rank| arena.ranks.iter().position(|r| r == rank);
        let places = members.iter().map(place).collect::<Option<Vec<usize>>>()?;
        let rings_at = Lane::rings_at(&arena, index);
        let released = vec![0; members.len()];
        let tenancy = Arc::new(arena.tenants.enter(index, &members));
        Some(Lane { arena, at, me, members, places, rings_at, base: 0, released, timeout, tenancy })
    }

    /// The board beside the lane, for the same members.
    pub fn board(&self) -> Board {
        let words = self.places.iter().map(|place| self.at + Lane::board_at(*place)).collect();
        Board::new(self.arena.clone(), words, self.me, self.tenancy.clone())
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub fn n_members(&self) -> usize {
        self.members.len()
    }

    pub fn me(&self) -> usize {
        self.me
    }

    /// The world rank of a member.
    pub fn member(&self, member: usize) -> Rank {
        self.members[member]
    }

    #[inline]
    fn slot(&self, member: usize, turn: u64) -> usize {
        let n = N_SLOTS as usize;
        self.rings_at + (self.places[member] * n + (turn % n as u64) as usize) * SLOT_STRIDE
    }

    /// The bytes of a member's slot. `inline` slots share the line of the sequence word.
    #[inline]
    pub fn data(&self, member: usize, turn: u32, inline: bool) -> *mut u8 {
        let slot = self.slot(member, self.base + u64::from(turn));
        if inline {
            self.arena.map.at(slot + INLINE_AT, INLINE_BYTES)
        } else {
            self.arena.map.at(slot + DATA_AT, SLOT_BYTES)
        }
    }

    /// Whether this many bytes travel beside the sequence word.
    #[inline]
    pub fn fits_inline(bytes: u64) -> bool {
        bytes <= INLINE_BYTES as u64
    }

    /// Waits until this member may write its slot of the turn (LANE-2).
    #[inline]
    pub fn acquire(&mut self, turn: u32) -> Result<(), (Rank, Unmet)> {
        let turn = self.base + u64::from(turn);
        let Some(needed) = (turn + 1).checked_sub(u64::from(N_SLOTS)) else { return Ok(()) };
        for member in 0..self.members.len() {
            if self.released[member] < needed && member != self.me {
                let word = self.arena.map.u64_at(self.at + self.places[member] * RELEASE_BYTES);
                let whom = self.members[member];
                let wait = self.arena.wait(whom, self.timeout);
                wait.until(|| word.load(Ordering::Acquire) >= needed).map_err(|unmet| (whom, unmet))?;
                self.released[member] = word.load(Ordering::Acquire);
            }
        }
        Ok(())
    }

    /// Writes the call's header into this member's slot of the turn, which must be acquired and not yet published.
    #[inline]
    pub fn write_header(&self, turn: u32, header: CallHeader) {
        let slot = self.slot(self.me, self.base + u64::from(turn));
        let words = [header.what, header.count, header.input, header.output, header.call];
        for (i, word) in words.into_iter().enumerate() {
            // Relaxed: `publish` releases it.
            self.arena.map.u64_at(slot + HEADER_AT + i * 8).store(word, Ordering::Relaxed);
        }
    }

    /// As [`write_header`](Lane::write_header), for a call that scales: others look for them only if the header says so.
    pub fn write_factors(&self, turn: u32, factors: [u64; 2]) {
        let at = self.slot(self.me, self.base + u64::from(turn)) + FACTORS_AT;
        for (i, factor) in factors.into_iter().enumerate() {
            // Relaxed: `publish` releases it.
            self.arena.map.u64_at(at + i * 8).store(factor, Ordering::Relaxed);
        }
    }

    /// The factors in a member's slot of a turn that was waited for.
    pub fn factors(&self, member: usize, turn: u32) -> [u64; 2] {
        let at = self.slot(member, self.base + u64::from(turn)) + FACTORS_AT;
        [0, 8].map(|i| self.arena.map.u64_at(at + i).load(Ordering::Relaxed))
    }

    /// The header in a member's slot of a turn that was waited for.
    #[inline]
    pub fn header(&self, member: usize, turn: u32) -> CallHeader {
        let slot = self.slot(member, self.base + u64::from(turn));
        let word = |i: usize| self.arena.map.u64_at(slot + HEADER_AT + i * 8).load(Ordering::Relaxed);
        CallHeader { what: word(0), count: word(1), input: word(2), output: word(3), call: word(4) }
    }

    /// Lets every rank read this member's slot of the turn (LANE-1).
    #[inline]
    pub fn publish(&mut self, turn: u32) {
        let turn = self.base + u64::from(turn);
        self.arena.map.u64_at(self.slot(self.me, turn)).store(turn + 1, Ordering::Release);
        self.arena.bells.ring_sleepers(&self.arena.map);
    }

    /// Waits until a member has published the turn.
    #[inline]
    pub fn await_turn(&mut self, member: usize, turn: u32) -> Result<(), (Rank, Unmet)> {
        let turn = self.base + u64::from(turn);
        let word = self.arena.map.u64_at(self.slot(member, turn));
        let whom = self.members[member];
        let wait = self.arena.wait(whom, self.timeout);
        wait.until(|| word.load(Ordering::Acquire) > turn).map_err(|unmet| (whom, unmet))?;
        // LANE-3.
        self.released[member] = self.released[member].max(self.base);
        Ok(())
    }

    /// Says that this member has read all it will of turns up to and including this one.
    #[inline]
    pub fn release(&mut self, turn: u32) {
        self.release_below(self.base + u64::from(turn) + 1);
        self.arena.bells.ring_sleepers(&self.arena.map);
    }

    fn release_below(&mut self, turn: u64) {
        self.arena.map.u64_at(self.at + self.places[self.me] * RELEASE_BYTES).store(turn, Ordering::Release);
    }

    /// Ends a call of `n_turns`: everything is released, the next call begins behind it.
    #[inline]
    pub fn finish(&mut self, n_turns: u32) {
        self.base += u64::from(n_turns);
        self.release_below(self.base);
        // Nobody can be asleep for a release of a call shorter than the ring: its slots were free when it began.
        if n_turns > 1 {
            self.arena.bells.ring_sleepers(&self.arena.map);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        arena::{ArenaOffer, Patience, Source},
        lost::Casualties,
    };
    use std::sync::mpsc;

    /// Lanes of ranks that are threads of this process, each with a mapping of its own, and that sleep whenever they wait.
    fn lanes(n: usize) -> Vec<Lane> {
        let offer = ArenaOffer::make(n).unwrap();
        let (fd, heap_bytes) = (offer.fd(), offer.heap_bytes());
        let pid = std::process::id();
        let processes = vec![(pid, offer.trial_address()); n];
        let ranks: Vec<Rank> = (0..n).map(Rank::at).collect();
        // Asleep for longer than the test may take: a lost wake-up is a hang.
        let patience = Patience {
            spins: 1,
            spin_for: Duration::ZERO,
            yield_for: Duration::ZERO,
            nap: Duration::from_secs(600),
        };
        let mut offers: Vec<ArenaOffer> = (1..n).map(|_| ArenaOffer::make(n).unwrap()).collect();
        offers.insert(0, offer);
        let arenas = offers.into_iter().enumerate().map(|(me, offer)| {
            let source = Source { pid, fd, heap_bytes, n_local_max: n, processes: &processes };
            let casualties = Arc::new(Casualties::new(n as u32));
            Arc::new(Arena::join(offer, source, ranks.clone(), me, patience, casualties).unwrap())
        });
        let open = |(me, arena)| Lane::open(arena, 0, ranks.clone(), me, Duration::from_secs(600)).unwrap();
        arenas.enumerate().map(open).collect()
    }

    #[test]
    fn sleeping_ranks_miss_neither_turns_nor_wake_ups() {
        const CALLS: u64 = 2_000;
        let (done, all) = mpsc::channel();
        let lanes = lanes(3);
        let n = lanes.len();
        for mut lane in lanes {
            let done = done.clone();
            std::thread::spawn(move || {
                for call in 0..CALLS {
                    // Calls of one turn and of more turns than the ring has slots, one ahead as plans are.
                    let n_turns = if call % 3 == 0 { 20 } else { 1 };
                    for turn in 0..=n_turns {
                        if turn < n_turns {
                            lane.acquire(turn).unwrap();
                            let what = call * 1000 + u64::from(turn);
                            lane.write_header(turn, CallHeader { what, ..CallHeader::default() });
                            lane.publish(turn);
                        }
                        let Some(read) = turn.checked_sub(1) else { continue };
                        let me = lane.me();
                        for member in (0..n).filter(|&m| m != me) {
                            lane.await_turn(member, read).unwrap();
                            let what = lane.header(member, read).what;
                            assert_eq!(what, call * 1000 + u64::from(read), "LANE-1, LANE-2, LANE-3");
                        }
                        if read + 1 < n_turns {
                            lane.release(read);
                        }
                    }
                    lane.finish(n_turns);
                }
                done.send(lane.me()).unwrap();
            });
        }
        for _ in 0..n {
            all.recv_timeout(Duration::from_secs(120)).expect("WAIT-2: no rank sleeps through its wake-up");
        }
    }
}
