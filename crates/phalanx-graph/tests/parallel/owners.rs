//! Reduce across processes: each parameter has one owner, and everything has the bits of AllReduce.

use super::{
    models::{PIXELS, adam, assert_same, bits, digits, network, on},
    processes::part,
};
use crate::threads::Threads;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildStrategy, Builder, Clip, Dim, ExecutionStrategy, Feed, Fetch, Init, Optimizer,
    ParallelExecutor, Program, ReduceStrategy, Role, Rule, RunError, Setup, Store, Tensor, VarKind,
    layers::EmbeddingOptions,
    op::{Arith, Assign, Binary},
    saved::{SavedError, save_values},
};
use std::sync::Arc;

fn reduce() -> BuildStrategy {
    BuildStrategy { reduce_strategy: ReduceStrategy::Reduce, ..BuildStrategy::default() }
}

fn all_reduce() -> BuildStrategy {
    BuildStrategy::default()
}

/// What each process says of itself, each on a thread of its own.
fn each<T: Send>(all: Vec<Threads>, run: impl Fn(usize, Threads) -> T + Sync) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            all.into_iter().enumerate().map(|(at, one)| scope.spawn(move || run(at, one))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn executor(program: &Program, build: &BuildStrategy, replicas: usize, of: Threads) -> ParallelExecutor {
    let setup = Setup { build: build.clone(), collective: Arc::new(of), ..on(replicas) };
    ParallelExecutor::new(program, Some("loss"), setup).unwrap()
}

fn step(
    exe: &mut ParallelExecutor,
    store: &mut Store,
    shares: &[usize],
    at: usize,
    seed: u64,
) -> Result<f32, RunError> {
    let (x, y) = digits(shares.iter().sum(), seed);
    let first = shares[..at].iter().sum();
    let (x, y) = (part(&x, first, shares[at]), part(&y, first, shares[at]));
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let out = exe.run(store, &feeds, &[Fetch::mean("loss")])?;
    Ok(out[0].one().data::<f32>().unwrap()[0])
}

/// Losses and stores after some steps, and the bytes of states that each process had in them.
fn trained(
    program: &Program,
    build: &BuildStrategy,
    replicas: usize,
    shares: &[usize],
    parts: bool,
) -> Vec<(Vec<u32>, Store, usize)> {
    each(Threads::with(shares.len(), parts), |at, collective| {
        let mut exe = executor(program, build, replicas, collective);
        let mut store = Store::new(3 + at as u64);
        let losses: Vec<f32> =
            (0..3).map(|seed| step(&mut exe, &mut store, shares, at, seed).unwrap()).collect();
        let states = program.vars().filter(|(_, var)| matches!(var.kind, VarKind::State(_)));
        let bytes = states.map(|(_, var)| store.bytes_of(&var.name)).sum();
        exe.gather(&mut store).unwrap();
        (bits(&losses), store, bytes)
    })
}

/// Reduce, with sums of parts and without, has the bits of AllReduce: losses, parameters and states, in all processes.
fn assert_alike(program: &Program, reduce: &BuildStrategy, replicas: usize, shares: &[usize], what: &str) {
    let plain = BuildStrategy { reduce_strategy: ReduceStrategy::AllReduce, ..reduce.clone() };
    let mut wanted = trained(program, &plain, replicas, shares, true);
    for parts in [true, false] {
        let why = format!("PARA-1: {what}, {shares:?} x {replicas}, parts {parts}");
        let got = trained(program, reduce, replicas, shares, parts);
        for ((losses, mut store, _), (known, other, _)) in got.into_iter().zip(&mut wanted) {
            assert_eq!(losses, *known, "{why}");
            assert_same(other, &mut store, &why);
        }
    }
}

const SHARES: [usize; 4] = [5, 3, 0, 4];

#[test]
fn owners_have_the_bits_of_all_reduce_for_every_rule_on_one_to_four_processes() {
    // PARA-1
    let momentum = Rule::Momentum { mu: 0.9, nesterov: false };
    for rule in [Rule::Sgd, momentum, Rule::adam()] {
        for clip in [None, Some(Clip::GlobalNorm(0.05))] {
            let optimizer = Optimizer { clip, ..Optimizer::new(rule, 0.01) };
            let program = network(Some(&optimizer), &[24, 17], false, 0.0);
            for n in 1..=4 {
                for replicas in [1, 2] {
                    assert_alike(&program, &reduce(), replicas, &SHARES[..n], &format!("{rule:?} {clip:?}"));
                }
            }
        }
    }
}

#[test]
fn owners_have_the_bits_of_all_reduce_whatever_else_the_strategy_asks_for() {
    // PARA-1
    let decayed = Optimizer { decay: Some(1e-3), clip: Some(Clip::Norm(0.1)), ..adam() };
    let plain = network(Some(&decayed), &[24, 17], true, 0.2);
    let lars = Optimizer::new(Rule::Lars { mu: 0.9, coefficient: 0.01, decay: 1e-4 }, 0.1);
    let normed = network(Some(&lars), &[24, 17], true, 0.0);
    for program in [&plain, &normed] {
        for build in [
            BuildStrategy { sync_batch_norm: true, ..reduce() },
            BuildStrategy { fuse_all_reduce_ops: false, ..reduce() },
            BuildStrategy { fuse_all_optimizer_ops: true, bucket_bytes: 1000, ..reduce() },
            BuildStrategy { enable_sequential_execution: true, fuse_elewise_add_act_ops: true, ..reduce() },
            BuildStrategy { accumulate: 2, ..reduce() },
        ] {
            assert_alike(program, &build, 2, &SHARES[..3], &format!("{build:?}"));
        }
    }
}

/// A table with sparse gradients, dense layers, and a sum of what a weight has been so far.
fn with_table() -> Program {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(PIXELS)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let options = EmbeddingOptions { sparse: true, padding: None };
    let table = b.parameter("table", [10, 6], Init::Normal { mean: 0.0, std: 0.5 }).unwrap();
    let looked = b.lookup(table, label, options).unwrap();
    let h = b.fc(image, 12, Act::Tanh).unwrap();
    let both = b.concat(&[looked, h], 1).unwrap();
    let scores = b.fc(both, 10, Act::None).unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    let optimizer = Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..adam() };
    optimizer.minimize(&mut program, loss).unwrap();
    let (w, site) = (program.find("fc.w").unwrap(), program.var(loss).site.clone());
    let kind = VarKind::State(Init::Constant(0.0));
    let sum = program.declare("fc.w.sum", program.sig(w).clone(), kind, site.clone()).unwrap();
    let add = Binary { op: Arith::Add, axis: 0 };
    let total = program.append(add, &[sum, w], "total", Role::Forward, site.clone()).unwrap()[0];
    program.append_to(Assign, &[total], &[sum], Role::Forward, site).unwrap();
    program
}

