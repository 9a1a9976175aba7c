//! Worlds of ranks, as threads of this process, that train one program.

use phalanx_collective::{Communicator, engine::Engine};
use phalanx_core::{Config, DType, Rank, TaskRole};
use phalanx_graph::{
    Act, BATCH, Builder, Collective, CollectiveError, Dim, Executor, Feed, Fetch, Optimizer, Options,
    ParallelExecutor, Program, ReduceStrategy, Rule, RunError, Setup, Store, Tensor, exec::Refusal,
    kernel::Stream, layers::EmbeddingOptions,
};
use phalanx_net::{
    World,
    discover::{Identity, Meeting},
    hub::Hub,
    secret::Secret,
};
use phalanx_train::Ranks;
use std::{net::TcpListener, sync::Arc, time::Duration};

const WORDS: usize = 50;
const SAMPLES: usize = 12;
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs every rank of a world on a thread; `hosts` says which host each has.
pub fn world<T: Send>(hosts: &[u32], run: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    engines(hosts, |engine| run(Ranks::new(engine)))
}

/// The same, with the engine itself.
pub fn engines<T: Send>(hosts: &[u32], run: impl Fn(Arc<Engine>) -> T + Sync) -> Vec<T> {
    with_servers(hosts, 0, run, |_| ())
}

/// The same beside ranks that only serve, each on a host of its own.
pub fn with_servers<T: Send>(
    hosts: &[u32],
    n_servers: u32,
    run: impl Fn(Arc<Engine>) -> T + Sync,
    serve: impl Fn(&Arc<World>) + Sync,
) -> Vec<T> {
    let secret = Secret::random();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let n_workers = hosts.len() as u32;
    let n = n_workers + n_servers;
    let hub = Hub::start(vec![listener], secret.clone(), n).expect("a hub starts");
    let address = hub.addresses()[0].to_string();
    let join = |rank: u32, role: TaskRole, host: String| {
        let meeting = Meeting::Hub(vec![address.clone()]);
        let identity = Identity { role, ..Identity::worker(Rank(rank), n, meeting) };
        let mut config = Config::default();
        config.host_id = Some(host);
        config.timeout = DEADLINE;
        Arc::new(World::join(identity, secret.clone(), config).expect("the world forms"))
    };
    let rank = |rank: u32, host: u32| {
        let world = join(rank, TaskRole::Worker, format!("host{host}"));
        let communicator = Communicator::of_world(world).expect("it is the first of its world");
        run(Arc::new(Engine::start(communicator).expect("an engine starts")))
    };
    let (rank, join, serve) = (&rank, &join, &serve);
    std::thread::scope(|scope| {
        for server in n_workers..n {
            scope.spawn(move || serve(&join(server, TaskRole::Server, format!("server{server}"))));
        }
        let threads: Vec<_> =
            (0..).zip(hosts).map(|(at, &host)| scope.spawn(move || rank(at, host))).collect();
        threads.into_iter().map(|t| t.join().expect("no rank panics")).collect()
    })
}

/// A sparse embedding, dropout and dense layers.
pub fn program() -> Program {
    let mut b = Builder::new();
    let build = |b: &mut Builder| {
        let words = b.feed("words", DType::I64, [BATCH, Dim::Fixed(3)])?;
        let label = b.feed("label", DType::I64, [BATCH])?;
        let x = b.embedding(words, WORDS, 8, EmbeddingOptions { sparse: true, padding: None })?;
        let x = b.reshape(x, [BATCH, Dim::Fixed(24)])?;
        let x = b.fc(x, 16, Act::Tanh)?;
        let x = b.dropout(x, 0.25)?;
        let scores = b.fc(x, 5, Act::None)?;
        let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
        let loss = b.mean(losses)?;
        b.named(loss, "loss")
    };
    let loss = build(&mut b).expect("the program is right");
    let mut program = b.finish().expect("the program is right");
    Optimizer::new(Rule::adam(), 1e-2).minimize(&mut program, loss).expect("it has a gradient");
    program
}

pub fn samples(step: u64, of: std::ops::Range<usize>) -> (Tensor, Tensor) {
    let dice = Stream::new(3, step, 0);
    let words: Vec<i64> =
        (of.start * 3..of.end * 3).map(|i| (dice.bits(i as u64) % WORDS as u64) as i64).collect();
    let labels: Vec<i64> = of.clone().map(|i| (dice.bits(1000 + i as u64) % 5) as i64).collect();
    let words = Tensor::new(&[of.len(), 3], &words).expect("three words a sample");
    (words, Tensor::new(&[of.len()], &labels).expect("one label a sample"))
}

