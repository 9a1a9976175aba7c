//! A hub and ranks as threads of this process, on loopback.

use phalanx_core::{Config, Rank};
use phalanx_net::{
    World,
    discover::{Identity, Meeting},
    frame::Decoder,
    hub::{
        Hub,
        message::{Down, MAX_FRAME, Member, Words},
    },
    secret::Secret,
};
use rustix::net::AddressFamily;
use std::{
    io::{IoSlice, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

/// Nothing in these tests takes longer.
pub fn deadline() -> Duration {
    Duration::from_secs(20)
}

/// A hub that waits for its ranks.
pub struct Job {
    pub secret: Secret,
    pub address: SocketAddr,
    n_ranks: u32,
    /// What carries links, and how many ranks a host has.
    links: (&'static str, u32),
    /// What each rank has for PHALANX_ENCRYPT.
    encrypt: &'static str,
    /// A lock because ranks are threads that share this.
    words: Mutex<mpsc::Receiver<(Rank, Words)>>,
    _hub: Hub,
}

impl Job {
    /// Ranks of different hosts.
    pub fn of(n_ranks: u32) -> Job {
        Job::with_links("tcp", 1, n_ranks)
    }

    /// Hosts of `per_host` ranks each, whose links this transport carries where it can.
    pub fn with_links(transport: &'static str, per_host: u32, n_ranks: u32) -> Job {
        let secret = Secret::random();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let (said, words) = mpsc::channel();
        let hear = move |rank, words| drop(said.send((rank, words)));
        let hub = Hub::start_hearing(vec![listener], secret.clone(), n_ranks, hear).expect("a hub starts");
        let address = hub.addresses()[0];
        Job {
            secret,
            address,
            n_ranks,
            links: (transport, per_host),
            encrypt: "auto",
            words: Mutex::new(words),
            _hub: hub,
        }
    }

    /// Ranks of different hosts, with this setting.
    pub fn encrypted(encrypt: &'static str, n_ranks: u32) -> Job {
        Job { encrypt, ..Job::of(n_ranks) }
    }

    /// What a rank said next to the person before the launcher.
    pub fn hear(&self) -> (Rank, Words) {
        let words = self.words.lock().expect("no test panics with it");
        words.recv_timeout(deadline()).expect("a rank has said something")
    }

    /// Joins as this rank.
    pub fn join(&self, rank: u32) -> World {
        let meeting = Meeting::Hub(vec![self.address.to_string()]);
        let identity = Identity::worker(Rank(rank), self.n_ranks, meeting);
        let mut config = Config::default();
        let (transport, per_host) = self.links;
        config.host_id = Some(format!("host{}", rank / per_host));
        config.set("PHALANX_TRANSPORT", transport).expect("tests use valid settings");
        config.set("PHALANX_ENCRYPT", self.encrypt).expect("tests use valid settings");
        config.timeout = deadline();
        World::join(identity, self.secret.clone(), config).expect("the world forms")
    }

    /// Tries to join as this rank with this setting; the error.
    pub fn refused(&self, rank: u32, encrypt: &str) -> String {
        let meeting = Meeting::Hub(vec![self.address.to_string()]);
        let mut config = Config::default();
        config.set("PHALANX_ENCRYPT", encrypt).expect("tests use valid settings");
        config.start_timeout = deadline();
        let identity = Identity::worker(Rank(rank), self.n_ranks, meeting);
        World::join(identity, self.secret.clone(), config).expect_err("it is refused").to_string()
    }
}

/// Every rank of a world.
pub struct Ranks(Vec<World>);

impl Ranks {
    pub fn join(job: &Job) -> Ranks {
        std::thread::scope(|scope| {
            let joining: Vec<_> = (0..job.n_ranks).map(|r| scope.spawn(move || job.join(r))).collect();
            Ranks(joining.into_iter().map(|j| j.join().expect("every rank joins")).collect())
        })
    }

    pub fn world(&self, rank: usize) -> &World {
        &self.0[rank]
    }

    /// What a rank says about itself.
    pub fn introduction(&self, rank: usize) -> Member {
        self.0[0].members()[rank].clone()
    }

    /// Where a rank accepts links over TCP.
    pub fn link_address(&self, rank: usize) -> SocketAddr {
        self.address_of(rank, "tcp").parse().expect("it is an address and a port")
    }

    /// Where a rank accepts links over this transport.
    pub fn address_of(&self, rank: usize, transport: &str) -> String {
        let addresses = &self.0[0].members()[rank].addresses;
        let found = addresses.iter().find(|a| a.transport() == transport);
        found.expect("the rank listens there").address().to_string()
    }

    /// What carries the links between two ranks, and the kind of socket that this is to the kernel.
    pub fn carrier(&self, a: usize, b: usize, stream: u32) -> (&'static str, AddressFamily) {
        let link = self.0[a].link(Rank::at(b), stream).expect("ranks can open links");
        let family = rustix::net::sockopt::socket_domain(&link).expect("a link is a socket");
        (self.0[a].transport_to(Rank::at(b)), family)
    }

    /// Every rank sends every other one a message over a link that did not exist before, and gets one.
    pub fn greet_each_other(&self, stream: u32) {
        std::thread::scope(|scope| {
            for world in &self.0 {
                scope.spawn(move || {
                    let peers = (0..world.n_ranks()).map(Rank).filter(|&r| r != world.rank());
                    for peer in peers {
                        greet(world, peer, stream);
                    }
                });
            }
        });
    }
}

fn greet(world: &World, peer: Rank, stream: u32) {
    let link = world.link(peer, stream).expect("ranks can open links");
    assert_eq!(link.send_some(&[IoSlice::new(&[world.rank().0 as u8])]).expect("the link is whole"), 1);
    let begun = Instant::now();
    let mut got = [0];
    while link.recv_some(&mut got).expect("the link is whole") == 0 {
        assert!(begun.elapsed() < deadline(), "rank {} does not answer rank {}", peer, world.rank());
        std::thread::yield_now();
    }
    assert_eq!(u32::from(got[0]), peer.0);
}

/// Waits for the hub's word that every rank is here.
pub fn await_roster(stream: &mut TcpStream) {
    let mut decoder = Decoder::new(MAX_FRAME);
    let mut bytes = [0; 4096];
    loop {
        match decoder.take::<Down>().expect("the hub speaks correctly") {
            Some(Down::Roster(_)) => return,
            Some(Down::Alive) => {}
            Some(other) => panic!("the hub says {other:?}"),
            None => {
                let n = stream.read(&mut bytes).expect("the hub answers in time");
                assert!(n > 0, "the hub closed the connection");
                decoder.feed(&bytes[..n]);
            }
        }
    }
}
