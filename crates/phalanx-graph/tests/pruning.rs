//! PRUNE-1, PRUNE-2: programs of which only some results are wanted.

use crate::models;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Clip, Dim, Executor, Feed, Fetch, Optimizer, Options, ParallelExecutor, Program,
    ReduceStrategy, Role, Rule, RunError, Schedule, Setup, Store, Tensor, VarId, VarKind,
    layers::BatchNormOptions,
    op::{Func, Increment, Unary},
};
use std::collections::BTreeMap;

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &mut Store) -> Contents {
    let names: Vec<String> = store.names().map(str::to_string).collect();
    names.into_iter().map(|n| (n.clone(), store.get(&n).unwrap().bytes().to_vec())).collect()
}

fn borrowed<'a>(feeds: &'a [(&'static str, Tensor)]) -> Vec<(&'a str, &'a Tensor)> {
    feeds.iter().map(|(name, value)| (*name, value)).collect()
}

fn names(program: &Program, of: impl Fn(&VarKind) -> bool) -> Vec<String> {
    program.vars().filter(|(_, v)| of(&v.kind)).map(|(_, v)| v.name.clone()).collect()
}

/// Two branches: one with a label and a loss, one that is only to look at and has a feed and a parameter of its own.
fn branches(optimizer: &Optimizer) -> (Program, VarId) {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(5)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let other = b.feed("other", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let h = b.fc(x, 8, Act::Tanh).unwrap();
    let h = b.batch_norm(h, BatchNormOptions::default()).unwrap();
    let h = b.dropout(h, 0.25).unwrap();
    let scores = b.fc(h, 4, Act::None).unwrap();
    b.named(scores, "scores").unwrap();
    let aside = b.fc(other, 2, Act::None).unwrap();
    b.named(aside, "aside").unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    optimizer.minimize(&mut program, loss).unwrap();
    program.verify().unwrap();
    (program, loss)
}

fn data(step: usize) -> [Tensor; 3] {
    let x: Vec<f32> = (0..6 * 5).map(|i| ((i + 31 * step) as f32 * 0.7).sin()).collect();
    let other: Vec<f32> = (0..6 * 3).map(|i| i as f32).collect();
    let label: Vec<i64> = (0..6).map(|i| (i + step as i64) % 4).collect();
    [
        Tensor::new(&[6, 5], &x).unwrap(),
        Tensor::new(&[6], &label).unwrap(),
        Tensor::new(&[6, 3], &other).unwrap(),
    ]
}

fn momentum() -> Optimizer {
    let rule = Rule::Momentum { mu: 0.9, nesterov: false };
    Optimizer { clip: Some(Clip::GlobalNorm(0.5)), decay: Some(0.01), ..Optimizer::new(rule, 0.1) }
}

#[test]
fn the_loss_alone_needs_no_backward_no_update_and_changes_no_weight() {
    let (program, loss) = branches(&momentum());
    let pruned = program.pruned(&[loss]);
    pruned.verify().unwrap();
    assert!(pruned.ops().all(|(_, op)| op.role == Role::Forward), "PRUNE-2: {pruned}");
    assert_eq!(names(&pruned, |k| *k == VarKind::Feed), ["x", "label"], "`other` need not be fed");
    let kept = names(&pruned, |k| matches!(k, VarKind::Parameter(_)));
    assert_eq!(kept, ["fc.w", "fc.b", "bn.scale", "bn.shift", "fc.w.1", "fc.b.1"]);
    assert!(pruned.find("fc.w@GRAD").is_none() && pruned.find("fc.w.velocity").is_none());

    let mut whole = Executor::new(program, Options::default()).unwrap();
    let mut part = Executor::new(pruned, Options::default()).unwrap();
    let (mut store, mut untouched) = (Store::new(3), Store::new(3));
    let [x, label, other] = data(0);
    let all = [("x", &x), ("label", &label), ("other", &other)];
    let wanted = whole.run(&mut store, &all, &["loss"]).unwrap();
    part.prepare(&mut untouched).unwrap();
    let before = contents(&mut untouched);
    let got = part.run(&mut untouched, &all[..2], &["loss"]).unwrap();
    assert_eq!(got, wanted, "PRUNE-1: dropout included");
    let after = contents(&mut untouched);
    for name in kept {
        assert_eq!(before[&name], after[&name], "{name} stays");
        assert_ne!(contents(&mut store)[&name], after[&name], "{name} is learned by the whole program");
    }
    // What is left of it says so, too.
    let error = part.run(&mut untouched, &all, &["loss"]).unwrap_err();
    assert!(matches!(&error, RunError::UnknownFeed { var } if var == "other"), "{error}");
    let error = part.run(&mut untouched, &all[..1], &["loss"]).unwrap_err();
    assert!(matches!(&error, RunError::Missing { var, .. } if var == "label"), "{error}");
}

#[test]
fn the_loss_and_all_parameters_are_those_of_the_whole_program_to_the_bit() {
    for model in models::all() {
        let built = (model.build)(DType::F32).unwrap();
        let mut program = built.program;
        model.optimizer.minimize_with(&mut program, built.loss, &built.checkpoints).unwrap();
        let mut targets = program.trainable();
        targets.push(built.loss);
        let pruned = program.pruned(&targets);
        pruned.verify().unwrap();
        let mut whole = Executor::new(program, Options::default()).unwrap();
        let mut part = Executor::new(pruned, Options::default()).unwrap();
        let (mut one, mut other) = (Store::new(3), Store::new(3));
        for step in 0..4 {
            let feeds = (model.data)(DType::F32, 9, step);
            let wanted = whole.run(&mut one, &borrowed(&feeds), &["loss"]).unwrap();
            let got = part.run(&mut other, &borrowed(&feeds), &["loss"]).unwrap();
            assert_eq!(got, wanted, "PRUNE-1: {}, step {step}", model.name);
        }
        assert_eq!(contents(&mut one), contents(&mut other), "PRUNE-1: {}", model.name);
    }
}

#[test]
fn several_replicas_run_what_is_left_with_the_same_bits() {
    let (program, loss) = branches(&momentum());
    let mut targets = program.trainable();
    targets.push(loss);
    let pruned = program.pruned(&targets);
    for reduce in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let run = |program: &Program, with_other: bool| {
            let mut setup = Setup { replicas: Some(3), ..Setup::default() };
            setup.build.reduce_strategy = reduce;
            let mut exe = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
            let mut store = Store::new(8);
            let losses: Vec<Vec<f64>> = (0..4)
                .map(|step| {
                    let [x, label, other] = data(step);
                    let mut feeds = vec![("x", Feed::Split(&x)), ("label", Feed::Split(&label))];
                    if with_other {
                        feeds.push(("other", Feed::Split(&other)));
                    }
                    exe.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap()[0].one().to_f64()
                })
                .collect();
            let learned = ["fc.w", "fc.w.1", "bn.scale"].map(|n| store.get(n).unwrap());
            (losses, learned)
        };
        assert_eq!(run(&pruned, false), run(&program, true), "PRUNE-1: {reduce:?}");
        let forward = program.pruned(&[loss]);
        let (losses, learned) = run(&forward, false);
        assert_eq!(losses[0], run(&program, true).0[0], "the first step sees the same parameters");
        assert_ne!(learned[0], run(&program, true).1[0]);
    }
}

#[test]
fn one_wanted_parameter_is_the_only_one_that_is_learned() {
    let rate = Schedule::Exponential { rate: 0.2, decay: 0.5, every: 1.0, stairs: false };
    let (program, _) = branches(&Optimizer { rate, ..momentum() });
    let target = program.find("fc.w").unwrap();
    let pruned = program.pruned(&[target]);
    pruned.verify().unwrap();
    let changed: Vec<&str> = pruned
        .ops()
        .filter(|(_, op)| op.role == Role::Optimize)
        .flat_map(|(_, op)| &op.outputs)
        .map(|&id| pruned.var(id))
        .filter(|v| v.is_persistable())
        .map(|v| v.name.as_str())
        .collect();
    assert_eq!(
        changed,
        ["fc.w", "fc.w.velocity"],
        "PRUNE-2: the norm of all gradients is needed, not their updates"
    );
    let mut whole = Executor::new(program, Options::default()).unwrap();
    let mut part = Executor::new(pruned, Options::default()).unwrap();
    let (mut one, mut other) = (Store::new(3), Store::new(3));
    let [x, label, aside] = data(0);
    whole.run(&mut one, &[("x", &x), ("label", &label), ("other", &aside)], &[]).unwrap();
    part.run(&mut other, &[("x", &x), ("label", &label)], &[]).unwrap();
    assert_eq!(one.get("fc.w"), other.get("fc.w"), "PRUNE-1");
    assert_ne!(one.get("fc.w.1"), other.get("fc.w.1"));
}

#[test]
fn what_the_user_appends_to_an_update_stays_with_it_and_counters_behind_it_go_on() {
    let (mut program, loss) = branches(&Optimizer::new(Rule::adam(), 0.05));
    let (p, site) = (program.find("fc.w").unwrap(), program.var(loss).site.clone());
    // Decay by hand, and a factor for it that another operation moves on after everything else.
    let scale = Unary(Func::Scale { a: 0.9, b: 0.0 });
    let factor = program.scalar_state("factor", DType::F32, 0.99, site.clone()).unwrap();
    let arith = phalanx_graph::op::Binary { op: phalanx_graph::op::Arith::Mul, axis: 0 };
    program.append_to(arith, &[p, factor], &[p], Role::Optimize, site.clone()).unwrap();
    program.append_to(scale, &[factor], &[factor], Role::Optimize, site.clone()).unwrap();
    // Nobody who wants the parameter needs this one.
    let seen = program.scalar_state("seen", DType::I64, 0.0, site.clone()).unwrap();
    program.append_to(Increment { by: 1 }, &[seen], &[seen], Role::Optimize, site).unwrap();
    program.verify().unwrap();
    let mut targets = program.trainable();
    targets.push(loss);
    let pruned = program.pruned(&targets);
    assert!(pruned.find("seen").is_none(), "PRUNE-2");
    let mut whole = Executor::new(program, Options::default()).unwrap();
    let mut part = Executor::new(pruned, Options::default()).unwrap();
    let (mut one, mut other) = (Store::new(3), Store::new(3));
    for step in 0..4 {
        let [x, label, aside] = data(step);
        let wanted =
            whole.run(&mut one, &[("x", &x), ("label", &label), ("other", &aside)], &["loss"]).unwrap();
        let got = part.run(&mut other, &[("x", &x), ("label", &label)], &["loss"]).unwrap();
        assert_eq!(got, wanted, "PRUNE-1: step {step}");
    }
    assert_eq!(one.get("fc.w"), other.get("fc.w"), "PRUNE-1");
    assert_eq!(one.get("factor"), other.get("factor"), "PRUNE-2");
}

#[test]
fn nothing_wanted_is_nothing_and_a_feed_or_a_gradient_can_be_wanted() {
    let (program, loss) = branches(&momentum());
    let nothing = program.pruned(&[]);
    assert_eq!((nothing.vars().count(), nothing.ops().count()), (0, 0));
    let other = program.pruned(&[program.find("other").unwrap()]);
    assert_eq!(names(&other, |_| true), ["other"]);
    let grad = program.grad(program.find("fc.w").unwrap()).unwrap();
    let gradient = program.pruned(&[grad]);
    gradient.verify().unwrap();
    assert!(gradient.ops().all(|(_, op)| !matches!(op.role, Role::Optimize | Role::LrSched)));
    assert_eq!(
        gradient.find("fc.w@GRAD").map(|id| gradient.var(id).name.clone()),
        Some(program.var(grad).name.clone())
    );
    // Twice, or all at once, is the same as once.
    let again = program.pruned(&[loss]).pruned(&[program.pruned(&[loss]).find("loss").unwrap()]);
    assert_eq!(again, program.pruned(&[loss]));
    let everything: Vec<VarId> = program.vars().map(|(id, _)| id).collect();
    assert_eq!(program.pruned(&everything), program, "PRUNE-2");
}
