//! Parameters on servers: what programs learn with them, and what is refused.

use super::models::on;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, BuildError, BuildStrategy, Builder, Chosen, Clip, Dim, ExecutionStrategy, Feed, Fetch, Init,
    Optimizer, ParallelExecutor, Program, ReduceStrategy, Role, Rule, RunError, Setup, Store, Tensor, VarId,
    append_backward_of,
    exec::{CollectiveError, Done, LocalServed, PushedRows, Served},
    graph::{NodeKind, ServedClip, Unserved, servable, serve},
    kernel::Stream,
    layers::EmbeddingOptions,
    op::{Func, Increment, Reduction, Unary},
};
use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// Words and their successors: a table for three words, one row of padding; a second table for a fixed number of candidates.
fn words(optimizer: &Optimizer) -> Program {
    let (mut program, loss) = network();
    optimizer.minimize(&mut program, loss).unwrap();
    program
}

fn network() -> (Program, VarId) {
    let mut b = Builder::new();
    let a = b.feed("a", DType::I64, [BATCH, Dim::Fixed(3)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let candidates = b.feed("candidates", DType::I64, [5]).unwrap();
    let options = EmbeddingOptions { sparse: true, padding: Some(19) };
    let table = b.parameter("table", [20, 6], Init::Normal { mean: 0.0, std: 0.5 }).unwrap();
    let out = b.parameter("out", [12, 4], Init::Xavier).unwrap();
    let x = b.lookup(table, a, options).unwrap();
    let x = b.reduce(Reduction::Sum, x, &[1], false).unwrap();
    let x = b.fc(x, 4, Act::Tanh).unwrap();
    let w = b.lookup(out, candidates, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let w = b.transpose(w, &[1, 0]).unwrap();
    let scores = b.matmul(x, w, false, false).unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    (b.finish().unwrap(), loss)
}

fn batch(n: usize, step: u64) -> [Tensor; 3] {
    let dice = Stream::new(5, step, 0);
    let a: Vec<i64> = (0..3 * n).map(|i| (dice.bits(i as u64) % 20) as i64).collect();
    let label: Vec<i64> = (0..n).map(|i| a[3 * i] % 5).collect();
    let candidates: Vec<i64> = (0..5).map(|i| (dice.bits(900 + i) % 12) as i64).collect();
    [
        Tensor::new(&[n, 3], &a).unwrap(),
        Tensor::new(&[n], &label).unwrap(),
        Tensor::new(&[5], &candidates).unwrap(),
    ]
}

fn step(exe: &mut ParallelExecutor, store: &mut Store, batch: &[Tensor; 3]) -> f64 {
    let [a, label, candidates] = batch;
    let feeds =
        [("a", Feed::Split(a)), ("label", Feed::Split(label)), ("candidates", Feed::Replicate(candidates))];
    exe.run(store, &feeds, &[Fetch::mean("loss")]).unwrap()[0].one().to_f64()[0]
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-5 * b.abs().max(1.0))
}

const EVERY: [&str; 4] = ["fc.b", "fc.w", "out", "table"];

/// Losses, and all parameters in the order of `EVERY`.
fn alone(program: &Program) -> (Vec<f64>, Vec<Vec<f64>>) {
    let mut exe = ParallelExecutor::new(program, Some("loss"), on(1)).unwrap();
    let mut store = Store::new(9);
    let losses = (0..20).map(|at| step(&mut exe, &mut store, &batch(14, at))).collect();
    (losses, EVERY.map(|name| store.get(name).unwrap().to_f64()).to_vec())
}

#[test]
fn programs_learn_with_servers_what_they_learn_without() {
    let rules = [
        Rule::Sgd,
        Rule::Momentum { mu: 0.9, nesterov: true },
        Rule::adam(),
        Rule::Adagrad { epsilon: 1e-6 },
        Rule::RmsProp { rho: 0.9, epsilon: 1e-6, mu: 0.5 },
    ];
    for rule in rules {
        let clips =
            [(None, None), (Some(Clip::Norm(0.3)), Some(0.01)), (Some(Clip::GlobalNorm(0.2)), Some(0.01))];
        for (clip, decay) in clips {
            let program = words(&Optimizer { clip, decay, ..Optimizer::new(rule, 0.01) });
            let wanted = alone(&program);
            for served in [&["table", "out"][..], &EVERY[..], &["fc.w", "out"]] {
                let names: Vec<String> = served.iter().map(|name| name.to_string()).collect();
                for (replicas, accumulate) in [(1, 1), (2, 1), (3, 2)] {
                    let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
                    let build =
                        BuildStrategy { served: names.clone(), accumulate, ..BuildStrategy::default() };
                    let setup = Setup { build, served: Some(servers.clone()), ..on(replicas) };
                    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
                    let mut store = Store::new(9);
                    let losses: Vec<f64> =
                        (0..20).map(|at| step(&mut exe, &mut store, &batch(14, at))).collect();
                    let case = format!("{rule:?} {clip:?} {served:?} {replicas} x {accumulate}");
                    assert!(close(&losses, &wanted.0), "{case}: {losses:?} {:?}", wanted.0);
                    for (name, wanted) in EVERY.iter().zip(&wanted.1) {
                        let copy = store.get(name).map(|value| value.to_f64());
                        let got = servers.values(name, 0).or_else(|| copy.clone()).unwrap();
                        assert!(close(&got, wanted), "{case}, {name}");
                        let gone = served.contains(name) && ["table", "out"].contains(name);
                        assert_eq!(copy.is_none(), gone, "{case}: a served table is not in the store");
                    }
                }
            }
        }
    }
}

/// One table for words and for candidates that all samples share: its gradient has rows of the batch and a fixed number more.
#[test]
fn a_table_that_samples_and_candidates_share_learns_from_both() {
    for rule in [Rule::Sgd, Rule::Adagrad { epsilon: 1e-6 }, Rule::adam()] {
        let made = |sparse: bool| {
            let mut b = Builder::new();
            let a = b.feed("a", DType::I64, [BATCH, Dim::Fixed(3)]).unwrap();
            let label = b.feed("label", DType::I64, [BATCH]).unwrap();
            let candidates = b.feed("candidates", DType::I64, [5]).unwrap();
            let options = EmbeddingOptions { sparse, padding: None };
            let table = b.parameter("table", [20, 4], Init::Normal { mean: 0.0, std: 0.5 }).unwrap();
            let x = b.lookup(table, a, options).unwrap();
            let x = b.reduce(Reduction::Sum, x, &[1], false).unwrap();
            let w = b.lookup(table, candidates, options).unwrap();
            let w = b.transpose(w, &[1, 0]).unwrap();
            let scores = b.matmul(x, w, false, false).unwrap();
            let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
            let loss = b.mean(losses).unwrap();
            let loss = b.named(loss, "loss").unwrap();
            let mut program = b.finish().unwrap();
            Optimizer::new(rule, 0.01).minimize(&mut program, loss).unwrap();
            program
        };
        let table = |program: &Program, setup: Setup| {
            let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
            let mut store = Store::new(9);
            for at in 0..20 {
                step(&mut exe, &mut store, &batch(6, at));
            }
            store.get("table").map(|table| table.to_f64())
        };
        let program = made(true);
        let rows = table(&program, on(1)).unwrap();
        if !matches!(rule, Rule::Adam { .. }) {
            // Adam's rule for rows is lazy: a dense gradient moves all of them.
            assert!(close(&rows, &table(&made(false), on(1)).unwrap()), "{rule:?}");
        }
        let names = vec!["table".to_string()];
        for replicas in [1, 2] {
            let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
            let build = BuildStrategy { served: names.clone(), ..BuildStrategy::default() };
            let setup = Setup { build, served: Some(servers.clone()), ..on(replicas) };
            assert_eq!(table(&program, setup), None, "a served table is not in the store");
            assert!(close(&servers.values("table", 0).unwrap(), &rows), "{rule:?} {replicas}");
        }
        let gathered = ParallelExecutor::new(&program, Some("loss"), on(2)).unwrap_err().to_string();
        assert!(gathered.contains("has 3*batch+5 rows, which are not a multiple of the batch"), "{gathered}");
    }
}

#[test]
fn replicas_ask_together_and_push_behind_the_gate() {
    let program = words(&Optimizer::new(Rule::Sgd, 0.1));
    let names = ["table".to_string()];
    let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
    let build = BuildStrategy { served: names.to_vec(), ..BuildStrategy::default() };
    // `out` has a fixed number of rows: it is gathered for one replica only.
    let setup = Setup { build, served: Some(servers), ..on(1) };
    let exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let nodes = &exe.graph().nodes;
    let at = |is: fn(&NodeKind) -> bool| nodes.iter().position(|node| is(&node.kind)).unwrap();
    let pulls = nodes.iter().filter(|node| matches!(node.kind, NodeKind::Pull { .. }));
    assert_eq!(pulls.count(), 1);
    assert!(at(|kind| *kind == NodeKind::Gate) < at(|kind| matches!(kind, NodeKind::Push { .. })), "PARA-2");
    assert!(exe.graph().to_json().contains("\"title\":\"pull table\""));
}

#[test]
fn a_number_that_is_no_row_is_named_and_nothing_is_pushed() {
    let program = words(&Optimizer::new(Rule::Sgd, 0.1));
    let names = ["table".to_string(), "out".to_string()];
    let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
    let build = BuildStrategy { served: names.to_vec(), ..BuildStrategy::default() };
    let setup = Setup { build, served: Some(servers.clone()), ..on(3) };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let mut store = Store::new(9);
    let before = servers.values("table", 0);
    let [_, label, candidates] = batch(6, 0);
    let mut ids = vec![1i64; 18];
    ids[16] = 20;
    let bad = Tensor::new(&[6, 3], &ids).unwrap();
    let feeds = [
        ("a", Feed::Split(&bad)),
        ("label", Feed::Split(&label)),
        ("candidates", Feed::Replicate(&candidates)),
    ];
    let error = exe.run(&mut store, &feeds, &[]).unwrap_err().to_string();
    assert!(error.contains("in replica 2") && error.contains("pull_rows"), "{error}");
    assert!(error.contains("element 4: 20 is not in 0..20"), "{error}");
    assert_eq!(servers.values("table", 0), before);
    assert!(step(&mut exe, &mut store, &batch(6, 0)).is_finite());
    assert_ne!(servers.values("table", 0), before);
}

/// Servers that are lost.
#[derive(Debug)]
struct Lost;

impl Served for Lost {
    fn pull(&self, _: &str, _: Vec<i64>, done: Done) {
        std::thread::spawn(move || {
            done(Err(CollectiveError::Failed { call: "a pull".into(), why: "rank 3 is lost".into() }));
        });
    }

    // Nobody is told: the callback is just dropped.
    fn push(&self, _: &str, _: PushedRows, _: Done) {}

    fn squares(&self, _: &[String], _: Done) {}

    fn release(&self, _: &str, _: f64, _: Done) {}

    fn abort(&self, _: &str) {}
}

/// DESK-1
#[test]
fn lost_servers_end_a_run_with_their_reason() {
    let program = words(&Optimizer::new(Rule::Sgd, 0.1));
    for (served, wanted) in [("table", "rank 3 is lost"), ("fc.w", "it was lost")] {
        for replicas in [1, 3] {
            let names = match served {
                "table" => vec!["table".to_string(), "out".to_string()],
                _ => vec!["fc.w".to_string(), "out".to_string()],
            };
            let build = BuildStrategy { served: names, ..BuildStrategy::default() };
            let setup = Setup { build, served: Some(Arc::new(Lost)), ..on(replicas) };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            let [a, label, candidates] = batch(6, 0);
            let feeds = [
                ("a", Feed::Split(&a)),
                ("label", Feed::Split(&label)),
                ("candidates", Feed::Replicate(&candidates)),
            ];
            let error = exe.run(&mut Store::new(9), &feeds, &[]).unwrap_err().to_string();
            assert!(error.contains("is lost") || error.contains(wanted), "{error}");
        }
    }
}

/// Servers whose first push takes until another one has begun, or, where none may begin, a moment.
#[derive(Debug)]
struct Slow {
    own: LocalServed,
    begun: Mutex<Vec<String>>,
    news: Condvar,
}

impl Served for Slow {
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done) {
        self.own.pull(table, ids, done);
    }

    fn push(&self, table: &str, rows: PushedRows, done: Done) {
        let mut begun = self.begun.lock().unwrap();
        begun.push(table.to_string());
        self.news.notify_all();
        if begun.len() == 1 {
            let at_most = Duration::from_millis(300);
            let (begun, _) = self.news.wait_timeout_while(begun, at_most, |all| all.len() < 2).unwrap();
            assert_eq!(begun.len(), 1, "SERVING-1: another thread pushes meanwhile: {begun:?}");
        } else {
            drop(begun);
        }
        self.own.push(table, rows, done);
    }

    fn squares(&self, tables: &[String], done: Done) {
        self.begun.lock().unwrap().push(format!("squares {}", tables.join(" ")));
        self.own.squares(tables, done);
    }

    fn release(&self, table: &str, factor: f64, done: Done) {
        self.begun.lock().unwrap().push(format!("release {table}"));
        self.own.release(table, factor, done);
    }

    fn abort(&self, _: &str) {}
}

/// SERVING-1
#[test]
fn pushes_follow_the_program_however_many_threads_are_idle() {
    let program = words(&Optimizer::new(Rule::Sgd, 0.1));
    let names = EVERY.map(str::to_string).to_vec();
    let own = LocalServed::new(&serve(&program, &names).unwrap().1, 9);
    let slow = Arc::new(Slow { own, begun: Mutex::default(), news: Condvar::new() });
    let build = BuildStrategy { served: names, ..BuildStrategy::default() };
    let exec = ExecutionStrategy { num_threads: 3, ..ExecutionStrategy::default() };
    let setup = Setup { build, exec, served: Some(slow.clone()), ..on(1) };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let pushed = |kind: &NodeKind| match kind {
        NodeKind::Push { op } => Some(op.index()),
        _ => None,
    };
    let order: Vec<usize> = exe.graph().nodes.iter().filter_map(|node| pushed(&node.kind)).collect();
    assert_eq!(order.len(), EVERY.len());
    assert!(step(&mut exe, &mut Store::new(9), &batch(6, 0)).is_finite());
    let begun = slow.begun.lock().unwrap().clone();
    let titles = exe.graph().to_json();
    let place = |name: &String| titles.find(&format!("\"title\":\"push {name}\"")).unwrap();
    assert!(begun.windows(2).all(|pair| place(&pair[0]) < place(&pair[1])), "{begun:?} in {titles}");
}

/// Two norms: of a table and a layer, and of the other table and the layer's shift; nothing else is clipped.
fn grouped(limits: [Option<f64>; 2]) -> Program {
    let (mut program, loss) = network();
    let pairs = append_backward_of(&mut program, loss, Chosen::default()).unwrap();
    for (group, limit) in [["fc.w", "table"], ["out", "fc.b"]].iter().zip(limits) {
        let of_group = |(p, _): &&(VarId, VarId)| group.contains(&program.var(*p).name.as_str());
        let own: Vec<_> = pairs.iter().filter(of_group).copied().collect();
        let clip = limit.map(Clip::GlobalNorm);
        let optimizer = Optimizer { clip, ..Optimizer::new(Rule::Adagrad { epsilon: 1e-6 }, 0.05) };
        optimizer.apply(&mut program, &own).unwrap();
    }
    program
}

#[test]
fn each_group_of_gradients_has_its_own_norm_wherever_they_are() {
    let free = alone(&grouped([None, None]));
    for limits in [[Some(0.05), Some(0.02)], [Some(0.05), None]] {
        let program = grouped(limits);
        let wanted = alone(&program);
        assert!(!close(&wanted.1[3], &free.1[3]), "the limit acts");
        for served in [&["table"][..], &["table", "out"], &["out", "fc.w"], &["fc.b"], &EVERY] {
            let names: Vec<String> = served.iter().map(|name| name.to_string()).collect();
            // What is left of a table with a fixed number of rows is for one replica.
            for replicas in if served.contains(&"out") { 1..=3 } else { 1..=1 } {
                let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
                let build = BuildStrategy { served: names.clone(), ..BuildStrategy::default() };
                let setup = Setup { build, served: Some(servers.clone()), ..on(replicas) };
                let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
                let mut store = Store::new(9);
                for at in 0..20 {
                    step(&mut exe, &mut store, &batch(14, at));
                }
                for (name, wanted) in EVERY.iter().zip(&wanted.1) {
                    let copy = || store.get(name).unwrap().to_f64();
                    let got = servers.values(name, 0).unwrap_or_else(copy);
                    assert!(close(&got, wanted), "{limits:?} {served:?} {replicas}, {name}");
                }
            }
        }
    }
}

/// A counter that network and update both write keeps the replicas from sharing one update: each needs the norm in its own memory.
#[test]
fn replicas_that_update_by_themselves_all_have_the_norm() {
    let (mut program, loss) = network();
    let site = program.var(loss).site.clone();
    let seen = program.scalar_state("seen", DType::I64, 0.0, site.clone()).unwrap();
    program.append_to(Increment { by: 1 }, &[seen], &[seen], Role::Forward, site.clone()).unwrap();
    let optimizer = Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..Optimizer::new(Rule::Sgd, 0.1) };
    optimizer.minimize(&mut program, loss).unwrap();
    program.append_to(Increment { by: 1 }, &[seen], &[seen], Role::Optimize, site).unwrap();
    let wanted = alone(&program);
    let names = ["table", "out"].map(str::to_string).to_vec();
    for replicas in [2, 3] {
        let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
        let build = BuildStrategy { served: names.clone(), ..BuildStrategy::default() };
        let setup = Setup { build, served: Some(servers.clone()), ..on(replicas) };
        let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
        let mut store = Store::new(9);
        for at in 0..20 {
            step(&mut exe, &mut store, &batch(14, at));
        }
        for (name, wanted) in EVERY.iter().zip(&wanted.1) {
            for replica in 0..replicas {
                let copy = || store.get_copy(name, replica).unwrap().to_f64();
                let got = servers.values(name, 0).unwrap_or_else(copy);
                assert!(close(&got, wanted), "{replicas} replicas, {name} of {replica}");
            }
        }
    }
}