#[test]
fn tables_are_updated_by_all_and_what_follows_an_update_sees_its_result() {
    // PARA-1, OWN-3
    let program = with_table();
    for n in 1..=4 {
        assert_alike(&program, &reduce(), 2, &SHARES[..n], "table");
    }
    let owners = each(Threads::new(2), |_, collective| {
        let exe = executor(&program, &reduce(), 1, collective);
        let of = |name: &str| exe.graph().parts.owners.of_var(program.find(name).unwrap());
        assert_eq!((of("table.moment1"), of("fc.w.sum"), of("fc.w")), (None, None, None), "OWN-3");
        ["fc.w.moment1", "fc.w.moment2", "fc.b.moment1"].map(of)
    });
    assert!(owners[0].iter().all(Option::is_some) && owners[0][0] == owners[0][1], "{owners:?}");
    assert_eq!(owners[0], owners[1], "OWN-1");
}

#[test]
fn states_of_four_processes_take_a_quarter_each() {
    let program = network(Some(&adam()), &[64, 64, 64, 64, 64, 64, 64], false, 0.0);
    let whole = trained(&program, &all_reduce(), 1, &[2, 2, 2, 2], true)[0].2;
    for (_, _, bytes) in trained(&program, &reduce(), 1, &[2, 2, 2, 2], true) {
        assert!(10 * bytes <= 3 * whole, "OWN-2, STORE-3: {bytes} of {whole}");
    }
    let loads = each(Threads::new(4), |at, collective| {
        let exe = executor(&program, &reduce(), 1, collective);
        let owners = &exe.graph().parts.owners;
        let own = program.vars().filter(|(id, var)| var.is_persistable() && owners.of_var(*id) == Some(at));
        own.map(|(_, var)| var.sig.bytes(0)).sum::<usize>()
    });
    let largest = 3 * program.sig(program.find("fc.w").unwrap()).bytes(0);
    let mean = loads.iter().sum::<usize>() / 4;
    assert!(loads.iter().all(|&load| load <= mean + largest), "OWN-2: {loads:?}");
}

