//! The memory that the ranks of one host share.
//!
//! Layout: a control page, doorbells, then lanes (one for each communicator: every member's ring of slots), then one heap per rank.
//! The mapping is large but sparse; only touched pages exist.

mod board;
mod doze;
mod heap;
mod lane;
mod map;
mod peek;
mod sync;
mod tenants;
mod wait;

pub use board::Board;
pub use lane::{CallHeader, INLINE_BYTES, Lane, N_SLOTS, SLOT_BYTES};
pub use wait::{Patience, Unmet};

use crate::lost::{Casualties, Doom};
use heap::Heap;
use map::Map;
use peek::Target;
use phalanx_core::Rank;
use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tenants::Tenants;
use wait::{Bells, Wait};

/// Lanes an arena has room for at a time.
pub const MAX_LANES: u32 = 1024;
const SLEEPERS_AT: usize = 64;
/// Within a rank's doorbell: set once it has mapped the memory.
const PRESENT_AT: usize = 64;
/// Within a rank's doorbell: rung for threads that wait for nothing that another rank is expected to write.
const IDLE_BELL_AT: usize = 96;
const POISON_AT: usize = 320;
const DOORBELLS_AT: usize = 4096;
/// Most ranks one host may have: the sleepers' bitmap.
pub const MAX_LOCAL: usize = 1024;

/// What a rank tells the others so that they can map its memory.
#[derive(Debug)]
pub struct ArenaOffer {
    map: Map,
    heap_bytes: usize,
    target: Target,
}

impl ArenaOffer {
    /// Reserves memory before it is known whose will be used. `n_local_max` is the world's size at most.
    pub fn make(n_local_max: usize) -> io::Result<ArenaOffer> {
        // Address space is plentiful but not endless, and some systems limit it: try generous heaps first.
        // Beyond the limit on file sizes the kernel would not answer but kill.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
        let mut last = io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "the limit on file sizes (ulimit -f) is {limit} bytes, which is too small for shared memory"
            ),
        );
        for heap_bytes in [64 << 30, 4 << 30, 256 << 20usize] {
            let total = ArenaLayout::of(n_local_max, heap_bytes).total;
            if total as u64 > limit {
                continue;
            }
            match Map::create(total) {
                Ok(map) => return Ok(ArenaOffer { map, heap_bytes, target: Target::new() }),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    pub fn fd(&self) -> i32 {
        self.map.fd()
    }

    /// The address of a word that others may try to read.
    pub fn trial_address(&self) -> u64 {
        self.target.address()
    }

    pub fn heap_bytes(&self) -> u64 {
        self.heap_bytes as u64
    }
}

/// Where things are.
#[derive(Clone, Copy, Debug)]
struct ArenaLayout {
    lanes_at: usize,
    lane_bytes: usize,
    heaps_at: usize,
    total: usize,
}

impl ArenaLayout {
    fn of(n_local: usize, heap_bytes: usize) -> ArenaLayout {
        let lanes_at = (DOORBELLS_AT + Bells::bytes(n_local)).next_multiple_of(4096);
        let lane_bytes = Lane::bytes(n_local);
        let heaps_at = (lanes_at + MAX_LANES as usize * lane_bytes).next_multiple_of(2 << 20);
        ArenaLayout { lanes_at, lane_bytes, heaps_at, total: heaps_at + n_local * heap_bytes }
    }
}

/// This rank's view of its host's memory.
#[derive(Debug)]
pub struct Arena {
    map: Map,
    plan: ArenaLayout,
    bells: Bells,
    me_local: usize,
    ranks: Vec<Rank>,
    patience: Patience,
    casualties: Arc<Casualties>,
    heap_range: (usize, usize),
    /// Processes of the ranks, if the kernel lets this one read the memory of all of them.
    readable: Option<Vec<u32>>,
    /// The process it belongs to; a forked child inherits the mapping, not the membership.
    owner: u32,
    /// Threads of this process that sleep or are about to.
    n_sleeping: AtomicU32,
    /// Of these, threads whom only this process wakes, and an alarm.
    n_idle: AtomicU32,
    /// Others may try to read it as long as the arena lives.
    _target: Target,
    /// A lock because buffers may be dropped on any thread.
    heap: Mutex<Heap>,
    tenants: Arc<Tenants>,
}

/// How to reach the memory of the host's first rank.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub pid: u32,
    pub fd: i32,
    pub heap_bytes: u64,
    pub n_local_max: usize,
    /// Process and trial address of every rank of the host, in order.
    pub processes: &'a [(u32, u64)],
}