/// SERVING-1, PARA-2: everything of a norm is pushed before its squares are asked for, and waits until they are there.
#[test]
fn gradients_wait_on_servers_until_their_norm_is_known() {
    let global = Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..Optimizer::new(Rule::Sgd, 0.1) };
    let program = words(&global);
    let names = EVERY.map(str::to_string).to_vec();
    let own = LocalServed::new(&serve(&program, &names).unwrap().1, 9);
    let slow = Arc::new(Slow { own, begun: Mutex::default(), news: Condvar::new() });
    let build = BuildStrategy { served: names.clone(), ..BuildStrategy::default() };
    let exec = ExecutionStrategy { num_threads: 3, ..ExecutionStrategy::default() };
    let setup = Setup { build, exec, served: Some(slow.clone()), ..on(1) };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let nodes = &exe.graph().nodes;
    let at = |is: fn(&NodeKind) -> bool| nodes.iter().position(|node| is(&node.kind)).unwrap();
    let gate = at(|kind| *kind == NodeKind::Gate);
    assert!(gate < at(|kind| matches!(kind, NodeKind::Push { .. })), "PARA-2");
    assert!(step(&mut exe, &mut Store::new(9), &batch(6, 0)).is_finite());
    let begun = slow.begun.lock().unwrap().clone();
    let (pushes, rest) = begun.split_at(EVERY.len());
    let mut pushed: Vec<&str> = pushes.iter().map(String::as_str).collect();
    pushed.sort_unstable();
    assert_eq!(pushed, EVERY, "{begun:?}");
    assert_eq!(rest[0], format!("squares {}", names.join(" ")), "{begun:?}");
    assert_eq!(rest.len(), 1 + EVERY.len(), "{begun:?}");
    assert!(rest[1..].iter().all(|call| call.starts_with("release ")), "{begun:?}");
    let title = exe.graph().to_json();
    assert!(title.contains("\"title\":\"squares") && title.contains("\"kind\":\"serve\""), "{title}");
}