#[test]
fn what_an_owner_has_is_refused_elsewhere_until_it_is_gathered() {
    let program = network(Some(&adam()), &[24, 17], false, 0.0);
    let program = &program;
    each(Threads::new(2), |at, collective| {
        let mut exe = executor(program, &reduce(), 1, collective);
        let mut store = Store::new(1);
        step(&mut exe, &mut store, &[3, 3], at, 0).unwrap();
        let owner = exe.graph().parts.owners.of_var(program.find("fc.w.moment1").unwrap()).unwrap();
        let kept = store.kept_by("fc.w.moment1");
        assert_eq!(kept, (owner != at).then_some(owner), "STORE-3");
        assert_eq!(store.get("fc.w.moment1").is_some(), kept.is_none(), "STORE-3");
        let saved = save_values(program, &mut store, |_| true);
        // Both have something that the other one does not.
        assert!(matches!(saved, Err(SavedError::KeptElsewhere { .. })), "{saved:?}");
        let (x, y) = digits(3, 0);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        let refused = exe.run(&mut store, &feeds, &[Fetch::first("fc.w.moment1")]).unwrap_err();
        assert!(matches!(&refused, RunError::FetchOwned { var, .. } if var == "fc.w.moment1"), "{refused}");
        exe.gather(&mut store).unwrap();
        assert!(save_values(program, &mut store, |_| true).is_ok());
        step(&mut exe, &mut store, &[3, 3], at, 1).unwrap();
        assert_eq!(store.kept_by("fc.w.moment1"), kept, "STORE-3: the next run leaves it to its owner again");
    });
}