impl Arena {
    /// Maps the memory that `source` offers (this rank's own offer if it is the host's first).
    pub fn join(
        own: ArenaOffer,
        source: Source<'_>,
        ranks: Vec<Rank>,
        me_local: usize,
        patience: Patience,
        casualties: Arc<Casualties>,
    ) -> io::Result<Arena> {
        let heap_bytes = source.heap_bytes as usize;
        let plan = ArenaLayout::of(source.n_local_max, heap_bytes);
        let ArenaOffer { map: own, target, .. } = own;
        let map = if me_local == 0 { own } else { Map::open(source.pid, source.fd, plan.total)? };
        let n_local = source.n_local_max;
        let bells = Bells { sleepers_at: SLEEPERS_AT, doorbells_at: DOORBELLS_AT, n_local: ranks.len() };
        assert!(n_local <= MAX_LOCAL && me_local < n_local);
        let heap_at = plan.heaps_at + me_local * heap_bytes;
        let heap = Mutex::new(Heap::new(heap_at, heap_bytes));
        map.u32_at(bells.bell_at(me_local) + PRESENT_AT).store(1, Ordering::Release);
        bells.ring_sleepers(&map);
        let readable = source.processes.iter().all(|&(pid, address)| peek::permitted(pid, address));
        let readable = readable.then(|| source.processes.iter().map(|p| p.0).collect());
        Ok(Arena {
            map,
            plan,
            bells,
            me_local,
            ranks,
            patience,
            casualties,
            heap_range: (heap_at, heap_bytes),
            heap,
            readable,
            owner: std::process::id(),
            n_sleeping: AtomicU32::new(0),
            n_idle: AtomicU32::new(0),
            _target: target,
            tenants: Arc::default(),
        })
    }

    /// Waits until every rank of the host has mapped the memory: until then the first one, whose it is, must not go away.
    pub fn await_all(&self, timeout: Duration) -> Result<(), (Rank, Unmet)> {
        for (local, &whom) in self.ranks.iter().enumerate() {
            let present = self.map.u32_at(self.bells.bell_at(local) + PRESENT_AT);
            let here = || present.load(Ordering::Acquire) == 1;
            self.wait(whom, timeout).until(here).map_err(|unmet| (whom, unmet))?;
        }
        Ok(())
    }

    /// The ranks that share it, in order.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// This rank's place among them.
    pub fn me_local(&self) -> usize {
        self.me_local
    }

    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// For each lane whether this rank minds if some of these ranks, of which it is one, have it (TENANT-1).
    pub fn minded_lanes(&self, askers: &[Rank]) -> Vec<bool> {
        self.tenants.minded(askers)
    }

    /// Makes a lane new again that none of the ranks minded which make a communicator; they wait for each other before they open it.
    pub fn renew_lane(&self, index: u32) {
        self.tenants.forget(index);
        Lane::wipe(self, index);
    }

    /// Wakes every waiting rank so that it looks around.
    pub fn alarm(&self) {
        self.bells.ring_all(&self.map);
    }