/// A batch that fails in the network leaves nothing on the servers that waits; the next steps learn what they would have learned.
#[test]
fn a_failed_run_leaves_no_gradient_waiting() {
    let global = Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..Optimizer::new(Rule::Sgd, 0.1) };
    let program = words(&global);
    let wanted = alone(&program);
    let names = EVERY.map(str::to_string).to_vec();
    let servers = Arc::new(LocalServed::new(&serve(&program, &names).unwrap().1, 9));
    let build = BuildStrategy { served: names, ..BuildStrategy::default() };
    let setup = Setup { build, served: Some(servers.clone()), ..on(2) };
    let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
    let mut store = Store::new(9);
    for at in 0..20 {
        if at % 7 == 3 {
            let before = EVERY.map(|name| servers.values(name, 0));
            let [_, label, candidates] = batch(14, at);
            let bad = Tensor::new(&[14, 3], &[20i64; 42]).unwrap();
            let feeds = [
                ("a", Feed::Split(&bad)),
                ("label", Feed::Split(&label)),
                ("candidates", Feed::Replicate(&candidates)),
            ];
            assert!(exe.run(&mut store, &feeds, &[]).is_err());
            assert_eq!(EVERY.map(|name| servers.values(name, 0)), before, "PARA-2");
        }
        step(&mut exe, &mut store, &batch(14, at));
    }
    for (name, wanted) in EVERY.iter().zip(&wanted.1) {
        assert!(close(&servers.values(name, 0).unwrap(), wanted), "{name}");
    }
}

