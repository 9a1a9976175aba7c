//! Failures, testing while training, memory, dry runs, traces, passes: PARA-2, POOL-3, STORE-1, STORE-2, SSA-1, SSA-2.

use super::models::{adam, digits, mlp, network, on};
use phalanx_core::DType;
use phalanx_graph::{
    BATCH, BuildError, BuildStrategy, Builder, Dim, ExecutionStrategy, Executor, Feed, Fetch, GradientScale,
    Init, Optimizer, Options, ParallelExecutor, ReduceStrategy, Rule, RunError, Setup, Store, Tensor,
    graph::{Conflict, Graph, GraphFault, NodeKind, Pass, PassList},
    op::Func,
};

fn threads(n: usize) -> ExecutionStrategy {
    ExecutionStrategy { num_threads: n, ..ExecutionStrategy::default() }
}

#[test]
fn an_operation_that_fails_in_replica_two_changes_nothing_and_the_next_run_is_fine() {
    let program = mlp(Some(&adam()));
    for (reduce_strategy, n_threads) in [
        (ReduceStrategy::AllReduce, 1),
        (ReduceStrategy::AllReduce, 3),
        (ReduceStrategy::Reduce, 1),
        (ReduceStrategy::Reduce, 3),
    ] {
        let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
        let setup = || Setup { build: build.clone(), exec: threads(n_threads), ..on(4) };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup()).unwrap();
        let mut untouched = ParallelExecutor::new(&program, Some("loss"), setup()).unwrap();
        let (mut store, mut other) = (Store::new(0), Store::new(0));
        for step in 0..4 {
            let (x, y) = digits(8, step);
            let mut labels = y.data::<i64>().unwrap().to_vec();
            labels[4] = 10;
            let wrong = Tensor::new(&[8], &labels).unwrap();
            exe.prepare(&mut store).unwrap();
            let names: Vec<String> = store.names().map(String::from).collect();
            let before: Vec<_> = names.iter().map(|n| store.get(n)).collect();
            let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&wrong))];
            let error = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap_err();
            let said = error.to_string();
            let right = [
                "in replica 2",
                "softmax_with_cross_entropy",
                "parallel/models.rs:",
                "element 0: 10",
                "f32[2, 10]",
            ];
            assert!(right.iter().all(|part| said.contains(part)), "{said}");
            let after: Vec<_> = names.iter().map(|n| store.get(n)).collect();
            assert_eq!(before, after, "PARA-2");
            let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
            let fine = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
            let same = untouched.run(&mut other, &feeds, &[Fetch::mean("loss")]).unwrap();
            assert_eq!(fine, same, "POOL-3: as if nothing had happened");
        }
    }
}

#[test]
fn a_test_executor_sees_exactly_what_the_last_step_left() {
    let program = network(Some(&adam()), &[20, 20], true, 0.1);
    let test = program.clone_for_test();
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
        let mut trainer = ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(4) }).unwrap();
        let mut tester = ParallelExecutor::new(&test, None, on(3)).unwrap();
        let mut alone = Executor::new(test.clone(), Options::default()).unwrap();
        let mut store = Store::new(0);
        let (tx, ty) = digits(9, 99);
        for step in 0..5 {
            let (x, y) = digits(16, step);
            trainer.run(&mut store, &[("image", Feed::Split(&x)), ("label", Feed::Split(&y))], &[]).unwrap();
            let feeds = [("image", Feed::Split(&tx)), ("label", Feed::Split(&ty))];
            let seen = tester.run(&mut store, &feeds, &[Fetch::concat("scores")]).unwrap();
            // A copy of the parameters, put by hand into a store that nobody trains.
            let mut copy = Store::new(7);
            alone.prepare(&mut copy).unwrap();
            let names: Vec<String> = copy.names().map(String::from).collect();
            for name in &names {
                copy.set(name, &store.get(name).unwrap()).unwrap();
            }
            let wanted = alone.run(&mut copy, &[("image", &tx), ("label", &ty)], &["scores"]).unwrap();
            let (a, b) = (seen[0].one().to_f64(), wanted[0].to_f64());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "STORE-1");
            let by_one = alone.run(&mut store, &[("image", &tx), ("label", &ty)], &["scores"]).unwrap();
            assert_eq!(by_one, wanted, "exactly");
        }
        let stats: Vec<f64> = (0..4).map(|r| store.get_copy("bn.mean", r).unwrap().to_f64()[0]).collect();
        assert!(stats.iter().any(|v| *v != stats[0]), "statistics are each replica's own");
        let mean = stats.iter().sum::<f64>() / 4.0;
        assert!((store.get("bn.mean").unwrap().to_f64()[0] - mean).abs() < 1e-7, "STORE-2");
    }
}

