//! The state that the engine's threads and the program's threads share.

use super::{
    counters::Tally, error::EngineError, negotiate::report::StallReport, options::EngineOptions, set::Set,
    timeline::Timeline, whereabouts::Asker,
};
use crate::error::Error;
use phalanx_core::Rank;
use phalanx_net::{
    NetError, World,
    lost::{Doom, Lost},
};
use rustix::{event::EventfdFlags, io::Errno};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

/// The process sets by number. Every rank knows all of them, members or not.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    /// Ranks of each set; the node where this rank is a member.
    pub known: BTreeMap<u32, (Vec<Rank>, Option<Arc<Set>>)>,
    /// Numbers given back, to be given out again first come, first served.
    free: VecDeque<u32>,
    next: u32,
    /// Sets that came or went since the control thread last looked.
    pub changed: bool,
    /// Those that came: one that went again meanwhile still has words for its members.
    pub fresh: Vec<Arc<Set>>,
    /// Why there is nobody any more who would end a new one.
    closed: Option<EngineError>,
}

impl Sets {
    /// The number that the next set gets. All ranks make and remove sets in the same order, so they agree.
    pub fn take_id(&mut self) -> u32 {
        self.free.pop_front().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The number that it would be.
    pub fn next_id(&self) -> u32 {
        self.free.front().copied().unwrap_or(self.next)
    }

    pub fn remove(&mut self, id: u32) -> Option<(Vec<Rank>, Option<Arc<Set>>)> {
        let removed = self.known.remove(&id)?;
        self.free.push_back(id);
        self.changed = true;
        Some(removed)
    }

    pub fn find(&self, ranks: &[Rank]) -> Option<u32> {
        self.known.iter().find(|(_, (have, _))| have == ranks).map(|(id, _)| *id)
    }
}

/// The system starts no more threads.
#[derive(Debug)]
pub(crate) struct NoThread(pub io::Error);

impl From<NoThread> for EngineError {
    fn from(NoThread(error): NoThread) -> EngineError {
        Error::from(NetError::System { what: "cannot start a thread", error }).into()
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub world: Arc<World>,
    pub options: EngineOptions,
    pub tally: Tally,
    pub timeline: Timeline,
    began: Instant,
    /// The process that started the engine.
    owner: u32,
    /// Wakes the control thread.
    wake: Arc<OwnedFd>,
    woken: AtomicBool,
    /// A lock because sets are made by a mover and used by all threads; never held while a set is used.
    sets: Mutex<Sets>,
    /// Movers of sets other than the first; a lock because another mover starts them.
    kept: Mutex<Vec<JoinHandle<()>>>,
    n_threads: AtomicU32,
    last_report: Mutex<Option<StallReport>>,
    /// A lock because it comes after the rest and goes before it; held only to pass a question on, which never waits.
    asker: Mutex<Option<Asker>>,
}

impl Shared {
    pub fn new(world: Arc<World>, options: EngineOptions) -> Result<Shared, NetError> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| NetError::System { what: "cannot make an event counter", error: e.into() })?;
        let timeline = Timeline::new(world.rank(), world.n_workers());
        Ok(Shared {
            world,
            options,
            tally: Tally::default(),
            timeline,
            began: Instant::now(),
            owner: std::process::id(),
            wake: Arc::new(wake),
            woken: AtomicBool::new(false),
            sets: Mutex::default(),
            kept: Mutex::default(),
            n_threads: AtomicU32::new(0),
            last_report: Mutex::default(),
            asker: Mutex::default(),
        })
    }

    pub fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    pub fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    pub fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread of the engine.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: String,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, NoThread> {
        // Relaxed: only the count itself matters.
        let n = self.n_threads.fetch_add(1, Ordering::Relaxed);
        if self.options.most_threads.is_some_and(|most| n >= most) {
            return Err(NoThread(Errno::AGAIN.into()));
        }
        std::thread::Builder::new().name(name).spawn(run).map_err(NoThread)
    }

    /// Keeps a thread that somebody else joins when the engine ends.
    pub fn keep(&self, thread: JoinHandle<()>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Sets come and go; what has ended needs no joining.
        kept.retain(|thread| !thread.is_finished());
        kept.push(thread);
    }