/// Pushes go, and what comes after them is lost.
#[derive(Debug)]
struct Halved {
    own: LocalServed,
    /// Whether squares are told.
    tells: bool,
    aborted: Mutex<Vec<String>>,
}

impl Served for Halved {
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done) {
        self.own.pull(table, ids, done);
    }

    fn push(&self, table: &str, rows: PushedRows, done: Done) {
        self.own.push(table, rows, done);
    }

    fn squares(&self, tables: &[String], done: Done) {
        if self.tells {
            self.own.squares(tables, done);
        }
    }

    fn release(&self, _: &str, _: f64, done: Done) {
        done(Err(CollectiveError::Failed { call: "a factor".into(), why: "rank 3 is lost".into() }));
    }

    fn abort(&self, why: &str) {
        self.aborted.lock().unwrap().push(why.to_string());
    }
}

/// DESK-1: a norm or a factor that is lost ends the run with its reason.
#[test]
fn a_norm_that_is_lost_ends_a_run() {
    let global = Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..Optimizer::new(Rule::Sgd, 0.1) };
    let program = words(&global);
    let names = EVERY.map(str::to_string).to_vec();
    for (tells, wanted) in [(false, "it was lost"), (true, "rank 3 is lost")] {
        for replicas in [1, 2] {
            let own = LocalServed::new(&serve(&program, &names).unwrap().1, 9);
            let halved = Arc::new(Halved { own, tells, aborted: Mutex::default() });
            let build = BuildStrategy { served: names.clone(), ..BuildStrategy::default() };
            let setup = Setup { build, served: Some(halved.clone()), ..on(replicas) };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            let [a, label, candidates] = batch(6, 0);
            let feeds = [
                ("a", Feed::Split(&a)),
                ("label", Feed::Split(&label)),
                ("candidates", Feed::Replicate(&candidates)),
            ];
            let error = exe.run(&mut Store::new(9), &feeds, &[]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            // What waits on servers would stop the next step.
            assert_eq!(*halved.aborted.lock().unwrap(), [error]);
        }
    }
}

