//! Two processes train one program, and one of them is killed or stopped in the middle of it: the other one is told who
//! is lost, and ends by itself (RANKS-3).

use crate::processes::{World, role, say};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Program, ReduceStrategy, Rule,
    RunError, Setup, Store, Tensor,
};
use phalanx_train::Ranks;
use rustix::process::Signal;
use std::sync::Arc;

/// A network that has something to send: a megabyte of gradients.
fn network() -> Program {
    let mut b = Builder::new();
    let mut build = || {
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(32)])?;
        let y = b.fc(x, 500, Act::Tanh)?;
        let y = b.fc(y, 500, Act::Tanh)?;
        let loss = b.mean(y)?;
        b.named(loss, "loss")
    };
    let loss = build().expect("the network is right");
    let mut program = b.finish().expect("the network is right");
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss).expect("it has gradients");
    program
}

/// What a rank is: it trains until somebody is lost. In the test's own process it is nothing.
#[test]
fn worker_entry() {
    let Some(role) = role() else { return };
    let ranks = Ranks::from_env().expect("the world forms");
    let mut setup = Setup { replicas: Some(2), collective: Arc::new(ranks), ..Setup::default() };
    setup.build.reduce_strategy =
        if role == "reduce" { ReduceStrategy::Reduce } else { ReduceStrategy::AllReduce };
    let mut exe = ParallelExecutor::new(&network(), Some("loss"), setup).expect("the setup is right");
    let mut store = Store::new(1);
    let x = Tensor::new(&[6, 32], &[0.5f32; 192]).expect("six samples");
    for step in 0.. {
        match exe.run(&mut store, &[("x", Feed::Split(&x))], &[Fetch::mean("loss")]) {
            Ok(_) => say(&format!("step {step}")),
            Err(error) => {
                let kind = match &error {
                    RunError::Collective(_) => "typed",
                    _ => "other",
                };
                // What was learned is still there.
                let is_whole = store.get("fc.w").is_some_and(|w| w.to_f64().iter().all(|v| v.is_finite()));
                say(&format!("error {kind} {is_whole} {error}"));
                return;
            }
        }
    }
}

fn survivor_is_told(hosts: [&str; 2], role: &str, victim: usize, signal: Signal, wanted: &[&str]) {
    let mut world = World::start("deaths::worker_entry", &hosts, role, None);
    let ranks = &mut world.ranks;
    for rank in ranks.iter() {
        rank.hear("step 5").expect("both train");
    }
    ranks[victim].signal(signal);
    let survivor = 1 - victim;
    let told = format!("{hosts:?}, {role}, rank {victim}, {signal:?}");
    let line = ranks[survivor].hear("error").unwrap_or_else(|| panic!("{told}: it ended without an error"));
    assert!(line.starts_with("error typed true "), "{told}: {line}");
    for wanted in wanted.iter().copied().chain([format!("rank {victim}").as_str()]) {
        assert!(line.contains(wanted), "{told}: no {wanted:?} in {line}");
    }
    assert_eq!(ranks[survivor].hear("anything"), None, "{told}: it says no more");
    let ended = ranks[survivor].end();
    assert!(ended.success(), "{told}: {ended}");
}

#[test]
fn a_killed_process_is_named_and_the_other_one_ends() {
    for (hosts, role, victim) in
        [(["a", "a"], "all-reduce", 1), (["a", "b"], "reduce", 1), (["a", "a"], "reduce", 0)]
    {
        survivor_is_told(hosts, role, victim, Signal::KILL, &["is lost"]);
    }
}

#[test]
fn a_stopped_process_is_named_and_the_other_one_ends() {
    for hosts in [["a", "a"], ["a", "b"]] {
        survivor_is_told(hosts, "all-reduce", 1, Signal::STOP, &["frozen"]);
    }
}