fn executor(collective: Arc<dyn Collective>, replicas: usize, reduce: ReduceStrategy) -> ParallelExecutor {
    let mut setup = Setup { replicas: Some(replicas), collective, ..Setup::default() };
    setup.build.reduce_strategy = reduce;
    ParallelExecutor::new(&program(), Some("loss"), setup).expect("the setup is right")
}

fn step(exe: &mut ParallelExecutor, store: &mut Store, batch: &(Tensor, Tensor)) -> Result<f64, RunError> {
    let feeds = [("words", Feed::Split(&batch.0)), ("label", Feed::Split(&batch.1))];
    Ok(exe.run(store, &feeds, &[Fetch::mean("loss")])?[0].one().to_f64()[0])
}

pub fn contents(store: &mut Store) -> Vec<(String, Vec<u8>)> {
    let names: Vec<String> = store.names().map(str::to_string).collect();
    names.into_iter().map(|n| (n.clone(), store.get(&n).expect("listed").bytes().to_vec())).collect()
}

/// What this process of `n` has after ten steps.
fn trained(
    collective: Arc<dyn Collective>,
    replicas: usize,
    reduce: ReduceStrategy,
) -> Vec<(String, Vec<u8>)> {
    let (n, me) = (collective.processes(), collective.index());
    let mut exe = executor(collective, replicas, reduce);
    // Whatever a process begins with, all begin with the first one's.
    let mut store = Store::new(1 + me as u64);
    for i in 0..10 {
        let share = SAMPLES / n;
        step(&mut exe, &mut store, &samples(i, me * share..(me + 1) * share)).expect("a step runs");
    }
    exe.gather(&mut store).expect("owners send what they have");
    contents(&mut store)
}

#[test]
fn two_processes_have_the_bits_of_one_on_one_host_and_on_two() {
    for reduce in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let alone = trained(Arc::new(phalanx_graph::exec::Alone), 4, reduce);
        for hosts in [[0, 0], [0, 1]] {
            for (rank, got) in world(&hosts, |r| trained(Arc::new(r), 2, reduce)).into_iter().enumerate() {
                assert!(got == alone, "{reduce:?}, hosts {hosts:?}, rank {rank}");
            }
        }
    }
}

#[test]
fn owners_have_the_bits_of_all_reduce_in_every_world() {
    // PARA-1: in the arena of one host parts are summed; over links of three and more ranks whole sums are.
    for hosts in [&[0, 0][..], &[0, 1], &[0, 0, 0], &[0, 1, 2], &[0, 0, 0, 0], &[0, 0, 1, 1]] {
        let [all, owned] = [ReduceStrategy::AllReduce, ReduceStrategy::Reduce]
            .map(|reduce| world(hosts, |ranks| trained(Arc::new(ranks), 2, reduce)));
        assert!(all == owned, "hosts {hosts:?}");
        let parts = world(hosts, |ranks| ranks.sums_parts());
        assert_eq!(parts, vec![hosts.len() == 2 || hosts.iter().all(|host| *host == 0); hosts.len()]);
    }
}

#[test]
fn three_processes_agree_and_are_close_to_one() {
    let alone = trained(Arc::new(phalanx_graph::exec::Alone), 3, ReduceStrategy::Reduce);
    let all = world(&[0, 0, 1], |r| trained(Arc::new(r), 1, ReduceStrategy::Reduce));
    assert!(all.iter().all(|one| *one == all[0]));
    for ((name, got), (_, wanted)) in all[0].iter().zip(&alone) {
        let floats = |b: &[u8]| {
            b.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect::<Vec<_>>()
        };
        for (a, b) in floats(got).into_iter().zip(floats(wanted)) {
            assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{name}: {a} instead of {b}");
        }
    }
}