    pub fn take_kept(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The sets in which this rank is.
    pub fn own_sets(&self) -> Vec<Arc<Set>> {
        self.sets().known.values().filter_map(|(_, set)| set.clone()).collect()
    }

    pub fn wake_fd(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    pub fn wake_control(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // A full counter wakes as well.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// The control thread is awake: a thread with news from now on must wake it again.
    pub fn is_awake(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.woken.store(false, Ordering::Release);
    }

    /// Takes in a set of which this rank is. One that comes after the end of the engine ends at once.
    pub fn add_set(&self, id: u32, set: &Arc<Set>) {
        let mut sets = self.sets();
        sets.known.insert(id, (set.members.clone(), Some(set.clone())));
        sets.fresh.push(set.clone());
        sets.changed = true;
        let closed = sets.closed.clone();
        drop(sets);
        if let Some(error) = closed {
            set.end(error);
        }
    }

    /// The control thread ends: every set does, those to come included.
    pub fn close_sets(&self, error: &EngineError) {
        let fresh = {
            let mut sets = self.sets();
            sets.closed.get_or_insert(error.clone());
            std::mem::take(&mut sets.fresh)
        };
        *self.asker() = None;
        self.own_sets().iter().chain(&fresh).for_each(|set| set.end(error.clone()));
    }

    /// A worker that is lost, if one is: the first that did not leave in order. One that is merely gone may have said all it had to say before.
    pub fn lost(&self) -> Option<Lost> {
        let casualties = self.world.casualties();
        if !casualties.any() {
            return None;
        }
        let any = (0..self.world.n_workers())
            .map(Rank)
            .find_map(|rank| casualties.cause(rank).map(|cause| Lost { rank, cause }))?;
        Some(casualties.suspect(any.rank, any.cause))
    }

    /// What ended the world, if something did.
    pub fn doom(&self) -> Option<EngineError> {
        let casualties = self.world.casualties();
        let doom = casualties.any().then(|| casualties.doomed()).flatten()?;
        Some(Error::from(NetError::from(doom)).into())
    }

    /// Ends the world; all ranks are told the same, as far as the hub can.
    pub fn give_up(&self, doom: Doom) -> EngineError {
        Error::from(NetError::from(self.world.doom(doom))).into()
    }

    /// Where an operation fails because another rank ended every rank's engine, the launcher may be asked later who that was.
    pub fn note_missed(&self, error: &EngineError) {
        if let EngineError::ShutDown { rank } = error
            && *rank != self.world.rank()
        {
            self.world.missed(*rank);
        }
    }

    /// Sees to it that nobody waits for this rank, whose engine has failed. Returns what every rank names as the reason.
    pub fn ruin(&self, error: EngineError) -> EngineError {
        if let Some(known) = self.doom() {
            return known;
        }
        let me = self.world.rank();
        let doom = match &error {
            EngineError::PeerLost { rank, cause } => Doom::Lost(Lost { rank: *rank, cause: cause.clone() }),
            EngineError::Failed(failed) => match &**failed {
                Error::Net(error) => error.doom(me),
                other => Doom::GaveUp { rank: me, why: other.to_string() },
            },
            other => Doom::GaveUp { rank: me, why: other.to_string() },
        };
        self.give_up(doom)
    }

    fn asker(&self) -> MutexGuard<'_, Option<Asker>> {
        self.asker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take_asker(&self, asker: Asker) {
        *self.asker() = Some(asker);
    }

    /// Asks this rank's program where it is, on behalf of a set.
    pub fn ask_where(&self, set: u32) {
        if let Some(asker) = &*self.asker() {
            asker.ask(set);
        }
    }

    /// Tells people who keeps whom waiting, once: through the launcher, or where there is none from the first rank of the set. Every other rank
    /// says it in its log only.
    pub fn report(&self, is_first: bool, report: StallReport) {
        if is_first && !self.world.tell_launcher(&report.to_string()) {
            phalanx_net::voice::warn(&report.to_string());
        } else {
            tracing::warn!("{}", report.line());
        }
        *self.last_report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    pub fn last_report(&self) -> Option<StallReport> {
        self.last_report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