#[test]
fn a_store_of_another_program_is_refused() {
    let mut store = Store::new(0);
    let (x, y) = digits(4, 0);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let (a, b) = (network(None, &[10], false, 0.0), network(None, &[11], false, 0.0));
    ParallelExecutor::new(&a, None, on(2)).unwrap().run(&mut store, &feeds, &[]).unwrap();
    let error = ParallelExecutor::new(&b, None, on(2)).unwrap().run(&mut store, &feeds, &[]).unwrap_err();
    assert!(matches!(&error, RunError::StateMisfit { var, .. } if var.starts_with("fc")), "{error}");
    // Another number of replicas is no mismatch: everybody takes the values over.
    let mut more = ParallelExecutor::new(&a, None, on(5)).unwrap();
    more.run(&mut store, &feeds, &[]).unwrap();
}

#[test]
fn executors_of_different_sizes_can_take_turns_on_one_store() {
    let program = mlp(Some(&Optimizer::new(Rule::Momentum { mu: 0.9, nesterov: false }, 0.05)));
    let mut turns = Store::new(1);
    let mut straight = Store::new(1);
    let mut many: Vec<ParallelExecutor> =
        [2, 4, 1].map(|n| ParallelExecutor::new(&program, Some("loss"), on(n)).unwrap()).into();
    let mut one = ParallelExecutor::new(&program, Some("loss"), on(1)).unwrap();
    for step in 0..6 {
        let (x, y) = digits(8, step);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        many[step as usize % 3].run(&mut turns, &feeds, &[]).unwrap();
        one.run(&mut straight, &feeds, &[]).unwrap();
    }
    let (a, b) = (turns.get("fc.w").unwrap().to_f64(), straight.get("fc.w").unwrap().to_f64());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn memory_is_given_back_after_so_many_runs_and_taken_anew() {
    let program = mlp(Some(&adam()));
    let exec = ExecutionStrategy { num_iteration_per_drop_scope: 3, ..ExecutionStrategy::default() };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { exec, ..on(2) }).unwrap();
    let mut store = Store::new(0);
    let (x, y) = digits(8, 0);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    let mut sizes = Vec::new();
    for _ in 0..6 {
        exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
        sizes.push(exe.arena_bytes());
    }
    assert!(sizes[0] > 0 && sizes[1] == sizes[0] && sizes[2] == 0, "{sizes:?}");
    assert_eq!(sizes[3..], sizes[..3]);
    exe.drop_scopes();
    exe.run(&mut store, &feeds, &[]).unwrap();
}

#[test]
fn a_dry_run_visits_everything_once_and_computes_nothing() {
    let program = network(Some(&adam()), &[20; 10], false, 0.0);
    for n_threads in [1, 2] {
        let setup = Setup { exec: threads(n_threads), ..on(2) };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        let mut store = Store::new(0);
        exe.prepare(&mut store).unwrap();
        let before = store.get("fc.w");
        let seen = exe.dry_run(&mut store, 100).unwrap();
        assert_eq!(seen.n_visited, 100 * seen.n_tasks);
        assert!(seen.n_tasks >= exe.graph().nodes.len() && seen.ns_per_task > 0.0);
        assert_eq!(store.get("fc.w"), before);
        println!("{n_threads} threads: {} tasks, {:.0} ns for each", seen.n_tasks, seen.ns_per_task);
        let (x, y) = digits(4, 0);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        exe.run(&mut store, &feeds, &[]).unwrap();
        assert_ne!(store.get("fc.w"), before, "and real runs go on");
        let exec = ExecutionStrategy { dry_run: true, ..threads(n_threads) };
        let mut dry = ParallelExecutor::new(&program, Some("loss"), Setup { exec, ..on(2) }).unwrap();
        let before = store.get("fc.w");
        dry.run(&mut store, &[], &[]).unwrap();
        assert_eq!(store.get("fc.w"), before);
    }
}

