//! A world: the membership of one epoch. Built once, never repaired.
//!
//! - WORLD-1: every rank of a world has the same roster, hence the same topology.

mod join;
pub(crate) mod place;
mod roster;
mod serve;

use crate::{
    arena::{Arena, ArenaOffer, Patience},
    auth::{Caller, Purpose},
    channel::{Channel, Terms},
    discover::{self, BoardAddress, Identity, Meeting},
    error::NetError,
    forks::Own,
    hub::{
        Hub,
        message::{FailureKind, Member, Words},
    },
    link::{self, Link, LinkAddress},
    log,
    lost::{Casualties, Doom},
    secret::Secret,
    secret_source,
    task::TaskSpec,
    watch::Watch,
};
use join::Guest;
use phalanx_core::{Config, ConfigError, Epoch, Rank, TaskRole, Topology};
use place::{ATTEMPT, Knock, Place, RETRY_EVERY, shake};
use roster::{introduce, patience_of, share_memory};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// How long to look for the hub again after it closed the connection without a word.
const KNOCK_AGAIN: Duration = Duration::from_secs(1);
/// How long a rank that nothing is known against may refuse a link; longer than it takes to find out that it is frozen.
const LINK_PATIENCE: Duration = Duration::from_secs(10);
/// How long one handshake of a link may take before it is tried again.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// How long the hub has to say what every rank shall name as the reason of a failure.
const AGREEMENT: Duration = Duration::from_millis(250);

/// Communicators count from 0; nobody opens this many.
const TABLES: u32 = 1 << 31;

/// Of a rank that says nothing of the layers above.
const OWN_BUILD: &str = env!("CARGO_PKG_VERSION");
/// How long a rank that ends waits for its last words to be taken.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// One rank's place in a world, with all it needs to talk to the others.
#[derive(Debug)]
pub struct World {
    rank: Rank,
    source: &'static str,
    topology: Arc<Topology>,
    /// Of the workers alone.
    workers: Arc<Topology>,
    members: Vec<Member>,
    config: Config,
    /// What carries links wherever it leads.
    transport: &'static link::StreamTransport,
    terms: Terms,
    arena: Option<Arc<Arena>>,
    patience: Patience,
    casualties: Arc<Casualties>,
    /// Number 0, the whole world's, is taken.
    claimed: AtomicBool,
    /// It was said whom this rank missed.
    has_missed: AtomicBool,
    /// The process that joined.
    owner: u32,
    /// Communicator numbers below this are taken, as far as this rank knows.
    next_communicator: AtomicU32,
    /// How often tables were opened on this world.
    n_tables: AtomicU32,
    /// Held by the thread that agrees with other ranks on new numbers.
    splitting: Mutex<()>,
    /// A lock because several communicators of this rank open links; never held while one is used.
    links: Mutex<BTreeMap<(Rank, u32), Arc<Link>>>,
    watch: Option<Watch>,
    /// Where this rank serves it.
    hub: Option<Hub>,
}

impl World {
    /// Joins the world that the environment describes.
    pub fn from_env() -> Result<World, NetError> {
        World::from_env_with(OWN_BUILD)
    }

    /// The same for a rank whose build of the layers above is this one; only ranks of equal builds form a world.
    pub fn from_env_with(build: &str) -> Result<World, NetError> {
        World::from_env_as(None, build)
    }

