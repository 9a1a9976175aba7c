//! The one background thread of a rank: it notices lost ranks, sends heartbeats, and accepts links.
//! It never touches data.
//!
//! - WATCH-1: a dead process is an event (pidfd inside the host, closed connection through the hub), never a timeout.
//! - WATCH-2: after a verdict is recorded every waiter is woken: the arena's doorbells ring and every subscribed event counter is raised.
//! - WATCH-3: if a rank that serves the hub is lost without leaving, the hub sends no more messages: the world ends on every rank
//!   `ORPHANED` later, and every failure until then is attributed to that rank.

use crate::{
    arena::Arena,
    auth::Purpose,
    channel::{Channel, Terms},
    door::{Door, Listener},
    ending::End,
    frame::{self, Decoder},
    hub::{
        cause_of,
        message::{Down, Up, Words},
        state::{BEAT_MS, SILENT_MS},
    },
    inbox::Inbox,
    lost::{Casualties, Cause, Doom, Lost},
};
use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};
use phalanx_core::Rank;
use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a process that panicked may take to end.
const LINGER: Duration = Duration::from_millis(500);
/// How much may wait to be said before words for people are left out.
const MAX_BACKLOG: usize = 1 << 20;
const WAKER: Token = Token(0);
const HUB: Token = Token(1);
const FIRST_PIDFD: usize = 2;
/// How long operations that do not need the lost hub's rank may still end well.
const ORPHANED: Duration = Duration::from_millis(80);

/// Who serves the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubHost {
    /// Our launcher. It may be stopped by its user's Ctrl-Z, so silence alone means nothing.
    Launcher,
    Rank(Rank),
}

/// What the thread watches over.
#[derive(Debug)]
pub struct Watched {
    pub me: Rank,
    pub hub: Channel,
    pub hub_host: HubHost,
    /// Bytes of the hub's stream that were read while joining but not yet decoded.
    pub decoder: Decoder,
    pub listeners: Vec<Listener>,
    pub terms: Terms,
    pub pidfds: Vec<(Rank, OwnedFd)>,
    pub arena: Option<Arc<Arena>>,
    pub casualties: Arc<Casualties>,
}

/// A running watch; dropping it leaves the world in order.
#[derive(Debug)]
pub struct Watch {
    /// Taken to end the thread without a word.
    orders: Option<mpsc::Sender<Order>>,
    /// The process that started it: a forked child has the handle, but not the thread.
    owner: u32,
    waker: Arc<Waker>,
    inbox: Arc<Inbox>,
    subscribers: Subscribers,
    hub_host: HubHost,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is to say.
#[derive(Debug)]
struct Order {
    up: Up,
    /// Dropped once the system has taken it, or nobody ever will.
    said: Option<mpsc::SyncSender<()>>,
}

/// Descriptors that want to hear of every verdict. A lock because subscribing is another thread's business.
type Subscribers = Arc<Mutex<Vec<Arc<OwnedFd>>>>;

impl Watch {
    pub fn start(watched: Watched) -> io::Result<Watch> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let first_guest = FIRST_PIDFD + watched.pidfds.len();
        let door = Door::open(
            watched.listeners,
            watched.terms,
            Purpose::Link(watched.me),
            first_guest,
            poll.registry(),
        )?;
        watched.hub.socket().set_nonblocking(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut SourceFd(&watched.hub.as_raw_fd()), HUB, interest)?;
        for (i, (_, pidfd)) in watched.pidfds.iter().enumerate() {
            let token = Token(FIRST_PIDFD + i);
            poll.registry().register(&mut SourceFd(&pidfd.as_raw_fd()), token, Interest::READABLE)?;
        }
        let inbox = Arc::new(Inbox::default());
        let subscribers = Subscribers::default();
        let (orders, commands) = mpsc::channel();
        let watching = Watching {
            poll,
            door,
            hub: Some(watched.hub),
            hub_host: watched.hub_host,
            hub_heard: Instant::now(),
            hub_frozen: false,
            orphaned: None,
            decoder: watched.decoder,
            backlog: Vec::new(),
            me: watched.me,
            pidfds: watched.pidfds,
            arena: watched.arena,
            casualties: watched.casualties,
            inbox: inbox.clone(),
            subscribers: subscribers.clone(),
            commands,
            unsaid: Vec::new(),
        };
        let thread =
            std::thread::Builder::new().name("phalanx-watch".into()).spawn(move || watching.run())?;
        Ok(Watch {
            orders: Some(orders),
            owner: std::process::id(),
            waker,
            inbox,
            subscribers,
            hub_host: watched.hub_host,
            thread: Some(thread),
        })
    }

    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Adds an event counter that is raised at every verdict from now on, until it is unsubscribed.
    pub fn subscribe(&self, event: Arc<OwnedFd>) {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    pub fn unsubscribe(&self, event: &Arc<OwnedFd>) {
        if self.owner != std::process::id() {
            // A forked child may have inherited the lock from a thread that it has not.
            return;
        }
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).retain(|e| !Arc::ptr_eq(e, event));
    }