/// SERVED-1: of a norm, only what is clear is served.
#[test]
fn a_rate_that_is_written_behind_the_norm_is_refused() {
    let clip = Some(Clip::GlobalNorm(0.05));
    let kept = Optimizer { clip, is_rate_kept: true, ..Optimizer::new(Rule::Sgd, 0.1) };
    let mut program = words(&kept);
    assert_eq!(servable(&program, "table").unwrap().clip, ServedClip::Factor);
    let (rate, site) =
        (program.find("learning_rate").unwrap(), program.var(program.find("loss").unwrap()).site.clone());
    let halved = Unary(Func::Scale { a: 0.5, b: 0.0 });
    program.append_to(halved, &[rate], &[rate], Role::LrSched, site).unwrap();
    let why = servable(&program, "table").unwrap_err();
    assert!(matches!(why, Unserved::LateRate { op: "scale", .. }), "{why}");
    assert!(why.to_string().contains("write the rate before gradients are clipped"), "{why}");
}

/// SERVED-1
#[test]
fn what_servers_cannot_do_is_refused_with_the_reason() {
    let plain = words(&Optimizer::new(Rule::Sgd, 0.1));
    let of = |program: &Program, build: BuildStrategy, served: Option<Arc<dyn Served>>, replicas| {
        let setup = Setup { build, served, ..on(replicas) };
        ParallelExecutor::new(program, Some("loss"), setup).unwrap_err()
    };
    let build = |name: &str| BuildStrategy { served: vec![name.into()], ..BuildStrategy::default() };
    let lost: Arc<dyn Served> = Arc::new(Lost);
    assert_eq!(of(&plain, build("table"), None, 1), BuildError::NoServers { var: "table".into() });
    let apart = BuildStrategy { reduce_strategy: ReduceStrategy::NoReduce, ..build("table") };
    assert_eq!(of(&plain, apart, Some(lost.clone()), 2), BuildError::ServedAlone);
    let unknown = of(&plain, build("tabel"), Some(lost.clone()), 1);
    assert_eq!(unknown, BuildError::Unserved { var: "tabel".into(), why: Unserved::Unknown });
    let lars = Rule::Lars { mu: 0.9, coefficient: 0.001, decay: 0.0 };
    let fails = servable(&words(&Optimizer::new(Rule::Sgd, 0.1)), "fc.q");
    assert_eq!(fails, Err(Unserved::Unknown));
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
    let table = b.parameter("table", [8, 4], Init::Xavier).unwrap();
    let x = b.lookup(table, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
    let back = b.transpose(table, &[1, 0]).unwrap();
    let scores = b.matmul(x, back, false, false).unwrap();
    let loss = b.mean(scores).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let forward = b.finish().unwrap();
    let mut both = forward.clone();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut both, loss).unwrap();
    // Used both ways: its gradient is dense, so it can be served as a whole, and its rows cannot.
    assert!(!servable(&both, "table").unwrap().sparse);
    assert_eq!(servable(&forward, "table"), Err(Unserved::NotLearned));
    let mut program = forward;
    Optimizer::new(lars, 0.1).minimize(&mut program, loss).unwrap();
    assert_eq!(servable(&program, "table"), Err(Unserved::Lars));
}

