//! Several executors in threads of their own are several processes: SUM-1, SSA-3.

use super::models::{adam, assert_same, bits, digits, network, on, train};
use crate::threads::Threads;
use phalanx_graph::{
    BuildStrategy, Collective, CollectiveError, ExecutionStrategy, Feed, Fetch, GradientScale,
    ParallelExecutor, Program, ReduceStrategy, Role, RunError, Setup, Store, Tensor,
    exec::{Data, Done, Offer},
    graph::{Node, NodeKind},
    op::{Func, Unary},
};
use std::sync::Arc;

pub fn part(t: &Tensor, from: usize, n: usize) -> Tensor {
    let width = t.dims()[1..].iter().product::<usize>();
    let mut dims = t.dims().to_vec();
    dims[0] = n;
    match t.data::<f32>() {
        Ok(data) => Tensor::new(&dims, &data[from * width..(from + n) * width]).unwrap(),
        Err(_) => Tensor::new(&dims, &t.data::<i64>().unwrap()[from * width..(from + n) * width]).unwrap(),
    }
}

/// Trains on several processes; `shares` gives each its samples.
fn together(
    program: &Program,
    build: &BuildStrategy,
    replicas: usize,
    shares: &[usize],
    steps: u64,
) -> Vec<(Vec<f32>, Store)> {
    let processes = Threads::new(shares.len());
    std::thread::scope(|scope| {
        let run = |at: usize, collective: Threads| {
            let setup = Setup { build: build.clone(), collective: Arc::new(collective), ..on(replicas) };
            let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
            // Only the first has the seed that counts.
            let mut store = Store::new(3 + 100 * at as u64);
            exe.prepare(&mut store).unwrap();
            let first = shares[..at].iter().sum();
            let losses = (0..steps).map(|step| {
                let (x, y) = digits(shares.iter().sum(), step);
                let (x, y) = (part(&x, first, shares[at]), part(&y, first, shares[at]));
                let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
                let out = exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
                out[0].one().data::<f32>().unwrap()[0]
            });
            let losses = losses.collect();
            exe.gather(&mut store).unwrap();
            (losses, store)
        };
        let threads: Vec<_> = processes
            .into_iter()
            .enumerate()
            .map(|(at, collective)| scope.spawn(move || run(at, collective)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn two_processes_of_two_replicas_give_the_bits_of_one_process_of_four() {
    let program = network(Some(&adam()), &[40, 30], false, 0.0);
    for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        for fuse_all_reduce_ops in [true, false] {
            let build = BuildStrategy { reduce_strategy, fuse_all_reduce_ops, ..BuildStrategy::default() };
            let (_, mut one) = train(&program, Setup { build: build.clone(), ..on(4) }, 6, 16);
            for (_, mut store) in together(&program, &build, 2, &[8, 8], 6) {
                assert_same(&mut one, &mut store, "SUM-1, SSA-3");
            }
            for (_, mut store) in together(&program, &build, 1, &[4, 4, 4, 4], 6) {
                assert_same(&mut one, &mut store, "four processes of one");
            }
        }
    }
}

#[test]
fn idle_replicas_of_other_processes_take_no_weight_either() {
    let sgd = phalanx_graph::Optimizer::new(phalanx_graph::Rule::Sgd, 0.1);
    let program = network(Some(&sgd), &[30], false, 0.0);
    let (_, mut one) = train(&program, on(1), 4, 2);
    let wanted = one.get("fc.w").unwrap().to_f64();
    let build = BuildStrategy { gradient_scale: GradientScale::CoeffNumDevice, ..BuildStrategy::default() };
    for shares in [[2, 0], [1, 1]] {
        for (_, mut store) in together(&program, &build, 2, &shares, 4) {
            let got = store.get("fc.w").unwrap().to_f64();
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
            assert!(got.iter().zip(&wanted).all(close), "{shares:?}");
        }
    }
}

#[test]
fn processes_with_unequal_shares_learn_what_one_does() {
    let program =
        network(Some(&phalanx_graph::Optimizer::new(phalanx_graph::Rule::Sgd, 0.1)), &[30], false, 0.3);
    let (_, mut one) = train(&program, on(1), 6, 13);
    let all = together(&program, &BuildStrategy::default(), 2, &[9, 0, 4], 6);
    let wanted = one.get("fc.w").unwrap().to_f64();
    for (losses, mut store) in all {
        let got = store.get("fc.w").unwrap().to_f64();
        assert!(got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(bits(&losses).len(), 6);
    }
}

#[test]
fn a_process_that_is_fed_wrongly_keeps_nobody_waiting_and_all_can_go_on() {
    let program = network(Some(&adam()), &[20], false, 0.0);
    let program = &program;
    let (_, mut wanted) = train(program, on(4), 3, 8);
    let processes = Threads::new(2);
    let stores: Vec<Store> = std::thread::scope(|scope| {
        let run = |at: usize, collective: Threads| {
            let setup = Setup { collective: Arc::new(collective), ..on(2) };
            let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
            let mut store = Store::new(3);
            for step in 0..3 {
                let (x, y) = digits(8, step);
                let (x, y) = (part(&x, 4 * at, 4), part(&y, 4 * at, 4));
                let (image, label) = (("image", Feed::Split(&x)), ("label", Feed::Split(&y)));
                let (x3, y3) = (part(&x, 0, 3), part(&y, 0, 3));
                let odd = [("image", Feed::Split(&x3)), ("label", Feed::Split(&y3))];
                let short = [image];
                let right = [image, label];
                let feeds = if at == 1 { &short[..] } else { &right[..] };
                // In one step what is wrong is a fetch: replicas have two samples each but one, so there is no mean.
                let (feeds, fetch) = match (at, step) {
                    (1, 1) => (&odd[..], vec![Fetch::mean("hidden")]),
                    _ => (feeds, Vec::new()),
                };
                let error = exe.run(&mut store, feeds, &fetch).unwrap_err();
                match at {
                    0 => {
                        let said = error.to_string();
                        assert!(matches!(error, RunError::Elsewhere { process: 1, .. }), "{said}");
                        let why = if step == 1 { "replicas have `hidden` in" } else { "`label` is not fed" };
                        assert!(said.contains(&format!("process 1 could not run: {why}")), "{said}");
                    }
                    _ if step == 1 => assert!(matches!(error, RunError::Unlike { .. }), "{error}"),
                    _ => assert!(matches!(error, RunError::Missing { .. }), "{error}"),
                }
                exe.run(&mut store, &right, &[]).unwrap();
            }
            store
        };
        let threads: Vec<_> =
            processes.into_iter().enumerate().map(|(at, c)| scope.spawn(move || run(at, c))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for mut store in stores {
        assert_same(&mut wanted, &mut store, "as if nothing had happened");
    }
}

#[test]
fn as_long_as_a_process_may_fail_the_others_do_not_update() {
    // PARA-2: what stands behind the last gradient, in program order, still comes before the last exchange.
    let mut program = network(Some(&adam()), &[20], false, 0.0);
    let (scores, site) = {
        let id = program.find("scores").unwrap();
        (id, program.var(id).site.clone())
    };
    program.append(Unary(Func::Log), &[scores], "late", Role::Forward, site).unwrap();
    for fuse_all_reduce_ops in [true, false] {
        let build = BuildStrategy { fuse_all_reduce_ops, ..BuildStrategy::default() };
        let collective = Arc::new(Threads::new(2).remove(0));
        let exe =
            ParallelExecutor::new(&program, Some("loss"), Setup { build, collective, ..on(2) }).unwrap();
        let graph = exe.graph();
        let leaves = |node: &Node| matches!(node.kind, NodeKind::Exchange { .. });
        let last = graph.nodes.iter().rposition(leaves).unwrap();
        assert_eq!(graph.nodes[last + 1].kind, NodeKind::Gate);
        assert_eq!(graph.nodes[last].after, (0..last).collect::<Vec<_>>());
        let late = |node: &Node| graph.title(node).starts_with("log");
        assert_eq!(graph.nodes[..last].iter().filter(|node| late(node)).count(), 2, "once for each replica");
    }
}

#[test]
fn a_process_that_fails_is_named_by_the_others() {
    let program = network(Some(&adam()), &[20], false, 0.0);
    // All stay until the end: nobody can ask one that is gone why it failed.
    let processes: Vec<Arc<Threads>> = Threads::new(2).into_iter().map(Arc::new).collect();
    let errors: Vec<RunError> = std::thread::scope(|scope| {
        let run = |at: usize, collective: Arc<Threads>| {
            let setup = Setup { collective, ..on(2) };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            let mut store = Store::new(0);
            exe.prepare(&mut store).unwrap();
            let before = store.get("fc.w");
            let (x, y) = digits(4, 0);
            let wrong = Tensor::new(&[4], &[0i64, 1, 99, 2]).unwrap();
            let label = if at == 1 { &wrong } else { &y };
            let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(label))];
            let error = exe.run(&mut store, &feeds, &[]).unwrap_err();
            assert_eq!(store.get("fc.w"), before, "PARA-2");
            error
        };
        let all = processes.iter().cloned().enumerate();
        let threads: Vec<_> = all.map(|(at, c)| scope.spawn(move || run(at, c))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(matches!(&errors[1], RunError::Replica { replica: 1, .. }), "{}", errors[1]);
    let RunError::Collective(CollectiveError::Aborted { process: 1, why }) = &errors[0] else {
        panic!("{}", errors[0])
    };
    assert!(why.contains("99 is not in 0..10"), "{why}");
}

/// Two processes, of which the other one agrees to everything and then either answers from a thread of its own or is gone.
#[derive(Debug)]
struct Other {
    is_gone: bool,
}

impl Collective for Other {
    fn processes(&self) -> usize {
        2
    }

    fn index(&self) -> usize {
        0
    }

    fn enroll(&self, label: &str) -> String {
        label.to_string()
    }

    fn start(&self, name: &str, offer: Offer, done: Done) {
        let back = match offer {
            Offer::Join(lists) => {
                let again = |data: Data| match data {
                    Data::I64(all) => Data::I64([all.clone(), all].concat()),
                    other => other,
                };
                lists.into_iter().map(again).collect()
            }
            Offer::Sum(_) if self.is_gone => return,
            Offer::Sum(data) | Offer::Broadcast { data, .. } => vec![data],
            Offer::Parts { .. } => panic!("{name}: it does not sum parts"),
            Offer::Nothing => panic!("{name}: nobody gives up"),
        };
        std::thread::spawn(move || done(Ok(back)));
    }
}

#[test]
fn exchanges_that_come_back_later_or_never_keep_no_worker_waiting() {
    // TRAVEL-1, with fewer and more workers than exchanges.
    let program = network(Some(&adam()), &[20, 20], false, 0.0);
    for num_threads in [1, 3] {
        for is_gone in [false, true] {
            let exec = ExecutionStrategy { num_threads, ..ExecutionStrategy::default() };
            let build = BuildStrategy { fuse_all_reduce_ops: false, ..BuildStrategy::default() };
            let setup = Setup { exec, build, collective: Arc::new(Other { is_gone }), ..on(2) };
            let mut exe = ParallelExecutor::new(&program, Some("loss"), setup).unwrap();
            let mut store = Store::new(0);
            let (x, y) = digits(4, 0);
            let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
            for _ in 0..3 {
                let ended = exe.run(&mut store, &feeds, &[]);
                let lost = matches!(ended, Err(RunError::Collective(CollectiveError::Failed { .. })));
                assert!(if is_gone { lost } else { ended.is_ok() }, "{ended:?}");
            }
        }
    }
}