    /// Tells every rank why this world is over.
    pub fn doom(&self, doom: Doom) {
        self.order(Up::Doomed(doom), None);
    }

    /// Says something to the person before the launcher; false where there is no launcher. Waits so long for the system to take it: a process
    /// that ends at once would take its words with it.
    pub fn tell_launcher(&self, words: Words, at_most: Duration) -> bool {
        if self.hub_host != HubHost::Launcher || self.owner != std::process::id() {
            return false;
        }
        self.say_within(Up::Words(words.plain()), at_most);
        true
    }

    /// Tells the launcher whom this rank missed; other hubs have nobody who would ask.
    pub fn missed(&self, whom: Rank, at_most: Duration) {
        if self.hub_host == HubHost::Launcher && self.owner == std::process::id() {
            self.say_within(Up::Missed(whom), at_most);
        }
    }

    fn say_within(&self, up: Up, at_most: Duration) {
        let (said, wait) = mpsc::sync_channel(1);
        self.order(up, Some(said));
        if !at_most.is_zero() {
            // Nothing is ever sent: it ends when the other side is dropped, or is late.
            let _ = wait.recv_timeout(at_most);
        }
    }

    fn order(&self, up: Up, said: Option<mpsc::SyncSender<()>>) {
        // A watch that has ended has already told every rank the worst.
        if self.orders.as_ref().is_some_and(|orders| orders.send(Order { up, said }).is_ok()) {
            let _ = self.waker.wake();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            std::mem::forget(self.thread.take());
            return;
        }
        if std::thread::panicking() {
            // A panic is no leaving in order: the closed connection, and the launcher's words, tell the others.
            // The thread lingers until the process is gone, so that no rank hears of it before the launcher, which watches the process.
            self.orders = None;
            let _ = self.waker.wake();
            return;
        }
        self.order(Up::Leave, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct Watching {
    poll: Poll,
    door: Door,
    hub: Option<Channel>,
    hub_host: HubHost,
    hub_heard: Instant,
    hub_frozen: bool,
    /// When the rank that served the hub was lost (WATCH-3).
    orphaned: Option<Instant>,
    decoder: Decoder,
    backlog: Vec<u8>,
    me: Rank,
    pidfds: Vec<(Rank, OwnedFd)>,
    arena: Option<Arc<Arena>>,
    casualties: Arc<Casualties>,
    inbox: Arc<Inbox>,
    subscribers: Subscribers,
    commands: mpsc::Receiver<Order>,
    /// The thread that waits for the backlog to be gone.
    unsaid: Vec<mpsc::SyncSender<()>>,
}

impl Watching {
    fn run(mut self) {
        let mut events = Events::with_capacity(128);
        let beat = Duration::from_millis(BEAT_MS);
        let mut last_beat = Instant::now();
        self.hear_hub();
        loop {
            let deadlines = [Some(last_beat + beat), self.door.next_deadline(), self.next_verdict()];
            let until = deadlines.into_iter().flatten().min().expect("there is always a next beat");
            let polled = self.poll.poll(&mut events, Some(until.saturating_duration_since(Instant::now())));
            if let Err(e) = polled
                && e.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(error = %e, "cannot watch the other ranks any more");
                return;
            }
            for event in events.iter() {
                self.event(event.token());
            }
            if !self.obey() {
                return;
            }
            let now = Instant::now();
            self.door.expire(now);
            if now >= last_beat + beat {
                // After a pause of this very process nobody else's silence means anything.
                if now > last_beat + 3 * beat {
                    self.hub_heard = now;
                }
                last_beat = now;
                self.say(&Up::Alive);
            }
            self.judge_hub(now);
        }
    }

    fn event(&mut self, token: Token) {
        match token {
            WAKER => {}
            HUB => self.hear_hub(),
            Token(t) if t < FIRST_PIDFD + self.pidfds.len() => {
                let rank = self.pidfds[t - FIRST_PIDFD].0;
                let fd = self.pidfds[t - FIRST_PIDFD].1.as_raw_fd();
                let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
                self.lose(Lost { rank, cause: Cause::Ended(End::Untold) });
            }
            _ => {
                if let Some((channel, caller)) = self.door.ready(self.poll.registry(), token) {
                    let _ = self.poll.registry().deregister(&mut SourceFd(&channel.as_raw_fd()));
                    self.inbox.put(caller.rank, caller.stream, channel);
                }
            }
        }
    }

    /// Carries out commands; false when this rank leaves.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                // Words for people are left out where others do not get through either.
                Ok(Order { up: Up::Words(_), .. }) if self.backlog.len() > MAX_BACKLOG => {}
                Ok(Order { up, said }) => {
                    self.unsaid.extend(said);
                    let leaving = up == Up::Leave;
                    if let (Up::Doomed(doom), None) = (&up, &self.hub) {
                        self.casualties.agree(doom.clone()); // Nobody is left who could say otherwise.
                    }
                    self.say(&up);
                    if leaving {
                        self.part();
                        return false;
                    }
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => {
                    std::thread::park_timeout(LINGER);
                    return false;
                }
            }
        }
    }