#[test]
fn up_to_four_processes_of_two_replicas_have_the_losses_of_one() {
    let losses = |collective: Arc<dyn Collective>, replicas: usize| -> Vec<f64> {
        let (n, me) = (collective.processes(), collective.index());
        let mut exe = executor(collective, replicas, ReduceStrategy::AllReduce);
        let mut store = Store::new(1);
        let own = me * SAMPLES / n..(me + 1) * SAMPLES / n;
        let run = |i| step(&mut exe, &mut store, &samples(i, own.clone())).expect("a step runs");
        (0..10).map(run).collect()
    };
    let alone = losses(Arc::new(phalanx_graph::exec::Alone), 4);
    for hosts in [&[0, 1][..], &[0, 0, 0], &[0, 0, 1], &[0, 0, 1, 1], &[0, 1, 2, 3]] {
        let all = world(hosts, |r| losses(Arc::new(r), 2));
        for (i, wanted) in alone.iter().enumerate() {
            // Everybody has as many samples.
            let got = all.iter().map(|own| own[i]).sum::<f64>() / hosts.len() as f64;
            assert!((got - wanted).abs() <= 1e-6 * wanted, "{hosts:?}, step {i}: {got} instead of {wanted}");
        }
    }
}

#[test]
fn a_process_with_wrong_feeds_keeps_nobody_waiting() {
    let seen = world(&[0, 0], |ranks| {
        let me = ranks.index();
        let mut exe = executor(Arc::new(ranks), 2, ReduceStrategy::Reduce);
        let mut store = Store::new(1);
        step(&mut exe, &mut store, &samples(0, 0..4)).expect("the first step runs");
        let wrong = (samples(1, 0..4).0, samples(1, 0..3).1);
        let batch = if me == 1 { wrong } else { samples(1, 0..4) };
        let error = step(&mut exe, &mut store, &batch).expect_err("one of them is wrong").to_string();
        let again = step(&mut exe, &mut store, &samples(2, 0..4));
        exe.gather(&mut store).expect("owners send what they have");
        (error, again.is_ok(), contents(&mut store))
    });
    assert!(seen[1].0.contains("label") && seen[0].0.contains('1'), "{:?}", (&seen[0].0, &seen[1].0));
    assert!(seen[0].1 && seen[1].1, "both go on");
    assert!(seen[0].2 == seen[1].2);
}

#[test]
fn a_process_that_leaves_is_named() {
    // RANKS-3: nobody waits for ever.
    let seen = world(&[0, 1], |ranks| {
        let me = ranks.index();
        let mut exe = executor(Arc::new(ranks), 2, ReduceStrategy::AllReduce);
        let mut store = Store::new(1);
        step(&mut exe, &mut store, &samples(0, 0..4)).expect("the first step runs");
        if me == 1 {
            return String::new();
        }
        step(&mut exe, &mut store, &samples(1, 0..4)).expect_err("the other is gone").to_string()
    });
    assert!(seen[0].contains("rank 1"), "{}", seen[0]);
}

#[test]
fn a_process_whose_operation_fails_keeps_nobody_waiting_and_all_go_on() {
    // ACCORD-2, ACCORD-3, RANKS-3: the same as in Python.
    let seen = world(&[0, 0, 1], |ranks| {
        let me = ranks.index();
        let mut exe = executor(Arc::new(ranks), 2, ReduceStrategy::AllReduce);
        let mut store = Store::new(1);
        let mut said = Vec::new();
        for i in 0..6 {
            let (words, labels) = samples(i, 0..4);
            let beyond = Tensor::new(&[4, 3], &[WORDS as i64; 12]).expect("three words a sample");
            let words = if i as usize == me * 2 { beyond } else { words };
            said.push(step(&mut exe, &mut store, &(words, labels)).err());
        }
        (said, contents(&mut store))
    });
    for (rank, (said, learned)) in seen.iter().enumerate() {
        assert!(*learned == seen[0].1, "all have learned the same");
        for (i, error) in said.iter().enumerate() {
            let shown = || format!("rank {rank}, step {i}: {error:?}");
            match error {
                None => assert!(i % 2 == 1, "{}", shown()),
                Some(RunError::Replica { .. }) => assert_eq!(i, rank * 2, "{}", shown()),
                Some(RunError::Collective(CollectiveError::Aborted { process, why })) => {
                    assert_eq!(i, process * 2, "{}", shown());
                    assert!(why.contains("embedding"), "{}", shown());
                }
                Some(_) => panic!("{}", shown()),
            }
        }
    }
}

