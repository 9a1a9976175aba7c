//! Several losses in one program, and where gradients end: GRAD-5.

use phalanx_core::DType;
use phalanx_graph::{
    BATCH, BuildError, BuildStrategy, Builder, Chosen, Dim, Executor, Feed, Fetch, GradientScale, GraphError,
    Init, Optimizer, Options, ParallelExecutor, Program, Role, Rule, Setup, Store, Tensor, VarId, accumulate,
    append_backward, append_backward_of, recompute,
};

/// Two losses of one parameter whose gradients are 2 w and 6 w.
struct Two {
    program: Program,
    w: VarId,
    hidden: VarId,
    losses: [VarId; 2],
}

fn two() -> Two {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
    let w = b.parameter("w", [1], Init::Constant(0.5)).unwrap();
    let y = b.mul(x, w).unwrap();
    let hidden = b.mul(y, y).unwrap();
    let one = b.mean(hidden).unwrap();
    let one = b.named(one, "one").unwrap();
    let tripled = b.scale(hidden, 3.0, 0.0).unwrap();
    let three = b.mean(tripled).unwrap();
    let three = b.named(three, "three").unwrap();
    Two { program: b.finish().unwrap(), w, hidden, losses: [one, three] }
}

fn sgd(rate: f64) -> Optimizer {
    Optimizer::new(Rule::Sgd, rate)
}

fn ones() -> Tensor {
    Tensor::new(&[4, 1], &[1f32; 4]).unwrap()
}

fn learned(program: &Program) -> f64 {
    let mut store = Store::new(0);
    let mut exe = Executor::new(program.clone(), Options::default()).unwrap();
    exe.run(&mut store, &[("x", &ones())], &[]).unwrap();
    store.get("w").unwrap().to_f64()[0]
}

#[test]
fn each_loss_has_gradients_of_its_own_whatever_was_updated_before() {
    let Two { mut program, losses, .. } = two();
    sgd(0.1).minimize(&mut program, losses[0]).unwrap();
    sgd(0.01).minimize(&mut program, losses[1]).unwrap();
    program.verify().unwrap();
    let wanted = 0.5 - 0.1 * 1.0 - 0.01 * 3.0;
    assert!((learned(&program) - wanted).abs() < 1e-6, "{}", learned(&program));
    let roles: Vec<Role> = program.ops().map(|(_, op)| op.role).collect();
    let last_gradient = roles.iter().rposition(|r| *r == Role::Backward).unwrap();
    assert!(roles[..last_gradient].iter().all(|r| *r != Role::Optimize), "GRAD-5: {roles:?}");
    for (replicas, name) in [(1, "one"), (4, "three")] {
        let setup = Setup { replicas: Some(replicas), ..Setup::default() };
        let mut exe = ParallelExecutor::new(&program, Some(name), setup).unwrap();
        let mut store = Store::new(0);
        let fetch = [Fetch::mean("one"), Fetch::mean("three")];
        let out = exe.run(&mut store, &[("x", Feed::Split(&ones()))], &fetch).unwrap();
        assert_eq!(out.iter().map(|o| o.one().to_f64()[0]).collect::<Vec<_>>(), [0.25, 0.75]);
        assert!((store.get("w").unwrap().to_f64()[0] - wanted).abs() < 1e-6, "{replicas} replicas");
        assert_eq!(store.get("@STEP@_1").unwrap().to_f64(), [1.0]);
    }
    let text = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&text).unwrap(), program);
}

#[test]
fn what_a_loss_is_and_is_not_differentiated_for_is_chosen() {
    let Two { mut program, w, hidden, losses } = two();
    let nothing = append_backward_of(&mut program, losses[0], Chosen { only: Some(&[]), without: &[] });
    assert!(matches!(nothing, Err(GraphError::NothingToLearn { .. })));
    let blocked = append_backward(&mut program, losses[0], &[hidden]);
    assert!(matches!(blocked, Err(GraphError::NothingToLearn { .. })));
    program.stop_gradient(hidden, true);
    assert!(matches!(append_backward(&mut program, losses[0], &[]), Err(GraphError::NothingToLearn { .. })));
    program.stop_gradient(hidden, false);
    let fed = program.find("x").unwrap();
    program.stop_gradient(fed, false);
    let pairs = append_backward(&mut program, losses[0], &[]).unwrap();
    assert_eq!(pairs.iter().map(|p| p.0).collect::<Vec<_>>(), [w], "only parameters are learned");
    assert!(program.grad(fed).is_some(), "what is fed has a gradient, if somebody wants it");
    let again = append_backward(&mut program, losses[0], &[]).unwrap_err();
    assert!(matches!(&again, GraphError::BackwardTwice { var, .. } if var == "w"), "{again}");
}