#[test]
fn numbers_that_are_not_finite_are_named_with_their_replica() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH]).unwrap();
    let y = b.map(Func::Log, x).unwrap();
    b.named(y, "y").unwrap();
    let build = BuildStrategy { check_nan_inf: true, ..BuildStrategy::default() };
    let mut exe = ParallelExecutor::new(&b.finish().unwrap(), None, Setup { build, ..on(3) }).unwrap();
    let x = Tensor::new(&[6], &[1f32, 2.0, 3.0, 0.0, 5.0, 6.0]).unwrap();
    let error = exe.run(&mut Store::new(0), &[("x", Feed::Split(&x))], &[]).unwrap_err();
    let RunError::Replica { replica: 1, error } = error else { panic!("{error}") };
    assert!(matches!(&*error, RunError::NotFinite { op: "log", var, at: 1, .. } if var == "y"), "{error}");
}

#[test]
fn traces_name_every_node_of_every_replica_within_the_run() {
    let program = network(Some(&adam()), &[20], false, 0.0);
    let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { exec: threads(2), ..on(2) }).unwrap();
    let mut store = Store::new(0);
    let (x, y) = digits(8, 0);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    assert!(exe.trace().is_none());
    exe.record(true);
    exe.run(&mut store, &feeds, &[]).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&exe.trace().unwrap()).unwrap();
    for node in &exe.graph().nodes {
        let title = exe.graph().title(node);
        let found = events.iter().filter(|e| e["name"] == title.as_str()).count();
        assert!(found > 0, "{title} is not in the trace");
    }
    // Every operation of the network, in each replica, as often as the program has it.
    let body: Vec<&str> = exe.graph().parts.body.iter().map(|&id| program.op(id).name()).collect();
    for replica in 0..2 {
        let seen: Vec<&str> = events
            .iter()
            .filter(|e| e["args"]["replica"] == replica)
            .flat_map(|e| e["cat"].as_str().unwrap().split('+'))
            .collect();
        for name in &body {
            let count = |list: &[&str]| list.iter().filter(|n| *n == name).count();
            assert_eq!(count(&seen), count(&body), "`{name}` in replica {replica}");
        }
    }
    // What one worker does, it does one after another.
    for worker in 0..2 {
        let mut spans: Vec<(f64, f64)> = events
            .iter()
            .filter(|e| e["tid"] == worker)
            .map(|e| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap()))
            .collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0 + 0.002));
    }
}

#[test]
fn sequential_replicas_run_in_the_order_of_the_program_every_time() {
    let program = network(Some(&adam()), &[20, 20], true, 0.2);
    let build = BuildStrategy { enable_sequential_execution: true, ..BuildStrategy::default() };
    let (x, y) = digits(9, 0);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    for n_threads in [1, 3] {
        let setup = Setup { build: build.clone(), exec: threads(n_threads), ..on(3) };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        let mut store = Store::new(0);
        exe.record(true);
        for _ in 0..5 {
            exe.run(&mut store, &feeds, &[]).unwrap();
            let mut events: Vec<serde_json::Value> = serde_json::from_str(&exe.trace().unwrap()).unwrap();
            events.sort_by(|a, b| a["ts"].as_f64().unwrap().total_cmp(&b["ts"].as_f64().unwrap()));
            let wanted: Vec<&str> = exe.graph().parts.body.iter().map(|&id| program.op(id).name()).collect();
            for replica in 0..3 {
                let title = format!("@{replica}");
                let own = events.iter().filter(|e| e["name"].as_str().unwrap().ends_with(&title));
                let ran: Vec<&str> = own.flat_map(|e| e["cat"].as_str().unwrap().split('+')).collect();
                assert_eq!(ran, wanted, "replica {replica}, {n_threads} threads");
            }
        }
    }
}