#[test]
fn a_process_that_does_not_run_says_why_and_waits_for_nobody() {
    let seen = world(&[0, 0], |ranks| {
        let me = ranks.index();
        let mut exe = executor(Arc::new(ranks), 1, ReduceStrategy::Reduce);
        let mut store = Store::new(1);
        let mut said = Vec::new();
        for (i, why) in [Refusal::Ended, Refusal::Failed("no disk".into())].iter().enumerate() {
            match me {
                0 => said.push(step(&mut exe, &mut store, &samples(0, 0..4)).expect_err("nobody else runs")),
                _ => exe.refuse(why),
            }
            step(&mut exe, &mut store, &samples(i as u64, 0..4)).expect("all go on");
        }
        exe.gather(&mut store).expect("owners send what they have");
        (said, contents(&mut store))
    });
    assert!(seen[0].1 == seen[1].1);
    let aborted = CollectiveError::Aborted { process: 1, why: "no disk".into() };
    assert_eq!(seen[0].0, [CollectiveError::Ended { process: 1 }.into(), aborted.into()], "ACCORD-3");
}

#[test]
fn the_engine_soon_runs_steps_without_a_word() {
    // RANKS-1: two executors with one label on one engine do not disturb each other.
    engines(&[0, 0], |engine| {
        let ranks: Arc<dyn Collective> = Arc::new(Ranks::new(engine.clone()));
        let mut both = [1, 2].map(|n| executor(ranks.clone(), n, ReduceStrategy::AllReduce));
        let mut stores = [Store::new(1), Store::new(2)];
        let mut run = |i: u64| {
            for (exe, store) in both.iter_mut().zip(&mut stores) {
                step(exe, store, &samples(i, 0..4)).expect("a step runs");
            }
        };
        (0..10).for_each(&mut run);
        let before = engine.counters();
        (10..30).for_each(&mut run);
        let after = engine.counters();
        assert_eq!(after.negotiated, before.negotiated, "nothing is told in full any more");
        let (n, replayed) = (after.operations - before.operations, after.replayed - before.replayed);
        assert!(replayed * 10 >= n * 9, "{replayed} of {n} were replayed");
    });
}

#[test]
fn processes_with_different_programs_are_told_so_and_the_engine_goes_on() {
    let seen = world(&[0, 1], |ranks| {
        let ranks: Arc<dyn Collective> = Arc::new(ranks);
        let mut setup = Setup { replicas: Some(1), collective: ranks.clone(), ..Setup::default() };
        setup.build.fuse_all_reduce_ops = ranks.index() == 1;
        let mut exe = ParallelExecutor::new(&program(), Some("loss"), setup).expect("the setup is right");
        let error = step(&mut exe, &mut Store::new(1), &samples(0, 0..4)).expect_err("they differ");
        let mut right = executor(ranks, 1, ReduceStrategy::AllReduce);
        (error, step(&mut right, &mut Store::new(1), &samples(0, 0..4)).is_ok())
    });
    let different = RunError::from(CollectiveError::Different { process: 1 });
    assert_eq!(seen, [(different.clone(), true), (different, true)]);
}

#[test]
fn equal_programs_that_are_run_in_another_order_are_told_so_and_run_in_the_right_one() {
    // ACCORD-4
    let seen = world(&[0, 1], |ranks| {
        let ranks: Arc<dyn Collective> = Arc::new(ranks);
        let me = ranks.index();
        let mut exes = [0, 1].map(|_| executor(ranks.clone(), 1, ReduceStrategy::AllReduce));
        let mut stores = [0, 1].map(|i| Store::new(1 + i));
        let error =
            step(&mut exes[me], &mut stores[me], &samples(0, 0..4)).expect_err("they are not the same");
        for i in [1, 0] {
            step(&mut exes[i], &mut stores[i], &samples(0, me * 4..me * 4 + 4)).expect("these are the same");
        }
        (error, stores.each_mut().map(contents))
    });
    let order = RunError::from(CollectiveError::Order { process: 1, number: 2, first: 1 });
    assert_eq!([&seen[0].0, &seen[1].0], [&order, &order]);
    assert_eq!(seen[0].1, seen[1].1);
    assert_ne!(seen[0].1[0], seen[0].1[1], "they began with other values");
}