    /// Sends what is left before the connection closes, but not for ever.
    fn part(&mut self) {
        let deadline = Instant::now() + Duration::from_millis(200);
        let mut events = Events::with_capacity(8);
        while !self.flush() && Instant::now() < deadline {
            let _ = self.poll.poll(&mut events, Some(Duration::from_millis(20)));
        }
    }

    fn say(&mut self, up: &Up) {
        self.backlog.extend(frame::encode(up).unwrap_or_default());
        self.flush();
    }

    /// Sends what goes now; true once all of it has left, or nothing ever will.
    fn flush(&mut self) -> bool {
        let is_over = self.write();
        if is_over {
            self.unsaid.clear();
        }
        is_over
    }

    fn write(&mut self) -> bool {
        let Some(hub) = &self.hub else {
            self.backlog.clear();
            return true;
        };
        while !self.backlog.is_empty() {
            match hub.send(&[IoSlice::new(&self.backlog)]) {
                Ok(n) if n > 0 => drop(self.backlog.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The reading side learns why.
                _ => {
                    self.backlog.clear();
                    return true;
                }
            }
        }
        hub.flush().unwrap_or(true)
    }

    fn hear_hub(&mut self) {
        self.flush();
        let mut bytes = [0; 16 << 10];
        loop {
            self.take_news();
            let Some(hub) = &self.hub else { return };
            match hub.recv(&mut bytes) {
                Ok(0) => return self.hub_gone(Cause::Disconnected),
                Ok(n) => {
                    self.hub_heard = Instant::now();
                    self.decoder.feed(&bytes[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return self.hub_gone(cause_of(&e)),
            }
        }
    }

    fn take_news(&mut self) {
        loop {
            match self.decoder.take::<Down>() {
                Ok(None) => return,
                Ok(Some(Down::Lost(lost))) => self.lose(lost),
                Ok(Some(Down::Doomed(doom))) => self.end_world(doom),
                Ok(Some(Down::Alive | Down::Missing(_) | Down::Roster(_))) => {}
                Ok(Some(Down::Refused(why))) => self.end_world(Doom::GaveUp { rank: self.me, why }),
                Err(e) => {
                    tracing::warn!(error = %e, "the hub sent an invalid message");
                    return self.hub_gone(Cause::Disconnected);
                }
            }
        }
    }

    fn hub_gone(&mut self, cause: Cause) {
        if let Some(hub) = self.hub.take() {
            let _ = self.poll.registry().deregister(&mut SourceFd(&hub.as_raw_fd()));
        }
        self.unsaid.clear();
        match self.hub_host {
            HubHost::Rank(rank) => {
                self.lose(Lost { rank, cause: cause.clone() });
                let cause = self.casualties.cause(rank).unwrap_or(cause);
                if cause != Cause::Left {
                    self.casualties.agree(Doom::Lost(Lost { rank, cause }));
                    self.orphaned = Some(Instant::now());
                }
            }
            HubHost::Launcher => {
                if cause == Cause::Unreachable {
                    self.casualties.cut_off();
                }
                let why = format!("the launcher is gone ({cause})");
                self.end_world(Doom::GaveUp { rank: self.me, why });
            }
        }
    }

    /// When the hub's silence, or its end, becomes a verdict. Not left to the next beat, so that all ranks judge within moments of each other
    /// and none takes another's end for the reason.
    fn next_verdict(&self) -> Option<Instant> {
        let silence = (self.hub.is_some() && !self.hub_frozen && self.hub_host != HubHost::Launcher)
            .then(|| self.hub_heard + Duration::from_millis(SILENT_MS + 1));
        silence.or(self.orphaned.map(|since| since + ORPHANED))
    }

    fn judge_hub(&mut self, now: Instant) {
        let HubHost::Rank(rank) = self.hub_host else { return };
        if self.next_verdict().is_none_or(|at| now < at) {
            return;
        }
        if self.orphaned.take().is_none() {
            self.hub_frozen = true;
            let silent_ms = now.saturating_duration_since(self.hub_heard).as_millis() as u64;
            self.lose(Lost { rank, cause: Cause::Frozen { silent_ms } });
        }
        let cause = self.casualties.cause(rank).unwrap_or(Cause::HubLost);
        self.end_world(Doom::Lost(Lost { rank, cause }));
    }

    fn end_world(&self, doom: Doom) {
        tracing::info!(rank = %self.me, reason = ?doom, "told that this world is over");
        self.casualties.agree(doom.clone());
        self.casualties.doom(doom);
        self.alarm();
    }

    fn lose(&self, lost: Lost) {
        if lost.rank == self.me {
            return;
        }
        match &lost.cause {
            Cause::Left => tracing::info!(rank = %self.me, who = %lost.rank, "a rank has left"),
            reason => tracing::info!(rank = %self.me, lost = %lost.rank, %reason, "a rank is gone"),
        }
        self.casualties.lose(lost);
        self.alarm();
    }

    /// WATCH-2.
    fn alarm(&self) {
        if let Some(arena) = &self.arena {
            arena.alarm();
        }
        for event in self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = rustix::io::write(&**event, &1u64.to_ne_bytes());
        }
    }
}