#[test]
fn strategies_that_contradict_each_other_and_wrong_losses_are_refused() {
    let program = mlp(Some(&adam()));
    let new = |loss, build| ParallelExecutor::new(&program, loss, Setup { build, ..on(2) });
    let build = BuildStrategy {
        reduce_strategy: ReduceStrategy::NoReduce,
        sync_batch_norm: true,
        num_trainers: Some(2),
        ..BuildStrategy::default()
    };
    let before = build.clone();
    let BuildError::Conflicts(all) = new(Some("loss"), build.clone()).unwrap_err() else { panic!() };
    assert_eq!(all.0, [Conflict::Trainers { wanted: 2, got: 1 }, Conflict::SyncAlone]);
    assert_eq!(build, before);
    let plain = BuildStrategy::default;
    assert!(matches!(new(None, plain()), Err(BuildError::LossNotNamed { of }) if of == "loss"));
    assert!(matches!(new(Some("los"), plain()), Err(BuildError::UnknownLoss { .. })));
    assert!(matches!(new(Some("accuracy"), plain()), Err(BuildError::OtherLoss { .. })));
    assert!(matches!(new(Some("scores"), plain()), Err(BuildError::LossNotScalar { .. })));
    let custom = BuildStrategy { gradient_scale: GradientScale::Customized, ..plain() };
    let test = program.clone_for_test();
    assert!(ParallelExecutor::new(&test, None, Setup { build: custom, ..on(2) }).is_err());
    let exe = new(Some("loss"), plain()).unwrap();
    assert_eq!((exe.effective().replicas, exe.effective().build.num_trainers), (2, Some(1)));
    assert!(exe.effective().threads >= 1);
}

/// Takes the sums out again.
struct Forgetful;

impl Pass for Forgetful {
    fn name(&self) -> &str {
        "forgetful"
    }

    fn apply(&self, graph: &mut Graph) -> Result<(), BuildError> {
        graph.nodes.retain(|n| !matches!(n.kind, NodeKind::Sum { .. }));
        Ok(())
    }
}

/// Runs an operation twice.
struct Eager;

impl Pass for Eager {
    fn name(&self) -> &str {
        "eager"
    }

    fn apply(&self, graph: &mut Graph) -> Result<(), BuildError> {
        let last = graph.nodes.last().cloned().expect("there are nodes");
        graph.nodes.push(last);
        Ok(())
    }
}

#[test]
fn passes_can_be_changed_and_are_checked() {
    let program = mlp(Some(&adam()));
    let names: Vec<String> = PassList::standard().names().map(String::from).collect();
    assert!(names.iter().position(|n| n == "replicate") < names.iter().position(|n| n == "collectives"));
    let with = |change: &dyn Fn(&mut PassList)| {
        let mut passes = PassList::standard();
        change(&mut passes);
        ParallelExecutor::new(&program, Some("loss"), Setup { passes, ..on(2) })
    };
    with(&|p| drop(p.remove("fuse_all_reduce").unwrap())).unwrap();
    let fault = |made: Result<ParallelExecutor, BuildError>| match made.unwrap_err() {
        BuildError::Fault { pass, fault } => (pass, fault),
        other => panic!("{other}"),
    };
    let (pass, found) = fault(with(&|p| p.append(Box::new(Forgetful))));
    assert_eq!(pass, "forgetful");
    assert!(matches!(found, GraphFault::Unwritten { .. }), "SSA-1: {found}");
    let (_, found) = fault(with(&|p| drop(p.remove("collectives").unwrap())));
    assert!(matches!(found, GraphFault::Unwritten { .. }), "{found}");
    let (pass, _) = fault(with(&|p| p.insert("sequential", Box::new(Eager)).unwrap()));
    assert_eq!(pass, "eager", "SSA-2");
    let mut list = PassList::standard();
    assert!(
        matches!(list.remove("nothing"), Err(BuildError::UnknownPass { known, .. }) if known.contains("replicate"))
    );
}

#[test]
fn graphs_are_written_for_people_after_each_pass() {
    let program = mlp(Some(&adam()));
    let folder = std::env::temp_dir().join(format!("phalanx-graph-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = Some(folder.join("graph"));
    let build = BuildStrategy { debug_graphviz_path: path, ..BuildStrategy::default() };
    let exe = ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(2) }).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), PassList::standard().names().count());
    let last = std::fs::read_to_string(&files[6]).unwrap();
    assert_eq!(last, exe.graph().to_dot());
    assert!(last.starts_with("digraph {") && last.contains("matmul @1") && last.contains("sum "));
    std::fs::remove_dir_all(&folder).unwrap();
    let json: serde_json::Value = serde_json::from_str(&exe.graph().to_json()).unwrap();
    assert_eq!(json["nodes"].as_array().unwrap().len(), exe.graph().nodes.len());
    let back = |e: &serde_json::Value| e["from"].as_u64() < e["to"].as_u64();
    assert!(json["edges"].as_array().unwrap().iter().all(back), "SSA-1");
}