    /// Ends the waits of every rank of this host on this one and on each other; the first poison stays.
    pub fn poison(&self, doom: &Doom) {
        let word = self.map.u64_at(POISON_AT);
        // The doorbells order it before whatever their listeners do next.
        let _ = word.compare_exchange(
            0,
            wait::poison_of(doom, self.ranks[self.me_local]),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        self.alarm();
    }

    /// Zeroed memory of this rank that every rank of the host can read and write; `None` when the heap is full.
    pub fn alloc(self: &Arc<Arena>, len: usize) -> Option<Block> {
        let at = self.heap.lock().unwrap_or_else(PoisonError::into_inner).take(len)?;
        let block = Block { arena: self.clone(), at, len };
        self.map.reserve(at, Heap::rounded(len)?).ok().map(|()| block)
    }

    /// Where in the arena these bytes lie, if they are in this rank's heap.
    #[inline]
    pub fn offset_in_heap(&self, address: *const u8, len: usize) -> Option<u64> {
        let at = self.map.offset_of(address, len)?;
        let (start, size) = self.heap_range;
        (at >= start && at + len <= start + size).then_some(at as u64)
    }

    /// The address of a peer's bytes; `None` if they are not inside the arena's heaps.
    #[inline]
    pub fn peer_bytes(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(offset).ok()?;
        let inside = at >= self.plan.heaps_at && at <= self.map.len() && len <= self.map.len() - at;
        inside.then(|| self.map.at(at, len))
    }

    /// Whether this rank may read the private memory of every rank of the host.
    pub fn can_peek(&self) -> bool {
        self.readable.is_some()
    }

    /// Copies from an address of a rank's private memory, which it has lent for the running call, to memory that the caller may write.
    pub fn peek(&self, rank: Rank, address: u64, to: *mut u8, len: usize) -> io::Result<()> {
        let place = self.ranks.iter().position(|r| *r == rank).ok_or(io::ErrorKind::NotFound)?;
        let pids = self.readable.as_ref().ok_or(io::ErrorKind::PermissionDenied)?;
        peek::read(pids[place], address, to, len)
    }

    /// Waits, for as long as it takes, until `ready`; returns false when the world is doomed instead. For threads of this process that wait
    /// for work rather than for a rank: they yield for a while and then sleep. While they are `idle`, no other rank wakes them but by an
    /// alarm; [`rouse`](Arena::rouse) does.
    pub fn linger(&self, yield_for: Duration, ready: &dyn Fn() -> bool, idle: &dyn Fn() -> bool) -> bool {
        self.wait(self.ranks[self.me_local], Duration::MAX).linger(yield_for, ready, idle)
    }

    /// Waits until `ready`, as long as ranks wait for each other before they sleep; then sleeps at most until the deadline. For a thread of
    /// this process that can run work itself: returns whether it is ready.
    pub fn look_out(&self, deadline: Instant, ready: &dyn Fn() -> bool) -> bool {
        self.wait(self.ranks[self.me_local], Duration::MAX).look_out(deadline, ready)
    }

    /// Makes the lingering threads of this process look again that are idle. Call after the write that they may be waiting for.
    pub fn rouse(&self) {
        // WAIT-2, within the process.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.n_idle.load(Ordering::SeqCst) > 0 {
            self.bells.ring_idle(&self.map, self.me_local);
        }
    }

    /// Makes the lingering threads of this process look again that are not idle. Call after the write that they may be waiting for.
    pub fn nudge(&self) {
        // WAIT-2, within the process.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.n_sleeping.load(Ordering::SeqCst) > 0 {
            self.bells.ring(&self.map, self.me_local);
        }
    }

    fn wait(&self, whom: Rank, timeout: Duration) -> Wait<'_> {
        Wait {
            map: &self.map,
            bells: self.bells,
            me_local: self.me_local,
            me: self.ranks[self.me_local],
            patience: self.patience,
            casualties: &self.casualties,
            n_sleeping: &self.n_sleeping,
            n_idle: &self.n_idle,
            whom,
            timeout,
        }
    }
}

/// Bytes of this rank's heap.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    at: usize,
    len: usize,
}

impl Block {
    pub fn address(&self) -> *mut u8 {
        self.arena.map.at(self.at, self.len)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let arena = &self.arena;
        // A forked child shares the pages but owns none of them. And after a failure a peer may still be writing here: then the block
        // is not handed out again.
        if arena.owner != std::process::id() || arena.casualties.doomed().is_some() {
            return;
        }
        let Some(len) = Heap::rounded(self.len) else { return };
        // Zeroes the pages for the next owner. If the system refuses, the block is not handed out again, either.
        if arena.map.punch(self.at, len).is_ok() {
            arena.heap.lock().unwrap_or_else(PoisonError::into_inner).give(self.at, self.len);
        }
    }
}
