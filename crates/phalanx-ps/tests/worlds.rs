//! Worlds of threads for tests, and tables whose sums are exact.

use phalanx_core::{
    Config, DType, Rank, TaskRole,
    kernel::update::{Adagrad, Adam, Momentum, RmsProp},
};
use phalanx_net::{
    World,
    discover::{Identity, Meeting},
    hub::Hub,
    secret::Secret,
};
use phalanx_ps::{RowReduction, Spread, TableRule, TableSpec, TableUpdate};
use std::{
    net::TcpListener,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Nothing in a test takes longer.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Where workers and servers are: the workers of each host, then ranks that only serve, each on a host of its own.
#[derive(Clone, Copy, Debug)]
pub struct Hosts {
    pub workers: &'static [u32],
    pub servers: u32,
    pub settings: &'static [(&'static str, &'static str)],
}

impl Hosts {
    pub const fn of(workers: &'static [u32]) -> Hosts {
        Hosts { workers, servers: 0, settings: &[] }
    }

    pub fn n_workers(&self) -> u32 {
        self.workers.iter().sum()
    }
}

/// Runs `f` on every rank of such a world.
pub fn run<T: Send + 'static>(
    hosts: Hosts,
    f: impl Fn(&Arc<World>, &Hub) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let n_workers = hosts.n_workers();
    let n_ranks = n_workers + hosts.servers;
    let secret = Secret::random();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let hub = Arc::new(Hub::start(vec![listener], secret.clone(), n_ranks).expect("a hub starts"));
    let (f, (done, results)) = (Arc::new(f), mpsc::channel());
    let mut host_of: Vec<String> = Vec::new();
    for (host, n) in hosts.workers.iter().enumerate() {
        host_of.extend((0..*n).map(|_| format!("host{host}")));
    }
    host_of.extend((0..hosts.servers).map(|s| format!("server{s}")));
    for (r, host) in (0..n_ranks).zip(host_of) {
        let (secret, f, done, hub) = (secret.clone(), f.clone(), done.clone(), hub.clone());
        std::thread::spawn(move || {
            let mut config = Config::default();
            config.host_id = Some(host);
            config.timeout = DEADLINE;
            let set =
                |(name, value): &(&str, &str)| config.set(name, value).expect("tests use valid settings");
            hosts.settings.iter().for_each(set);
            let meeting = Meeting::Hub(vec![hub.addresses()[0].to_string()]);
            let role = if r < n_workers { TaskRole::Worker } else { TaskRole::Server };
            let identity = Identity { role, ..Identity::worker(Rank(r), n_ranks, meeting) };
            let world = Arc::new(World::join(identity, secret, config).expect("the world forms"));
            let _ = done.send((r as usize, f(&world, &hub)));
        });
    }
    let mut all: Vec<Option<T>> = (0..n_ranks).map(|_| None).collect();
    for _ in 0..n_ranks {
        let (rank, result) = results.recv_timeout(DEADLINE).expect("every rank finishes in time");
        all[rank] = Some(result);
    }
    all.into_iter().map(|r| r.expect("each rank reports once")).collect()
}

pub const WIDTH: usize = 3;

/// 40 rows of 3 elements that begin with small dyadic numbers.
pub fn spec(name: &str) -> TableSpec {
    TableSpec {
        name: name.to_string(),
        height: 40,
        width: WIDTH,
        dtype: DType::F32,
        first: Arc::new(|row, bytes| {
            for (e, value) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *value = first(row, e).to_le_bytes();
            }
        }),
        rule: TableRule::new(TableUpdate::Sgd),
        reduction: RowReduction::Sum,
        wire: None,
        partitions: 5,
        spread: Spread::Mod,
        raw: false,
    }
}

pub fn first(row: u64, e: usize) -> f32 {
    (row % 7) as f32 / 4.0 + e as f32 / 8.0
}

pub fn rules() -> Vec<(&'static str, TableUpdate)> {
    let momentum = Momentum { mu: 0.5, nesterov: true, rate_inside: false };
    let adam = Adam { beta1: 0.5, beta2: 0.75, epsilon: 1e-6, decay: 0.0, epsilon_first: false };
    let rmsprop = RmsProp { rho: 0.5, epsilon: 1e-3, mu: 0.5, under_root: true };
    vec![
        ("sgd", TableUpdate::Sgd),
        ("momentum", TableUpdate::Momentum(momentum)),
        ("adagrad", TableUpdate::Adagrad(Adagrad { epsilon: 1e-6 })),
        ("adam", TableUpdate::Adam(adam)),
        ("rmsprop", TableUpdate::RmsProp(rmsprop)),
    ]
}

/// Which rows a worker touches in a step, some of them twice, and their gradients: multiples of 1/16, so that sums are exact.
pub fn touched(worker: u32, step: u64, height: u64) -> (Vec<u64>, Vec<f32>) {
    let mut state = u64::from(worker) * 1_000_003 + step * 7919 + 17;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let n = next() % 9;
    let ids: Vec<u64> = (0..n).map(|_| next() % height).collect();
    let grads = (0..n as usize * WIDTH).map(|_| (next() % 33) as f32 / 16.0 - 1.0).collect();
    (ids, grads)
}

pub fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

pub fn bytes_mut(values: &mut [f32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}