#[test]
fn memory_that_cannot_be_had_is_an_error_and_smaller_runs_go_on() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
    // 1 TiB for each sample.
    let wide = b.expand(x, [BATCH, Dim::Fixed(1 << 38)]).unwrap();
    let y = b.mean(wide).unwrap();
    b.named(y, "y").unwrap();
    let program = b.finish().unwrap();
    let value = Tensor::new(&[512, 1], &[1f32; 512]).unwrap();
    let mut exe = ParallelExecutor::new(&program, None, on(2)).unwrap();
    let error = exe.run(&mut Store::new(0), &[("x", Feed::Split(&value))], &[]).unwrap_err();
    let of_replica = 256usize << 40;
    assert!(matches!(error, RunError::Memory { bytes, .. } if bytes >= of_replica), "{error}");
    let none = Tensor::new::<f32>(&[0, 1], &[]).unwrap();
    exe.run(&mut Store::new(0), &[("x", Feed::Split(&none))], &[]).unwrap();
    let mut one = Executor::new(program, Options::default()).unwrap();
    let error = one.run(&mut Store::new(0), &[("x", &value)], &[]).unwrap_err();
    assert!(matches!(error, RunError::Memory { .. }), "{error}");

    let mut b = Builder::new();
    b.parameter("vast", [1 << 41], Init::Constant(0.0)).unwrap();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
    b.mean(x).unwrap();
    let program = b.finish().unwrap();
    let mut exe = ParallelExecutor::new(&program, None, on(2)).unwrap();
    let error = exe.run(&mut Store::new(0), &[("x", Feed::Split(&none))], &[]).unwrap_err();
    assert!(error.to_string().contains("`vast`"), "{error}");
}

#[test]
fn an_update_for_all_reaches_every_copy_and_moments_are_there_once() {
    let program = mlp(Some(&adam()));
    let mut exe = ParallelExecutor::new(&program, Some("loss"), on(3)).unwrap();
    let mut store = Store::new(0);
    exe.prepare(&mut store).unwrap();
    let before = store.get("fc.w").unwrap();
    let (x, y) = digits(9, 1);
    let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
    exe.run(&mut store, &feeds, &[]).unwrap();
    let names: Vec<String> = store.names().map(String::from).collect();
    for name in &names {
        let first = store.get_copy(name, 0);
        assert!((1..3).all(|r| store.get_copy(name, r) == first), "{name}");
    }
    assert_ne!(store.get_copy("fc.w", 2).unwrap(), before);
}

#[test]
fn an_update_that_fails_leaves_all_replicas_alike() {
    // PARA-2
    let program = network(Some(&Optimizer::new(Rule::Sgd, 1e38)), &[20], false, 0.0);
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let build = BuildStrategy { check_nan_inf: true, reduce_strategy, ..BuildStrategy::default() };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { build, ..on(3) }).unwrap();
        let mut store = Store::new(0);
        let (x, y) = digits(9, 1);
        let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
        let mut n_failed = 0;
        for _ in 0..3 {
            n_failed += usize::from(exe.run(&mut store, &feeds, &[]).is_err());
            let names: Vec<String> = store.names().map(String::from).collect();
            for name in &names {
                let first = store.get_copy(name, 0).unwrap();
                let same = |r| store.get_copy(name, r).unwrap().bytes() == first.bytes();
                assert!((1..3).all(same), "{name} after a failed update");
            }
        }
        assert!(n_failed > 0, "nothing was too large");
    }
}

#[test]
fn a_dry_run_refuses_what_a_run_refuses() {
    let program = mlp(Some(&adam()));
    let exec = ExecutionStrategy { dry_run: true, ..ExecutionStrategy::default() };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), Setup { exec, ..on(2) }).unwrap();
    let error = exe.run(&mut Store::new(0), &[], &[Fetch::mean("label")]).unwrap_err();
    assert!(matches!(error, RunError::NotReal { .. }), "{error}");
}