    /// The same as this task of a cluster, if one is given: the environment has the settings and the secret, the task says who this process is.
    pub fn from_env_as(task: Option<&TaskSpec>, build: &str) -> Result<World, NetError> {
        let config = Config::from_vars(
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        )?;
        log::start(config.log.as_ref());
        let parent = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get() as u32);
        let var = |name: &str| std::env::var(name).ok();
        let identity = match task {
            Some(task) => task.identity(&var, parent)?,
            None => discover::discover(&var, parent)?,
        };
        if identity.role == TaskRole::Evaluator {
            tracing::info!("this process evaluates: it is alone in its world, and no worker waits for it");
        }
        if identity.rank == Rank::ZERO {
            config.remarks.iter().for_each(|remark| crate::voice::warn(remark));
        }
        let mut key_file = None;
        let secret = match &identity.meeting {
            Meeting::Alone => None,
            Meeting::Board(BoardAddress::Etcd { .. } | BoardAddress::File { .. }) | Meeting::Pod { .. } => {
                secret_source::existing()?
            }
            Meeting::Board(_) => secret_source::given()?,
            meeting => {
                let found = secret_source::find()?;
                // Ranks of one host have one home.
                let is_on_one_host = matches!(meeting, Meeting::RankZero { hosts, .. } if hosts.is_empty());
                key_file = found.key_file.filter(|_| !is_on_one_host);
                Some(found.secret)
            }
        };
        World::enter(identity, secret, config, build).map_err(|error| match key_file {
            Some(path) => error.of_users_key(&path),
            None => error,
        })
    }

    /// Whether every rank would refuse these settings for what they name and only this crate knows.
    pub fn check(config: &Config) -> Result<(), ConfigError> {
        link::chosen(config).map(|_| ())
    }

    /// Joins the world as this rank.
    pub fn join(identity: Identity, secret: Secret, config: Config) -> Result<World, NetError> {
        World::join_with(identity, secret, config, OWN_BUILD)
    }

    /// Joins the world as this rank, of this build.
    pub fn join_with(
        identity: Identity,
        secret: Secret,
        config: Config,
        build: &str,
    ) -> Result<World, NetError> {
        World::enter(identity, Some(secret), config, build)
    }

    fn enter(
        identity: Identity,
        secret: Option<Secret>,
        config: Config,
        build: &str,
    ) -> Result<World, NetError> {
        let transport = link::chosen(&config)?;
        match Place::find(&identity, secret, &config)? {
            None => Ok(World::alone(identity, config, transport, build)),
            Some(place) => Guest::knock(identity, place, config, build)?.meet()?.share()?.watch(),
        }
    }

    fn alone(
        identity: Identity,
        config: Config,
        transport: &'static link::StreamTransport,
        build: &str,
    ) -> World {
        // Nobody shares it: where there is none, buffers are ordinary memory.
        let offer = ArenaOffer::make(1).ok();
        let me = introduce(&identity, &config, offer.as_ref(), Vec::new(), build);
        let casualties = Arc::new(Casualties::new(1));
        let members = vec![me];
        let patience = patience_of(&members, &[Rank::ZERO]);
        let share =
            |offer| share_memory(offer, &members, &[Rank::ZERO], patience, &identity, &casualties).ok();
        let arena = offer.and_then(share);
        tracing::info!(
            rank = 0,
            n_ranks = 1,
            source = identity.source,
            role = %identity.role,
            "world formed: this process is alone"
        );
        World {
            rank: Rank::ZERO,
            source: identity.source,
            topology: Arc::new(Topology::one_host(1)),
            workers: Arc::new(Topology::one_host(1)),
            members,
            config,
            transport,
            terms: Secret::random().into(),
            arena,
            patience,
            casualties,
            claimed: AtomicBool::new(false),
            has_missed: AtomicBool::new(false),
            owner: std::process::id(),
            next_communicator: AtomicU32::new(1),
            n_tables: AtomicU32::new(0),
            splitting: Mutex::new(()),
            links: Mutex::new(BTreeMap::new()),
            watch: None,
            hub: None,
        }
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn n_ranks(&self) -> u32 {
        self.topology.n_ranks()
    }

    /// How many ranks train: the ranks below this number, of which communicators and engines consist. An evaluator is alone in its world
    /// and counts there.
    pub fn n_workers(&self) -> u32 {
        self.workers.n_ranks()
    }

    pub fn is_worker(&self, rank: Rank) -> bool {
        rank.0 < self.n_workers()
    }

    /// The ranks that serve; they have the highest numbers.
    pub fn servers(&self) -> impl ExactSizeIterator<Item = Rank> + use<> {
        (self.n_workers()..self.n_ranks()).map(Rank)
    }

    /// What this process is there for.
    pub fn role(&self) -> TaskRole {
        self.members[self.rank.index()].role
    }

    /// Where the workers are; servers are left out.
    pub fn workers(&self) -> &Arc<Topology> {
        &self.workers
    }

    /// Which launcher's words made this world.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// Where all ranks are, servers included.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    /// How ranks of this host wait for each other: whether each has a core of its own.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    pub fn casualties(&self) -> &Casualties {
        &self.casualties
    }

    pub fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    /// The lowest communicator number this rank has not seen in use; 0 is the whole world's.
    pub fn next_communicator(&self) -> u32 {
        self.next_communicator.load(Ordering::Relaxed)
    }

    /// The number of the links of tables that are opened now; ranks open tables in the same order. They have a range of their own.
    pub fn next_tables(&self) -> u32 {
        // Relaxed: a counter.
        TABLES + self.n_tables.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins to agree on new communicator numbers; `None` while another thread of this process does.
    pub fn begin_split(&self) -> Option<MutexGuard<'_, ()>> {
        match self.splitting.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the whole world's communicator number; true once.
    pub fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }

    /// Whether this process joined; a forked child of it did not, and must leave its parent's world alone.
    pub fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Closes the links of a communicator that is gone.
    pub fn close_links(&self, stream: u32) {
        if !self.is_ours() {
            // A forked child may have inherited the lock from a thread that it has not, and its links lead nowhere (FORK-1).
            return;
        }
        self.links.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, of), _| *of != stream);
    }

    /// Numbers below this are taken from now on. Relaxed: ranks agree on numbers by collectives, which order everything.
    pub fn take_communicators_below(&self, number: u32) {
        self.next_communicator.fetch_max(number, Ordering::Relaxed);
    }

    /// Ends this world for every rank: called by the rank whose operation failed. Returns what every rank names as the reason, which another
    /// rank may have known better; by then every rank has been told, so that this rank may end.
    pub fn doom(&self, doom: Doom) -> Doom {
        if !self.is_ours() {
            // The arena is shared with the parent and the other ranks, whose world goes on.
            return doom;
        }
        let agreed = self.watch.as_ref().and_then(|watch| {
            watch.doom(doom.clone());
            self.casualties.await_agreement(AGREEMENT)
        });
        let agreed = agreed.unwrap_or(doom);
        tracing::info!(rank = %self.rank, reason = ?agreed, "this world is over");
        self.casualties.doom(agreed.clone());
        // Ranks that wait for this one are told even if there is no hub to tell them.
        if let Some(arena) = &self.arena {
            arena.poison(&agreed);
        }
        self.links.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|link| link.shut());
        agreed
    }

    /// Says, once, that this rank wanted something of one that had left in order. Returns once that is on its way, so that this rank may end.
    pub fn missed(&self, whom: Rank) {
        // Relaxed: several threads may come, and one speaks.
        if let Some(watch) = self.watch.as_ref().filter(|_| !self.has_missed.swap(true, Ordering::Relaxed)) {
            watch.missed(whom, LAST_WORDS);
        }
    }

    /// Shows the person before the launcher a notice; false where there is no launcher.
    pub fn tell_launcher(&self, text: &str) -> bool {
        self.say(Words::Notice(text.to_string()), Duration::ZERO)
    }

    /// Tells the launcher why this rank is about to end. Returns once that is on its way, or cannot be for now; false where there is no launcher.
    pub fn tell_failure(&self, kind: FailureKind, text: &str) -> bool {
        self.say(Words::Failure { kind, text: text.to_string() }, LAST_WORDS)
    }

    fn say(&self, words: Words, at_most: Duration) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.tell_launcher(words, at_most))
    }

    /// The link number `stream` to a rank; opened when it is first wanted. The higher rank connects, the lower one accepts.
    pub fn link(&self, peer: Rank, stream: u32) -> Result<Arc<Link>, NetError> {
        if let Some(link) = self.links.lock().unwrap_or_else(PoisonError::into_inner).get(&(peer, stream)) {
            return Ok(link.clone());
        }
        let watch = self.watch.as_ref().expect("a rank with peers has a watch");
        let deadline = Instant::now() + self.config.timeout;
        let channel = if self.rank > peer {
            self.connect(peer, stream, deadline)?
        } else {
            self.accept(watch, peer, stream, deadline)?
        };
        let link = Link::new(peer, channel)
            .map_err(|error| NetError::System { what: "cannot set up a link", error })?;
        let link = Arc::new(link);
        tracing::info!(rank = %self.rank, %peer, stream, transport = self.transport_to(peer), encrypted = link.is_encrypted(), "link opened");
        self.links.lock().unwrap_or_else(PoisonError::into_inner).insert((peer, stream), link.clone());
        Ok(link)
    }

    /// What carries the links to a rank, by its name.
    pub fn transport_to(&self, peer: Rank) -> &'static str {
        self.transport_towards(peer).name
    }

    fn transport_towards(&self, peer: Rank) -> &'static link::StreamTransport {
        link::towards(self.transport, self.topology.host_of(peer) == self.topology.host_of(self.rank))
    }

    fn accept(&self, watch: &Watch, peer: Rank, stream: u32, deadline: Instant) -> Result<Channel, NetError> {
        let start = Instant::now();
        loop {
            // In slices, to see a verdict about the peer meanwhile.
            let slice = (Instant::now() + RETRY_EVERY).min(deadline);
            if let Some(channel) = watch.inbox().take(peer, stream, slice) {
                return Ok(channel);
            }
            if let Some(doom) = self.casualties.verdict(peer) {
                return Err(doom.into());
            }
            if Instant::now() >= deadline {
                return Err(NetError::Late { rank: peer, waited_s: start.elapsed().as_secs_f64() });
            }
        }
    }

    /// Tries again until the peer answers or something is known against it: it may be dying, frozen, or besieged by strangers.
    fn connect(&self, peer: Rank, stream: u32, deadline: Instant) -> Result<Channel, NetError> {
        let deadline = deadline.min(Instant::now() + LINK_PATIENCE);
        let transport = self.transport_towards(peer);
        let addresses: Vec<&LinkAddress> =
            self.members[peer.index()].addresses.iter().filter(|a| a.transport() == transport.name).collect();
        let mut last = format!("it has no {} address", transport.name);
        loop {
            for address in &addresses {
                if let Some(doom) = self.casualties.verdict(peer) {
                    return Err(doom.into());
                }
                let caller = Caller { rank: self.rank, epoch: Epoch(0), stream };
                let tried =
                    (transport.dial)(address.address(), ATTEMPT).map_err(Knock::Io).and_then(|socket| {
                        shake(Own::new(socket), &self.terms, Purpose::Link(peer), caller, HANDSHAKE)
                    });
                match tried {
                    Ok(channel) => return Ok(channel),
                    Err(Knock::Io(e)) => last = e.to_string(),
                    Err(Knock::Auth(error)) => {
                        return Err(NetError::Auth { with: format!("rank {peer}"), error });
                    }
                }
            }
            if Instant::now() >= deadline {
                let tried = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                return Err(NetError::NoLink { rank: peer, tried, last });
            }
            // The peer's door may be shut for a moment; a verdict about it ends the wait at once.
            self.casualties.await_verdict(peer, RETRY_EVERY);
        }
    }
}

/// Leaves, and then, where this rank serves the hub, serves it until the others have left, too: without it they could not tell each other of
/// failures. A rank that ends by a panic does not leave; its end is a failure, and the others are not waited for.
impl Drop for World {
    fn drop(&mut self) {
        if !self.is_ours() {
            // A forked child has neither the watch nor the hub's thread; both belong to its parent.
            std::mem::forget(self.hub.take());
            return;
        }
        let Some(hub) = self.hub.take().filter(|_| !std::thread::panicking()) else { return };
        drop(self.watch.take());
        if self.casualties.doomed().is_none() {
            hub.outlast_others(self.config.timeout);
        }
    }
}
