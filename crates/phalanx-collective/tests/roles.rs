//! Worlds with servers: communicators and engines consist of the workers, and a server ends with them.

use phalanx_collective::{
    Communicator, Error,
    engine::{Engine, EngineTensor, Request},
};
use phalanx_core::{Config, Rank, ReduceOp, TaskRole};
use phalanx_net::{
    NetError, World,
    discover::{Identity, Meeting},
    ending::{End, Ending},
    hub::Hub,
    lost::Cause,
    secret::Secret,
};
use std::{
    net::TcpListener,
    sync::{Arc, Barrier, mpsc},
    time::{Duration, Instant},
};

/// Nothing in a test takes longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `f` on every rank of a world of workers, then servers, on hosts of `per_host` ranks.
fn run<T: Send + 'static>(
    (n_workers, n_servers, per_host): (u32, u32, u32),
    settings: &'static [(&'static str, &'static str)],
    f: impl Fn(World, &Hub) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let n_ranks = n_workers + n_servers;
    let secret = Secret::random();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let hub = Arc::new(Hub::start(vec![listener], secret.clone(), n_ranks).expect("a hub starts"));
    let (f, (done, results)) = (Arc::new(f), mpsc::channel());
    for r in 0..n_ranks {
        let (secret, f, done, hub) = (secret.clone(), f.clone(), done.clone(), hub.clone());
        std::thread::spawn(move || {
            let mut config = Config::default();
            config.host_id = Some(format!("host{}", r / per_host));
            config.timeout = DEADLINE;
            settings
                .iter()
                .for_each(|(name, value)| config.set(name, value).expect("tests use valid settings"));
            let meeting = Meeting::Hub(vec![hub.addresses()[0].to_string()]);
            let role = if r < n_workers { TaskRole::Worker } else { TaskRole::Server };
            let identity = Identity { role, ..Identity::worker(Rank(r), n_ranks, meeting) };
            let world = World::join(identity, secret, config).expect("the world forms");
            let _ = done.send((r as usize, f(world, &hub)));
        });
    }
    let mut all: Vec<Option<T>> = (0..n_ranks).map(|_| None).collect();
    for _ in 0..n_ranks {
        let (rank, result) = results.recv_timeout(DEADLINE).expect("every rank finishes in time");
        all[rank] = Some(result);
    }
    all.into_iter().map(|r| r.expect("each rank reports once")).collect()
}

fn wait_for_workers(world: &World) -> Result<bool, NetError> {
    world.serve_until_workers_left(Some(Instant::now() + DEADLINE), || true)
}

/// SERVE-1.
#[test]
fn workers_reduce_among_themselves_and_the_servers_end_with_them() {
    // One host; two hosts, the second of servers alone; a host of its own for each rank.
    for per_host in [4, 2, 1] {
        let sums = run((2, 2, per_host), &[("PHALANX_TIERS", "2")], move |world, _| {
            assert_eq!((world.n_ranks(), world.n_workers(), world.servers().len()), (4, 2, 2));
            if world.role() == TaskRole::Server {
                assert!(!world.is_worker(world.rank()));
                assert!(wait_for_workers(&world).expect("no worker is lost"), "all have left");
                return 0.0;
            }
            let mut comm = Communicator::of_world(Arc::new(world)).expect("a communicator of the workers");
            assert_eq!((comm.size(), comm.local_size()), (2, per_host.min(2)));
            let mut data = vec![comm.rank().0 as f32 + 1.0; 1000];
            comm.allreduce(&mut data, ReduceOp::Sum).expect("the servers are not needed");
            let engine = Engine::start(comm).expect("an engine of the workers");
            assert_eq!(engine.size(), 2);
            let request =
                Request::allreduce(EngineTensor::new(data)).name("x".to_string()).op(ReduceOp::Average);
            let handle = engine.submit(request).expect("it is submitted");
            let average = handle.wait().expect("it runs").tensor().and_then(EngineTensor::into_vec::<f32>);
            engine.shutdown().expect("both end it");
            average.expect("a tensor of f32")[999]
        });
        assert_eq!(sums, [3.0, 3.0, 0.0, 0.0], "{per_host} ranks a host");
    }
}