#[test]
fn a_loss_of_two_moments_and_what_cannot_be_updated_are_refused() {
    let Two { mut program, w, losses, .. } = two();
    let pairs = append_backward(&mut program, losses[0], &[]).unwrap();
    let why = |result: Result<(), GraphError>| result.unwrap_err().to_string();
    let twice = why(sgd(0.1).apply(&mut program, &[pairs[0], pairs[0]]));
    assert!(twice.contains("twice"), "{twice}");
    let other = why(sgd(0.1).apply(&mut program, &[(losses[0], pairs[0].1)]));
    assert!(other.contains("not a parameter"), "{other}");
    sgd(0.1).apply(&mut program, &pairs).unwrap();
    let site = program.var(w).site.clone();
    let sum = phalanx_graph::op::Sum;
    let flat = phalanx_graph::op::Reshape { shape: phalanx_graph::Shape::scalar() };
    let after = program.append(flat, &[w], "after", Role::Forward, site.clone()).unwrap()[0];
    let both = program.append(sum, &[losses[1], after], "both", Role::Forward, site).unwrap()[0];
    let stale = append_backward(&mut program, both, &[]).unwrap_err();
    assert!(matches!(&stale, GraphError::Stale { var, .. } if var == "w"), "{stale}");
    // The part behind the update has a gradient, of the parameter as it is there.
    sgd(0.1).minimize(&mut program, after).unwrap();
    assert!((learned(&program) - (0.5 - 0.1 - 0.1)).abs() < 1e-6, "{}", learned(&program));
    let again = recompute(&mut program, &[]).unwrap_err();
    assert!(matches!(again, GraphError::Again { .. }), "{again}");
}

#[test]
fn what_is_for_one_loss_only_is_refused_for_two() {
    let Two { mut program, losses, .. } = two();
    sgd(0.1).minimize(&mut program, losses[0]).unwrap();
    sgd(0.1).minimize(&mut program, losses[1]).unwrap();
    let error = accumulate(&mut program, 2).unwrap_err();
    assert!(error.to_string().contains("several optimizers"), "{error}");
    let build = BuildStrategy { gradient_scale: GradientScale::Customized, ..BuildStrategy::default() };
    let setup = Setup { replicas: Some(2), build, ..Setup::default() };
    let error = ParallelExecutor::new(&program, Some("one"), setup).unwrap_err();
    assert_eq!(error, BuildError::ScaledLosses { n: 2 });
    let error = ParallelExecutor::new(&program, Some("nothing"), Setup::default()).unwrap_err();
    assert!(matches!(error, BuildError::UnknownLoss { .. }), "{error}");
}

#[test]
fn what_is_made_of_gradients_is_made_of_their_sums_and_is_not_tested() {
    use phalanx_graph::op::{Func, Unary};
    let Two { mut program, losses, .. } = two();
    let (w, g) = append_backward(&mut program, losses[1], &[]).unwrap()[0];
    let site = program.var(w).site.clone();
    let clip = Unary(Func::Clip { low: -1.0, high: 1.0 });
    let small = program.append(clip, &[g], "small", Role::Forward, site).unwrap()[0];
    sgd(0.1).apply(&mut program, &[(w, small)]).unwrap();
    let setup = Setup { replicas: Some(4), ..Setup::default() };
    let mut exe = ParallelExecutor::new(&program, Some("three"), setup).unwrap();
    let mut store = Store::new(0);
    exe.run(&mut store, &[("x", Feed::Split(&ones()))], &[]).unwrap();
    assert!(
        (store.get("w").unwrap().to_f64()[0] - 0.4).abs() < 1e-6,
        "3 is clipped to 1, not 0.75 four times"
    );
    let test = program.clone_for_test();
    test.verify().unwrap();
    assert!(test.find("small").is_none() && test.find("three").is_some());
}