#[test]
fn a_state_that_is_fed_goes_to_its_owner_alone() {
    let momentum = Optimizer::new(Rule::Momentum { mu: 0.9, nesterov: false }, 0.05);
    let program = network(Some(&momentum), &[24, 17], false, 0.0);
    let program = &program;
    let name = "fc.w.velocity";
    let fed = |build: &BuildStrategy, passes: usize| {
        each(Threads::new(3), |at, collective| {
            let exec = ExecutionStrategy { num_iteration_per_run: passes, ..ExecutionStrategy::default() };
            let setup = Setup { build: build.clone(), exec, collective: Arc::new(collective), ..on(1) };
            let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
            let mut store = Store::new(1);
            let sig = program.sig(program.find(name).unwrap());
            let value = Tensor::new(&sig.shape.at(0), &vec![0.25f32; sig.bytes(0) / 4]).unwrap();
            for seed in 0..4 {
                let (x, y) = digits(9, seed);
                let (x, y) = (part(&x, 3 * at, 3), part(&y, 3 * at, 3));
                let mut feeds = vec![("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
                // In the first run, between others, and twice in a row.
                if seed != 1 {
                    feeds.push((name, Feed::Replicate(&value)));
                }
                exe.run(&mut store, &feeds, &[]).unwrap_or_else(|why| panic!("run {seed}: {why}"));
                let owner = exe.graph().parts.owners.of_var(program.find(name).unwrap());
                assert_eq!(store.kept_by(name), owner.filter(|&owner| owner != at), "STORE-3");
            }
            exe.gather(&mut store).unwrap();
            contents(&mut store)
        })
    };
    for passes in [1, 2] {
        let wanted = fed(&all_reduce(), passes);
        assert!(fed(&reduce(), passes) == wanted, "PARA-1");
    }
}

#[test]
fn a_state_that_is_fed_differently_is_refused_by_all() {
    // OUTSIDE-1
    let program = network(Some(&adam()), &[24, 17], false, 0.0);
    let program = &program;
    let name = "fc.w.moment1";
    // Of process 0, then of process 1, then a value that only one of them feeds.
    for given in [[Some(0.5), Some(0.25)], [Some(0.5), None], [None, Some(0.5)]] {
        let whys = each(Threads::new(2), |at, collective| {
            let mut exe = executor(program, &reduce(), 1, collective);
            let mut store = Store::new(1);
            step(&mut exe, &mut store, &[3, 3], at, 0).unwrap();
            let sig = program.sig(program.find(name).unwrap());
            let filled = |with: f32| Tensor::new(&sig.shape.at(0), &vec![with; sig.bytes(0) / 4]).unwrap();
            let value = given[at].map(filled);
            let (x, y) = digits(3, 1);
            let mut feeds = vec![("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
            feeds.extend(value.as_ref().map(|value| (name, Feed::Replicate(value))));
            let why = exe.run(&mut store, &feeds, &[]).unwrap_err().to_string();
            step(&mut exe, &mut store, &[3, 3], at, 2).unwrap();
            why
        });
        assert!(whys.iter().all(|why| why.contains(name)), "{given:?}: {whys:?}");
    }
}

#[test]
fn what_three_processes_saved_two_go_on_with() {
    let program = network(Some(&adam()), &[24, 17], false, 0.0);
    let program = &program;
    let mut stores: Vec<Store> =
        trained(program, &reduce(), 1, &[4, 4, 4], true).into_iter().map(|(_, store, _)| store).collect();
    let saved = save_values(program, &mut stores[1], |_| true).unwrap();
    let on_two = |build: &BuildStrategy| {
        let mut stores = each(Threads::new(2), |at, collective| {
            let mut exe = executor(program, build, 2, collective);
            let mut store = Store::new(77);
            store.admit(program).unwrap();
            let values = phalanx_graph::saved::load_values(&saved).unwrap();
            values.give(program, &mut store, |_| true).unwrap();
            values.go_on(&mut store);
            for seed in 3..6 {
                step(&mut exe, &mut store, &[6, 6], at, seed).unwrap();
            }
            exe.gather(&mut store).unwrap();
            store
        });
        stores.remove(1)
    };
    assert_same(&mut on_two(&all_reduce()), &mut on_two(&reduce()), "PARA-1 after a restart");
}

fn contents(store: &mut Store) -> Vec<(String, Vec<u8>)> {
    let names: Vec<String> = store.names().map(String::from).collect();
    names.into_iter().map(|name| (name.clone(), store.get(&name).unwrap().bytes().to_vec())).collect()
}

#[test]
fn after_an_update_that_failed_with_one_owner_all_processes_agree_again() {
    // PARA-2
    let program = network(Some(&adam()), &[24, 17], false, 0.0);
    let program = &program;
    let build = BuildStrategy { check_nan_inf: true, bucket_bytes: 2000, ..reduce() };
    let said = each(Threads::new(3), |at, collective| {
        let mut exe = executor(program, &build, 1, collective);
        let mut store = Store::new(1);
        let set = |store: &mut Store, name: &str, to: f32| {
            let like = store.get(name).unwrap();
            let value = Tensor::new(like.dims(), &vec![to; like.to_f64().len()]).unwrap();
            store.set(name, &value).unwrap();
        };
        step(&mut exe, &mut store, &[3, 3, 3], at, 0).unwrap();
        exe.gather(&mut store).unwrap();
        // The root of it is not a number: one owner fails, while others have updated theirs.
        set(&mut store, "fc.b.moment2", -1e30);
        let failed = step(&mut exe, &mut store, &[3, 3, 3], at, 1).unwrap_err();
        exe.gather(&mut store).unwrap();
        let after = contents(&mut store);
        ["fc.b", "fc.b.moment1", "fc.b.moment2"].into_iter().for_each(|name| set(&mut store, name, 0.0));
        step(&mut exe, &mut store, &[3, 3, 3], at, 2).unwrap_or_else(|e| panic!("{e}, after {failed}"));
        exe.gather(&mut store).unwrap();
        (matches!(failed, RunError::Collective(_)), after, contents(&mut store))
    });
    assert_eq!(
        said.iter().filter(|(is_told, ..)| !is_told).count(),
        1,
        "one owner fails, the others are told"
    );
    for (_, after, end) in &said {
        assert!(*after == said[0].1 && *end == said[0].2, "PARA-2");
    }
}