#[test]
fn a_server_cannot_make_a_communicator_and_is_told_what_to_do() {
    let errors = run((1, 1, 2), &[], |world, _| {
        let world = Arc::new(world);
        match Communicator::of_world(world.clone()) {
            Ok(comm) => format!("{}", comm.size()),
            Err(error @ Error::Serves { .. }) => {
                wait_for_workers(&world).expect("no worker is lost");
                error.to_string()
            }
            Err(other) => panic!("{other}"),
        }
    });
    assert_eq!(errors[0], "1");
    assert!(errors[1].starts_with("this process is a server, rank 1 of its world: "), "{}", errors[1]);
    assert!(errors[1].contains("World::serve_until_workers_left"), "{}", errors[1]);
}

/// SERVE-1, LOST-1.
#[test]
fn a_lost_worker_ends_a_server_by_name_and_a_lost_server_only_who_needs_it() {
    let gate = Arc::new(Barrier::new(3));
    let ends = run((2, 1, 3), &[], move |world, hub| {
        let rank = world.rank();
        if rank == Rank(2) {
            let before = world.serve_until_workers_left(Some(Instant::now()), || true);
            assert!(!before.expect("nobody is lost yet"), "the deadline has come");
            assert!(
                !world.serve_until_workers_left(None, || false).expect("nobody is lost yet"),
                "it was told to stop"
            );
            gate.wait();
            let error = wait_for_workers(&world).expect_err("a worker is lost");
            assert!(matches!(&error, NetError::PeerLost { rank: Rank(1), .. }), "{error}");
            // It is lost in its turn, while a worker is left.
            hub.rank_ended(Rank(2), End::Process(Ending::Code(1)));
            gate.wait();
            return error.to_string();
        }
        gate.wait();
        if rank == Rank(1) {
            hub.rank_ended(Rank(1), End::Process(Ending::Signal(9)));
            gate.wait();
            std::mem::forget(world);
            return String::new();
        }
        gate.wait();
        let verdict = world.casualties().await_verdict(Rank(2), DEADLINE);
        assert!(verdict.is_some(), "a rank that needs it is told");
        assert_eq!(world.casualties().doomed(), None, "LOST-1: a rank that does not need it goes on");
        assert!(matches!(world.casualties().cause(Rank(1)), Some(Cause::Ended(_))));
        String::new()
    });
    assert_eq!(ends[2], "rank 1 is lost: its process was killed by SIGKILL");
}

#[test]
fn an_engine_of_workers_survives_the_loss_of_a_server() {
    let ready = Arc::new(Barrier::new(3));
    let sums = run((2, 1, 3), &[], move |world, hub| {
        if world.role() == TaskRole::Server {
            ready.wait();
            hub.rank_ended(world.rank(), End::Process(Ending::Signal(9)));
            ready.wait();
            std::mem::forget(world);
            return 0.0;
        }
        let engine =
            Engine::start(Communicator::of_world(Arc::new(world)).expect("workers")).expect("an engine");
        ready.wait();
        let lost = engine.world().casualties().await_verdict(Rank(2), DEADLINE);
        assert!(lost.is_some(), "the loss is known");
        let request =
            Request::allreduce(EngineTensor::new(vec![1.0f32; 8])).name("y".to_string()).op(ReduceOp::Sum);
        let outcome = engine.submit(request).expect("it is submitted").wait().expect("no server is needed");
        engine.shutdown().expect("both end it");
        ready.wait();
        outcome.tensor().and_then(EngineTensor::into_vec::<f32>).expect("a tensor")[0]
    });
    assert_eq!(sums, [2.0, 2.0, 0.0]);
}