/// STORE-4.
#[test]
fn a_store_has_not_what_servers_have_until_it_is_taken_from_them() {
    let program = words(&Optimizer::new(Rule::Sgd, 0.1));
    let mut store = Store::new(1);
    store.admit(&program).unwrap();
    let (away, copied) = ("table", "fc.w");
    let [table, weight] = [away, copied].map(|name| store.get(name).unwrap());
    store.leave_to_servers(away, false).unwrap();
    store.leave_to_servers(copied, true).unwrap();
    assert!(store.bytes_of(away) == 0 && store.get(away).is_none() && store.get_copy(away, 0).is_none());
    assert_eq!(store.get(copied).unwrap().bytes(), weight.bytes(), "a copy is read");
    for (name, value) in [(away, &table), (copied, &weight)] {
        let refused = store.set(name, value).unwrap_err();
        assert!(matches!(&refused, RunError::OnServers { var } if var == name), "{refused}");
        assert!(store.write_at(name, 0, &[0; 4]).is_err());
    }
    assert!(matches!(store.admit(&program), Err(RunError::OnServers { .. })), "another program wants it");
    for (name, value) in [(away, &table), (copied, &weight)] {
        store.take_from_servers(name, value).unwrap();
        store.set(name, value).unwrap();
    }
    assert_eq!(store.get(away).unwrap().bytes(), table.bytes());
    store.admit(&program).unwrap();
}
