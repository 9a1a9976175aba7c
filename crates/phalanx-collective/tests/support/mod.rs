//! Several ranks as threads of one process: real hub, real shared memory, real sockets on loopback.

use phalanx_collective::Communicator;
use phalanx_core::{Config, Rank};
use phalanx_net::{
    World,
    discover::{Identity, Meeting},
    hub::Hub,
    secret::Secret,
};
use std::{
    net::TcpListener,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Nothing in a test takes longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `f` on every rank of a world whose hosts have these sizes, and returns what each rank returned.
pub fn run_owners<T: Send + 'static>(
    hosts: &[u32],
    settings: &[(&'static str, &str)],
    f: impl Fn(Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let host_of = hosts.iter().enumerate().flat_map(|(h, &n)| std::iter::repeat_n(h, n as usize));
    run_on(host_of.collect(), settings, f)
}

/// The same where rank r is on host `host_of[r]`.
pub fn run_on<T: Send + 'static>(
    host_of: Vec<usize>,
    settings: &[(&'static str, &str)],
    f: impl Fn(Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let n_ranks = host_of.len() as u32;
    let secret = Secret::random();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let hub = Hub::start(vec![listener], secret.clone(), n_ranks).expect("a hub starts");
    let f = Arc::new(f);
    let (done, results) = mpsc::channel();
    for (r, host) in host_of.into_iter().enumerate() {
        let mut config = Config::default();
        config.host_id = Some(format!("host{host}"));
        config.timeout = DEADLINE;
        for (name, value) in settings {
            config.set(name, value).expect("tests use valid settings");
        }
        let meeting = match n_ranks {
            1 => Meeting::Alone,
            _ => Meeting::Hub(vec![hub.addresses()[0].to_string()]),
        };
        let identity = Identity::worker(Rank::at(r), n_ranks, meeting);
        let (secret, f, done) = (secret.clone(), f.clone(), done.clone());
        std::thread::Builder::new()
            .name(format!("rank {r}"))
            .spawn(move || {
                let world = World::join(identity, secret, config).expect("the world forms");
                let comm = Communicator::of_world(Arc::new(world)).expect("a communicator of the world");
                let result = f(comm);
                // A receiver that gave up has already failed the test.
                let _ = done.send((r, result));
            })
            .expect("a thread starts");
    }
    drop(done);
    let mut all: Vec<Option<T>> = (0..n_ranks).map(|_| None).collect();
    for _ in 0..n_ranks {
        let (rank, result) =
            results.recv_timeout(DEADLINE).expect("every rank finishes in time (see above who panicked)");
        all[rank] = Some(result);
    }
    all.into_iter().map(|r| r.expect("each rank reports once")).collect()
}
