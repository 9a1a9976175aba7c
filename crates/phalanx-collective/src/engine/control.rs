//! The control thread: carries the nodes' messages between ranks, watches the clock and the world.
//!
//! - CTL-1: when a rank is lost, every operation that waits is answered with that rank and the cause, and the thread ends.
//! - CTL-2: an engine ends in order when every set of this rank has been told that it is over; a link that closes after that is not a failure.
//! - CTL-3: however this thread ends, every operation is answered, no rank waits for this one in vain, and sets made later end at once.

use super::{
    error::EngineError,
    letter::{Letter, MAX_FRAME},
    negotiate::Input,
    set::Set,
    shared::Shared,
};
use phalanx_core::Rank;
use phalanx_net::{
    Link, frame,
    lost::{Cause, Doom},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::BTreeMap,
    io::IoSlice,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

/// Nothing is awaited this long without a look around.
const NAP_MS: u64 = 1000;
/// How long the verdict about a rank whose link closed may take.
const VERDICT: Duration = Duration::from_millis(600);

/// How long news that a lost rank sent may be on the way.
const NEWS: Duration = Duration::from_millis(250);

struct Peer {
    link: Arc<Link>,
    decoder: frame::Decoder,
    out: Vec<u8>,
    sent: usize,
    closed: Option<Instant>,
}

impl Peer {
    fn has_unsent(&self) -> bool {
        self.sent < self.out.len() || self.link.holds()
    }
}

pub(crate) struct Control {
    shared: Arc<Shared>,
    /// Distinguishes the links of this engine from those of earlier ones in the same world.
    stream: u32,
    peers: BTreeMap<Rank, Peer>,
    sets: BTreeMap<u32, Arc<Set>>,
    /// For sets that this rank does not have yet, and from whom: others were faster.
    early: Vec<(Rank, Letter)>,
    bytes: Vec<u8>,
    newest: u32,
    leaving: bool,
    lost_since: Option<Instant>,
}

impl Control {
    pub fn new(shared: Arc<Shared>, stream: u32) -> Control {
        Control {
            shared,
            stream,
            peers: BTreeMap::new(),
            sets: BTreeMap::new(),
            early: Vec::new(),
            bytes: vec![0; 64 << 10],
            newest: 0,
            leaving: false,
            lost_since: None,
        }
    }

    /// Takes in the sets that came, and opens their links.
    pub fn connect(&mut self) -> Result<(), EngineError> {
        let fresh = std::mem::take(&mut self.shared.sets().fresh);
        for set in fresh {
            let places: Vec<usize> = set.state().node.neighbours().collect();
            self.newest = self.newest.max(set.number);
            self.sets.insert(set.number, set.clone());
            for place in places {
                let rank = set.members[place];
                if !self.peers.contains_key(&rank) {
                    let link =
                        self.shared.world.link(rank, self.stream).map_err(crate::error::Error::from)?;
                    let decoder = frame::Decoder::new(MAX_FRAME);
                    self.peers.insert(rank, Peer { link, decoder, out: Vec::new(), sent: 0, closed: None });
                }
            }
        }
        Ok(())
    }

    pub fn run(mut self) {
        if let Some(watch) = self.shared.world.watch() {
            watch.subscribe(self.shared.wake_fd().clone());
        }
        // A panic here is our own fault; that nobody waits for ever because of it is worth the catch.
        let why = catch_unwind(AssertUnwindSafe(|| self.attend())).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no word");
            let why = format!("the control thread of its engine panicked: {said}");
            Err(self.shared.give_up(Doom::GaveUp { rank: self.shared.world.rank(), why }))
        });
        let why = why.unwrap_or_else(|error| self.shared.ruin(error));
        self.shared.close_sets(&why);
        self.sets.values().for_each(|set| set.end(why.clone()));
        if let Some(watch) = self.shared.world.watch() {
            watch.unsubscribe(self.shared.wake_fd());
        }
        self.shared.world.close_links(self.stream);
    }

    /// Returns why it is over: in order, or as an error if somebody is lost.
    fn attend(&mut self) -> Result<EngineError, EngineError> {
        loop {
            self.shared.is_awake();
            if std::mem::take(&mut self.shared.sets().changed) {
                self.connect()?;
                let (known, later) =
                    std::mem::take(&mut self.early).into_iter().partition(|(_, l)| l.set <= self.newest);
                self.early = later;
                (known as Vec<(Rank, Letter)>).into_iter().try_for_each(|(from, l)| self.deliver(from, l))?;
            }
            self.receive()?;
            let mut next_us = None;
            for set in self.sets.values() {
                set.drive(&self.shared, Input::Flush);
                next_us = [next_us, set.state().node.next_look_us(self.shared.now_us())]
                    .into_iter()
                    .flatten()
                    .min();
            }
            self.judge_sets()?;
            self.collect();
            self.sets.retain(|_, set| set.id == 0 || !is_done_with(set));
            self.send();
            if let Some(why) = self.is_over() {
                return Ok(why);
            }
            self.judge_lost()?;
            self.judge_closed()?;
            self.nap(next_us);
        }
    }

    /// CTL-2. The end of the first set is the end of all; the others hear of it from here.
    fn is_over(&mut self) -> Option<EngineError> {
        let first = self.sets.values().find(|set| set.id == 0)?;
        let why = first.state().ended.clone()?;
        if !self.leaving {
            self.leaving = true;
            let by = match &why {
                EngineError::ShutDown { rank } => *rank,
                _ => self.shared.world.rank(),
            };
            for set in self.sets.values().filter(|set| set.id != 0) {
                set.drive(&self.shared, Input::End(by));
            }
        }
        let sent = self.peers.values().all(|p| !p.has_unsent() || p.closed.is_some());
        (self.sets.values().all(|set| is_done_with(set)) && sent).then_some(why)
    }

    /// CTL-3: a set that failed on this rank alone, and a neighbour that talks nonsense, are failures of all.
    fn judge_sets(&self) -> Result<(), EngineError> {
        for set in self.sets.values() {
            let state = set.state();
            let in_order =
                |e: &&EngineError| matches!(e, EngineError::ShutDown { .. } | EngineError::Stalled { .. });
            if let Some(error) = state.ended.as_ref().filter(|e| !in_order(e)) {
                return Err(error.clone());
            }
            let garbage = state.node.garbage();
            drop(state);
            if let Some((rank, what)) = garbage {
                return Err(self.nonsense(rank, what));
            }
        }
        Ok(())
    }

    fn nonsense(&self, rank: Rank, what: &str) -> EngineError {
        let why = format!("its engine sent rank {} an invalid message: {what}", self.shared.world.rank());
        self.shared.give_up(Doom::GaveUp { rank, why })
    }

    fn deliver(&mut self, sender: Rank, letter: Letter) -> Result<(), EngineError> {
        let Some(set) = self.sets.get(&letter.set) else {
            if letter.set > self.newest {
                self.early.push((sender, letter));
            }
            return Ok(());
        };
        let (from, message) = (letter.from as usize, letter.message);
        if set.members.get(from) != Some(&sender) {
            return Err(self.nonsense(sender, "a message in another rank's name"));
        }
        set.drive(&self.shared, Input::Heard { from, message });
        Ok(())
    }

    fn receive(&mut self) -> Result<(), EngineError> {
        let mut letters = Vec::new();
        let mut garbled = None;
        for (rank, peer) in self.peers.iter_mut().filter(|(_, p)| p.closed.is_none()) {
            loop {
                match peer.link.recv_some(&mut self.bytes) {
                    Ok(0) => break,
                    Ok(n) => peer.decoder.feed(&self.bytes[..n]),
                    Err(_) => {
                        peer.closed = Some(Instant::now());
                        break;
                    }
                }
            }
            loop {
                match peer.decoder.take::<Letter>() {
                    Ok(None) => break,
                    Ok(Some(letter)) => letters.push((*rank, letter)),
                    Err(error) => {
                        garbled = Some((*rank, error.to_string()));
                        break;
                    }
                }
            }
        }
        letters.into_iter().try_for_each(|(sender, letter)| self.deliver(sender, letter))?;
        garbled.map_or(Ok(()), |(rank, what)| Err(self.nonsense(rank, &what)))
    }

    fn collect(&mut self) {
        for set in self.sets.values() {
            let outbox = std::mem::take(&mut set.state().outbox);
            for (to, message) in outbox {
                let letter = Letter { set: set.number, from: set.me as u32, message };
                let bytes = frame::encode(&letter).expect("control messages are made of small parts");
                if let Some(peer) = self.peers.get_mut(&set.members[to]) {
                    peer.out.extend(bytes);
                }
            }
        }
    }

    fn send(&mut self) {
        for peer in self.peers.values_mut().filter(|p| p.closed.is_none()) {
            while peer.sent < peer.out.len() {
                match peer.link.send_some(&[IoSlice::new(&peer.out[peer.sent..])]) {
                    Ok(0) => break,
                    Ok(n) => peer.sent += n,
                    Err(_) => {
                        peer.closed = Some(Instant::now());
                        break;
                    }
                }
            }
            if peer.link.flush().is_err() {
                peer.closed.get_or_insert_with(Instant::now);
            }
            if peer.sent == peer.out.len() {
                peer.out.clear();
                peer.sent = 0;
            }
        }
    }

    /// CTL-1. A rank that is gone may have ended the engine in order before, and the news may still be on the way.
    fn judge_lost(&mut self) -> Result<(), EngineError> {
        if let Some(error) = self.shared.doom() {
            return Err(error);
        }
        let Some(lost) = self.shared.lost() else { return Ok(()) };
        let gone = match &lost.cause {
            Cause::Left | Cause::Disconnected => true,
            // A rank that crashed has not ended its engine in order, or it does not matter any more.
            Cause::Ended(end) => end.may_be_in_order(),
            _ => false,
        };
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if gone && since.elapsed() < NEWS { Ok(()) } else { Err(self.shared.give_up(Doom::Lost(lost))) }
    }

    /// A link that closed for no known reason is a reason, after a while.
    fn judge_closed(&self) -> Result<(), EngineError> {
        for (rank, peer) in &self.peers {
            if peer.closed.is_some_and(|at| at.elapsed() > VERDICT) {
                let lost = self.shared.world.casualties().suspect(*rank, Cause::Disconnected);
                return Err(self.shared.give_up(Doom::Lost(lost)));
            }
        }
        Ok(())
    }

    fn nap(&self, next_us: Option<u64>) {
        let now = self.shared.now_us();
        let mut ms = next_us.map_or(NAP_MS, |at| (at.saturating_sub(now)).div_ceil(1000)).min(NAP_MS);
        if self.lost_since.is_some() || self.peers.values().any(|p| p.closed.is_some()) {
            ms = ms.min(10);
        }
        let mut fds = vec![PollFd::new(&**self.shared.wake_fd(), PollFlags::IN)];
        for peer in self.peers.values().filter(|p| p.closed.is_none()) {
            let out = if peer.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(peer.link.as_fd(), PollFlags::IN | out));
        }
        let timeout = Timespec { tv_sec: (ms / 1000) as _, tv_nsec: (ms % 1000 * 1_000_000) as _ };
        // Whatever ends it: look at everything again.
        let _ = poll(&mut fds, Some(&timeout));
    }
}

/// Whether a set has ended and has nothing left to tell. What it has to tell comes with its end, not after it.
fn is_done_with(set: &Set) -> bool {
    set.has_ended() && set.state().outbox.is_empty()
}
