//! The station of a process: one thread that runs its office and its server and carries their letters.
//!
//! - STATION-1: it ends when every worker and every other office has said that it wants nothing more; or when a rank that it needs is lost, and
//!   then every rank of the world names that rank.

use crate::{
    counter::Counter,
    error::PsError,
    letter::{LetterKind, RowLetter},
    mail::{MailError, RowWire},
    office::{Office, Port},
    seats::{Seats, port_of},
    shard::Shard,
    spec::TableSpec,
};
use phalanx_core::Rank;
use phalanx_net::{
    World,
    lost::{Cause, Doom, Lost},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long to wait for the verdict on a peer whose connection broke.
const VERDICT: Duration = Duration::from_millis(250);
/// Nothing is awaited this long without a look around.
const NAP: Duration = Duration::from_millis(20);

/// What a station is made of.
pub struct StationSetup {
    pub world: Arc<World>,
    pub specs: Arc<[TableSpec]>,
    pub seats: Seats,
    pub office: Option<Office>,
    pub shard: Option<Shard>,
    pub wires: BTreeMap<Rank, RowWire>,
}

/// A station that runs.
#[derive(Debug)]
pub struct Station {
    pub counter: Arc<Counter>,
    thread: Option<JoinHandle<()>>,
}

impl Station {
    pub fn start(setup: StationSetup) -> Result<Station, PsError> {
        let counter = Arc::new(Counter::new().map_err(PsError::Thread)?);
        let theirs = counter.clone();
        let thread = std::thread::Builder::new()
            .name("phalanx-tables".to_string())
            .spawn(move || Running::new(setup, theirs).run())
            .map_err(PsError::Thread)?;
        Ok(Station { counter, thread: Some(thread) })
    }

    /// Whether its thread has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end, at most until then; false if it has not come.
    pub fn join_until(&mut self, until: Instant, casualties: impl Fn() -> bool) -> bool {
        while !self.has_ended() {
            if Instant::now() >= until || casualties() {
                return false;
            }
            // It rings when it ends.
            let _ = self.counter.from.await_one(NAP);
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the station was reported where it happened.
            let _ = thread.join();
        }
        true
    }
}

struct Running {
    world: Arc<World>,
    specs: Arc<[TableSpec]>,
    me: Rank,
    seats: Seats,
    office: Option<Office>,
    shard: Option<Shard>,
    wires: BTreeMap<Rank, RowWire>,
    counter: Arc<Counter>,
    /// Who has said goodbye: workers of this host to the office, offices to the server.
    workers_gone: BTreeSet<Rank>,
    offices_gone: BTreeSet<u32>,
}

/// Why a station cannot go on.
struct Trouble {
    peer: Rank,
    error: MailError,
}

impl Running {
    fn new(setup: StationSetup, counter: Arc<Counter>) -> Running {
        let StationSetup { world, specs, seats, office, shard, wires } = setup;
        let me = world.rank();
        let (workers_gone, offices_gone) = (BTreeSet::new(), BTreeSet::new());
        Running { world, specs, me, seats, office, shard, wires, counter, workers_gone, offices_gone }
    }

    fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve())).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let why = format!("the thread that serves its tables panicked: {}", text.unwrap_or("no message"));
            Err(Doom::GaveUp { rank: self.me, why })
        });
        if let Err(doom) = ended {
            let agreed = self.world.doom(doom);
            tracing::info!(reason = ?agreed, "tables are not served any more");
            self.counter.from.put(RowLetter::words(
                LetterKind::Refused,
                0,
                &format!("{}", PsError::from(agreed)),
            ));
        }
        self.note();
        self.counter.handled(u64::MAX);
        self.counter.from.put(RowLetter::new(LetterKind::Bye, 0, 0));
    }

    fn serve(&mut self) -> Result<(), Doom> {
        let mut came: VecDeque<(Port, RowLetter)> = VecDeque::new();
        loop {
            let mut n_own = 0;
            while let Some(letter) = self.counter.to.take() {
                came.push_back((Port::Worker(self.me), letter));
                n_own += 1;
            }
            let peers: Vec<Rank> = self.wires.keys().copied().collect();
            for peer in peers {
                self.read(peer, &mut came)?;
            }
            let is_busy = !came.is_empty();
            while let Some((from, letter)) = came.pop_front() {
                self.handle(from, letter, &mut came);
            }
            if n_own > 0 {
                self.counter.handled(n_own);
            }
            self.write()?;
            if self.is_over() {
                return Ok(());
            }
            if !is_busy {
                self.note();
                self.look_around()?;
                self.sleep();
            }
        }
    }

    fn read(&mut self, peer: Rank, came: &mut VecDeque<(Port, RowLetter)>) -> Result<(), Doom> {
        let wire = self.wires.get_mut(&peer).expect("callers walk the wires");
        loop {
            match wire.receive(&self.specs) {
                Ok(Some(letter)) => {
                    let Some(port) = port_of(&self.seats, self.me, peer, letter.kind) else {
                        let why =
                            format!("rank {peer} sent a letter ({:?}) that is not its to send", letter.kind);
                        return Err(Doom::GaveUp { rank: self.me, why });
                    };
                    came.push_back((port, letter));
                }
                Ok(None) => return Ok(()),
                // What came before the end may say that it is one in order; the end will be there again.
                Err(MailError::Io(_)) if !came.is_empty() => return Ok(()),
                Err(error) => return self.trouble(Trouble { peer, error }),
            }
        }
    }

    /// A connection that ends is an end of its peer, unless that wants nothing more.
    fn trouble(&mut self, trouble: Trouble) -> Result<(), Doom> {
        let Trouble { peer, error } = trouble;
        if let MailError::Unreadable(error) = error {
            return Err(Doom::GaveUp {
                rank: self.me,
                why: format!("rank {peer} sent what cannot be: {error}"),
            });
        }
        if self.has_left(peer) {
            self.wires.remove(&peer);
            return Ok(());
        }
        let verdict = self.world.casualties().await_verdict(peer, VERDICT);
        Err(verdict.unwrap_or_else(|| Doom::Lost(self.world.casualties().suspect(peer, Cause::Disconnected))))
    }

    /// Whether a peer may end: it said goodbye, and it is not a server that is needed.
    fn has_left(&self, peer: Rank) -> bool {
        let as_office = self.seats.office_at(peer).is_none_or(|o| self.offices_gone.contains(&o));
        let is_worker_here = self.office.is_some() && self.is_own_worker(peer);
        let as_worker = !is_worker_here || self.workers_gone.contains(&peer);
        let as_server = self.seats.server_at(peer).is_none() || self.all_workers_gone();
        as_office && as_worker && as_server
    }

    fn own_workers(&self) -> &[Rank] {
        self.seats.office_at(self.me).map_or(&[], |o| &self.seats.offices()[o as usize].1)
    }

    fn is_own_worker(&self, rank: Rank) -> bool {
        self.own_workers().contains(&rank)
    }

    fn all_workers_gone(&self) -> bool {
        self.workers_gone.len() == self.own_workers().len()
    }

    fn is_over(&self) -> bool {
        let server = self.shard.is_none() || self.offices_gone.len() == self.seats.offices().len();
        self.all_workers_gone() && server && self.wires.values().all(|wire| !wire.is_leaving())
    }

    fn handle(&mut self, from: Port, letter: RowLetter, came: &mut VecDeque<(Port, RowLetter)>) {
        let mut out = Vec::new();
        if letter.kind == LetterKind::Bye && letter.number >= 1.0 {
            let recut = Some((letter.step, letter.number as u32));
            self.counter.set_recut(recut);
        }
        match (from, letter.kind) {
            (Port::Worker(worker), LetterKind::Bye) => {
                self.workers_gone.insert(worker);
                if let Some(office) = &self.office {
                    office.leave(worker, &mut out);
                }
                if let Some(own) = self.seats.office_at(self.me).filter(|_| self.all_workers_gone()) {
                    let bye = RowLetter { from: own, ..letter };
                    let servers = 0..self.seats.servers().len() as u32;
                    out.extend(servers.map(|s| (Port::Server(s), bye.clone())));
                }
            }
            (Port::Office(office), LetterKind::Bye) => {
                self.offices_gone.insert(office);
            }
            (Port::Worker(_) | Port::Server(_), _) => {
                if let Some(office) = &mut self.office {
                    office.step(from, letter, &mut out);
                    // Before the answers go: who has one sees what it took.
                    let counters = office.counters();
                    self.counter.count(counters);
                }
            }
            (Port::Office(_), _) => {
                if let Some(shard) = &mut self.shard {
                    shard.step(from, letter, &mut out);
                }
            }
        }
        for (to, letter) in out {
            self.send(to, letter, came);
        }
    }

    fn send(&mut self, to: Port, letter: RowLetter, came: &mut VecDeque<(Port, RowLetter)>) {
        let rank = match to {
            Port::Worker(rank) => rank,
            Port::Office(office) => self.seats.offices()[office as usize].0,
            Port::Server(server) => self.seats.servers()[server as usize],
        };
        if rank != self.me {
            if let Some(wire) = self.wires.get_mut(&rank) {
                wire.send(letter);
            }
            return;
        }
        match to {
            Port::Worker(_) => self.counter.from.put(letter),
            // What the office sends to the own server comes from the office, and back.
            Port::Server(_) => {
                let own = self.seats.office_at(self.me).expect("only offices write to servers");
                came.push_back((Port::Office(own), letter));
            }
            Port::Office(_) => {
                let own = self.seats.server_at(self.me).expect("only servers write to offices");
                came.push_back((Port::Server(own), letter));
            }
        }
    }

    fn write(&mut self) -> Result<(), Doom> {
        let broken = self.wires.iter_mut().find_map(|(peer, wire)| wire.flush().err().map(|e| (*peer, e)));
        match broken {
            Some((peer, error)) => self.trouble(Trouble { peer, error: error.into() }),
            None => Ok(()),
        }
    }

    /// Whether a rank that is needed is lost, or the world is over.
    fn look_around(&self) -> Result<(), Doom> {
        let casualties = self.world.casualties();
        if !casualties.any() {
            return Ok(());
        }
        if let Some(doom) = casualties.doomed() {
            return Err(doom);
        }
        let lost = self.wires.keys().filter(|peer| !self.has_left(**peer)).find_map(|&rank| {
            // A rank that left in order may have letters on its way that say so.
            let cause = casualties.cause(rank).filter(|cause| *cause != Cause::Left)?;
            Some(Doom::Lost(Lost { rank, cause }))
        });
        lost.map_or(Ok(()), Err)
    }

    fn note(&self) {
        let offices = self.seats.offices().iter().zip(0..).filter(|_| self.shard.is_some());
        let open_offices = offices.filter(|(_, number)| !self.offices_gone.contains(number));
        let mut awaited: BTreeSet<Rank> =
            open_offices.flat_map(|((_, workers), _)| workers.iter().copied()).collect();
        awaited.extend(self.own_workers());
        awaited.retain(|rank| !self.workers_gone.contains(rank));
        let sum = |of: fn(&RowWire) -> u64| self.wires.values().map(of).sum();
        let (bytes_out, bytes_in) = (sum(|wire| wire.bytes_out), sum(|wire| wire.bytes_in));
        self.counter.note(awaited.into_iter().collect(), bytes_out, bytes_in);
    }

    fn sleep(&self) {
        let mut fds = vec![PollFd::new(self.counter.bell(), PollFlags::IN)];
        for wire in self.wires.values() {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, wire.is_leaving());
            fds.push(PollFd::new(&wire.link, wanted));
        }
        let nap = Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
        match poll(&mut fds, Some(&nap)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::warn!(%error, "a station cannot wait"),
        }
        self.counter.hush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{placement::Placement, shard::ShardSetup, tables::Consistency, testing::spec};
    use phalanx_core::Config;
    use phalanx_net::{
        discover::{Identity, Meeting},
        secret::Secret,
    };

    /// A rank alone, whose server lacks a table that its office has: letters about it are more than it can take.
    fn setup() -> StationSetup {
        let identity = Identity::worker(Rank(0), 1, Meeting::Alone);
        let world = Arc::new(World::join(identity, Secret::random(), Config::default()).unwrap());
        let specs = vec![spec("a"), spec("b")];
        let placement = Placement::greedy(&specs, 1);
        let sync = Consistency::Sync;
        let office = Office::new(0, vec![Rank(0)], specs.clone(), placement.clone(), sync, 0);
        let shard = Shard::new(ShardSetup {
            server: 0,
            specs: vec![spec("a")],
            placement,
            consistency: sync,
            n_offices: 1,
            n_workers: 1,
            step: 0,
        });
        let seats = Seats::of(world.workers(), world.servers());
        let (office, shard) = (Some(office), Some(shard));
        StationSetup { world, specs: specs.into(), seats, office, shard, wires: BTreeMap::new() }
    }

    #[test]
    fn a_panic_of_a_station_ends_the_world_in_words() {
        let setup = setup();
        let world = setup.world.clone();
        let mut station = Station::start(setup).unwrap();
        let rows = crate::values::Rows { ids: vec![1], ..Default::default() };
        station.counter.post(RowLetter { rows, ..RowLetter::new(LetterKind::Pull, 1, 0) });
        let said = station.counter.from.await_one(Duration::from_secs(60)).unwrap();
        assert_eq!(said.kind, LetterKind::Refused);
        assert!(station.join_until(Instant::now() + Duration::from_secs(60), || false));
        let doom = world.casualties().doomed();
        assert!(
            matches!(&doom, Some(Doom::GaveUp { rank: Rank(0), why }) if why.contains("panicked: index out of bounds")),
            "{doom:?}"
        );
    }

    #[test]
    fn a_world_that_is_over_ends_a_station_whatever_the_cause() {
        let setup = setup();
        let world = setup.world.clone();
        let mut station = Station::start(setup).unwrap();
        world.casualties().doom(Doom::Lost(Lost { rank: Rank(0), cause: Cause::Left }));
        assert!(station.join_until(Instant::now() + Duration::from_secs(60), || false));
    }
}