#[test]
fn processes_that_update_in_another_way_are_told_so() {
    let seen = world(&[0, 0], |ranks| {
        let mut b = Builder::new();
        let x = b.feed("words", DType::F32, [BATCH, Dim::Fixed(3)]).expect("a feed");
        let y = b.fc(x, 1, Act::None).and_then(|y| b.mean(y)).and_then(|y| b.named(y, "loss"));
        let mut program = b.finish().expect("the program is right");
        let rule = Rule::Momentum { mu: if ranks.index() == 0 { 0.9 } else { 0.8 }, nesterov: false };
        Optimizer::new(rule, 1e-2).minimize(&mut program, y.expect("a loss")).expect("it has a gradient");
        let setup = Setup { replicas: Some(1), collective: Arc::new(ranks), ..Setup::default() };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).expect("the setup is right");
        let x = Tensor::new(&[2, 3], &[1.0f32; 6]).expect("six numbers");
        exe.run(&mut Store::new(1), &[("words", Feed::Split(&x))], &[]).expect_err("they differ")
    });
    let different = RunError::from(CollectiveError::Different { process: 1 });
    assert_eq!(seen, [different.clone(), different]);
}

#[test]
fn values_that_are_written_between_runs_are_alike_or_refused() {
    // OUTSIDE-1
    let seen = world(&[0, 0, 1], |ranks| {
        let me = ranks.index();
        let mut exe = executor(Arc::new(ranks), 1, ReduceStrategy::AllReduce);
        let mut store = Store::new(1);
        let mut run = |store: &mut Store| step(&mut exe, store, &samples(0, me * 4..me * 4 + 4)).map(drop);
        run(&mut store).expect("they begin alike");
        let name = store
            .names()
            .find(|name| name.contains("fc") && !name.contains("moment"))
            .expect("layers have weights")
            .to_string();
        let old = store.get(&name).expect("it is there");
        let numbers: Vec<f32> = old.to_f64().iter().map(|x| *x as f32 + 1.0).collect();
        let other = Tensor::new(old.dims(), &numbers).expect("as many numbers");
        let mut told = Vec::new();
        for written in [[&old, &old, &old], [&old, &old, &other], [&other, &other, &other]] {
            store.set(&name, written[me]).expect("it fits");
            told.push(run(&mut store));
        }
        // Only one of them writes, and it is what all of them have.
        if me == 1 {
            let same = store.get(&name).expect("it is there");
            store.set(&name, &same).expect("it fits");
        }
        told.push(run(&mut store));
        // A run that no other process takes part in.
        if me == 1 {
            let mut alone = Executor::new(program(), Options::default()).expect("the program is right");
            let batch = samples(0, 0..4);
            alone.run(&mut store, &[("words", &batch.0), ("label", &batch.1)], &[]).expect("it runs");
        }
        told.push(run(&mut store));
        (name, told)
    });
    for (name, told) in &seen {
        let unlike = |process: usize, var: &str| {
            Err(RunError::from(CollectiveError::Values { process, var: var.to_string() }))
        };
        assert_eq!(told[..4], [Ok(()), unlike(2, name), Ok(()), Ok(())]);
        assert!(
            matches!(&told[4], Err(RunError::Collective(CollectiveError::Values { process: 1, .. }))),
            "{:?}",
            told[4]
        );
    }
}

#[test]
fn values_that_are_fed_are_alike_or_refused() {
    // OUTSIDE-1
    let seen = world(&[0, 1], |ranks| {
        let me = ranks.index();
        let mut exe = executor(Arc::new(ranks), 1, ReduceStrategy::AllReduce);
        let mut store = Store::new(1);
        exe.prepare(&mut store).expect("they begin alike");
        let rate = store.names().find(|name| name.contains("rate")).expect("there is a rate").to_string();
        let mut run = |value: f32| {
            let shape = store.get(&rate).expect("it is there").dims().to_vec();
            let value = Tensor::new(&shape, &[value]).expect("one number");
            let batch = samples(0, me * 4..me * 4 + 4);
            let feeds = [
                ("words", Feed::Split(&batch.0)),
                ("label", Feed::Split(&batch.1)),
                (rate.as_str(), Feed::Replicate(&value)),
            ];
            exe.run(&mut store, &feeds, &[]).map(drop)
        };
        let told = [run(0.5), run(0.25 + me as f32), run(0.5)];
        (rate, told)
    });
    for (rate, told) in &seen {
        let unlike = RunError::from(CollectiveError::Values { process: 1, var: rate.clone() });
        assert_eq!(told, &[Ok(()), Err(unlike), Ok(())]);
    }
}
