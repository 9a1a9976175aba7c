//! What is refused, and when: BODY-1, BODY-2.

use super::running::network;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, GraphError, Init, Optimizer, Options, Program, Role, Rule, Shape,
    Sig, Store, Tensor, VarId, VarKind, append_backward,
    ir::{Body, MOST_NESTED, Misfit, Site},
    kernel::Stream,
    layers::BatchNormOptions,
    op::{Func, OpKind, SquaredNorm, While},
};

/// A loop around whatever the closure does.
fn around(
    body: impl FnOnce(&mut Builder, &[VarId]) -> Result<Vec<VarId>, GraphError>,
) -> (Builder, GraphError) {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let n = b.fill(DType::I64, [1], 2.0).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let before = b.program().clone();
    let error = b.while_loop(4, &[i, x], |b, v| b.less_than(v[0], n), body).unwrap_err();
    assert_eq!(*b.program(), before, "what went wrong has left nothing behind");
    (b, error)
}

#[test]
fn an_optimizer_or_statistics_in_a_body_are_refused_with_operation_and_place() {
    let (mut b, error) = around(|b, v| {
        let y = b.fc(v[1], 3, Act::None)?;
        let loss = b.mean(y)?;
        Optimizer::new(Rule::Sgd, 0.1).minimize(b.program_mut(), loss)?;
        Ok(vec![b.increment(v[0], 1)?, y])
    });
    let GraphError::NotInBody { op: "sgd", site, .. } = &error else { panic!("BODY-1: {error}") };
    assert!(site.file().ends_with("refusing.rs"), "{error}");
    let (_, error) = around(|b, v| {
        let loss = b.mean(v[1])?;
        let w = b.parameter("w", [3], Init::Constant(1.0))?;
        let y = b.mul(v[1], w)?;
        let l = b.mean(y)?;
        append_backward(b.program_mut(), l, &[loss])?;
        Ok(vec![b.increment(v[0], 1)?, y])
    });
    assert!(matches!(error, GraphError::NotInBody { op: "loss_grad", .. }), "{error}");
    let (_, error) = around(|b, v| {
        let y = b.batch_norm(v[1], BatchNormOptions::default())?;
        Ok(vec![b.increment(v[0], 1)?, y])
    });
    assert!(matches!(error, GraphError::NotInBody { op: "batch_norm", .. }), "{error}");
    // The same builder is good for a loop that is right.
    let x = b.program().find("x").unwrap();
    let n = b.fill(DType::I64, [1], 2.0).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    b.while_loop(4, &[i, x], |b, v| b.less_than(v[0], n), |b, v| Ok(vec![b.increment(v[0], 1)?, v[1]]))
        .unwrap();
    b.finish().unwrap();
}

#[test]
fn bodies_that_do_not_fit_are_refused_where_they_are_written() {
    let (_, error) = around(|_, _| Ok(vec![]));
    let why = |error: &GraphError| match error {
        GraphError::Misfit { op: "while", site, why, .. } if site.file().ends_with("refusing.rs") => {
            why.clone()
        }
        other => panic!("{other}"),
    };
    assert_eq!(why(&error), Misfit::GivesCount { what: "body", wanted: 2, got: 0 });
    let (_, error) = around(|b, v| {
        let y = b.fc(v[1], 5, Act::None)?;
        Ok(vec![b.increment(v[0], 1)?, y])
    });
    let Misfit::Gives { slot: 2, wanted, got, .. } = why(&error) else { panic!("{error}") };
    assert_eq!((wanted.to_string(), got.to_string()), ("f32[batch, 3]".into(), "f32[batch, 5]".into()));
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let error = b.while_loop(4, &[x], |b, v| b.less_than(v[0], v[0]), |_, v| Ok(v.to_vec())).unwrap_err();
    assert!(matches!(why(&error), Misfit::Rank { slot: 0, .. }), "{error}");
    let error = b.while_loop(4, &[x], |b, v| b.mean(v[0]), |_, v| Ok(v.to_vec())).unwrap_err();
    assert!(matches!(why(&error), Misfit::DType { slot: 0, got: DType::F32, .. }), "{error}");
    let l = b.mean(x).unwrap();
    let yes = b.less_than(l, l).unwrap();
    let error = b.while_loop(0, &[l], |_, _| Ok(yes), |_, v| Ok(v.to_vec())).unwrap_err();
    assert!(matches!(why(&error), Misfit::Attribute { name: "most", .. }), "{error}");
    let error = b.while_loop(u64::MAX, &[x], |_, _| Ok(yes), |_, v| Ok(v.to_vec())).unwrap_err();
    assert!(matches!(why(&error), Misfit::Attribute { name: "most", .. }), "{error}");
    let error = b.cond(yes, |_| Ok(vec![x]), |b| Ok(vec![b.slice(x, 1, 0, 2)?])).unwrap_err();
    let GraphError::Misfit { op: "cond", why: Misfit::Gives { what, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*what, "branch for false");
    let error = b.cond(x, |_| Ok(vec![x]), |_| Ok(vec![x])).unwrap_err();
    assert!(matches!(&error, GraphError::Misfit { op: "cond", why: Misfit::DType { .. }, .. }), "{error}");
    let error = b.cond(yes, |_| Ok(vec![]), |_| Ok(vec![])).unwrap_err();
    assert!(matches!(&error, GraphError::Misfit { why: Misfit::GivesCount { .. }, .. }), "{error}");
}

#[test]
fn variables_that_nothing_computes_cannot_be_captured() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [1]).unwrap();
    let other = Builder::new().feed("y", DType::F32, [1]).unwrap();
    let far = {
        let mut long = Builder::new();
        (0..99).map(|i| long.feed(&format!("{i}"), DType::F32, [1]).unwrap()).last().unwrap()
    };
    assert_eq!(other, x, "numbers of variables are of one program");
    let limit = b.fill(DType::F32, [1], 9.0).unwrap();
    let error = b.while_loop(
        3,
        &[x],
        |b, v| b.less_than(v[0], limit),
        |b, v| {
            let y = b.map(Func::Tanh, far)?;
            Ok(vec![b.add(v[0], y)?])
        },
    );
    assert!(matches!(error.unwrap_err(), GraphError::Dangling { index: 98, .. }));
    let error = b.while_loop(3, &[x, far], |b, v| b.less_than(v[0], limit), |_, v| Ok(v.to_vec()));
    assert!(matches!(error.unwrap_err(), GraphError::Unknown { .. }));
    let mut inner = None;
    b.while_loop(
        3,
        &[x],
        |b, v| b.less_than(v[0], limit),
        |b, v| {
            let y = b.scale(v[0], 2.0, 1.0)?;
            inner = Some(y);
            Ok(vec![y])
        },
    )
    .unwrap();
    // What a body computes is the body's own.
    b.add(inner.unwrap(), x).unwrap();
    assert!(matches!(b.finish().unwrap_err(), GraphError::Unwritten { op: "add", .. }));
}

#[test]
fn a_body_that_was_made_by_hand_is_verified_with_the_program() {
    let at = Site::here;
    let flag = Sig::dense(DType::Bool, [1]);
    let number = Sig::dense(DType::F32, [1]);
    let loop_of = |body: Program, gives: Vec<VarId>| {
        let mut p = Program::new();
        let x = p.declare("x", number.clone(), VarKind::Feed, at()).unwrap();
        let c = p.declare("c", flag.clone(), VarKind::Feed, at()).unwrap();
        let body = Body::new(body, gives);
        let op = While { body, most: 3, n_carried: 1, keeps: true, stream: 0 };
        p.append(op, &[c, x], "y", Role::Forward, at()).map(|_| p)
    };
    let takes = || {
        let mut p = Program::new();
        let c = p.declare("c", flag.clone(), VarKind::Feed, at()).unwrap();
        let x = p.declare("x", number.clone(), VarKind::Feed, at()).unwrap();
        (p, c, x)
    };
    let error = |made: Result<Program, GraphError>| match made.unwrap_err() {
        GraphError::Misfit { op: "while", why, .. } => why,
        other => panic!("{other}"),
    };
    // It gives what it takes, which nothing computes.
    let (p, c, x) = takes();
    let Misfit::Body { error: inner, .. } = error(loop_of(p, vec![c, x])) else { panic!() };
    assert!(matches!(*inner, GraphError::NotGiven { .. }), "{inner}");
    // It has a parameter.
    let (mut p, ..) = takes();
    let learn = VarKind::Parameter(Init::Constant(0.0).into());
    p.declare("w", number.clone(), learn, at()).unwrap();
    let Misfit::Body { error: inner, .. } = error(loop_of(p, vec![])) else { panic!() };
    assert!(matches!(*inner, GraphError::StoredInBody { .. }), "{inner}");
    // It gives a variable that it does not have.
    let (p, ..) = takes();
    let (mut larger, ..) = takes();
    let z = larger.declare("z", number.clone(), VarKind::Feed, at()).unwrap();
    assert!(matches!(error(loop_of(p, vec![z])), Misfit::Body { .. }));
    assert!(matches!(error(loop_of(larger, vec![])), Misfit::Count { wanted: 3, got: 2 }));
}

#[test]
fn nesting_is_bounded_when_it_is_written_and_when_it_is_read() {
    fn deep(b: &mut Builder, x: VarId, yes: VarId, levels: usize) -> Result<Vec<VarId>, GraphError> {
        if levels == 0 {
            return Ok(vec![b.scale(x, 1.0, 1.0)?]);
        }
        b.cond(yes, |b| deep(b, x, yes, levels - 1), |_| Ok(vec![x]))
    }
    let program = |levels: usize| {
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [1]).unwrap();
        let yes = b.less_than(x, x).unwrap();
        deep(&mut b, x, yes, levels).map(|_| b.finish().unwrap())
    };
    let json = serde_json::to_string(&program(MOST_NESTED).unwrap()).unwrap();
    assert!(serde_json::from_str::<Program>(&json).is_ok(), "as deep as may be");
    let error = program(MOST_NESTED + 1).unwrap_err();
    assert!(matches!(&error, GraphError::Misfit { why: Misfit::Attribute { .. }, .. }), "BODY-2: {error}");
    // Bytes that say "and within it" for ever: an operation that waits, whose operation waits.
    let every = OpKind::KINDS.iter().position(|k| *k == "Every").unwrap() as u8;
    let hostile = [every, 2].repeat(100_000);
    let error = postcard::from_bytes::<OpKind>(&hostile).unwrap_err();
    assert!(matches!(error, postcard::Error::SerdeDeCustom), "BODY-2: {error:?}");
    // The same for programs within programs: a program without variables and with one operation, a branch.
    let cond = OpKind::KINDS.iter().position(|k| *k == "Cond").unwrap() as u8;
    let hostile = [0u8, 1, cond].repeat(100_000);
    let error = postcard::from_bytes::<Program>(&hostile).unwrap_err();
    assert!(matches!(error, postcard::Error::SerdeDeCustom), "BODY-2: {error:?}");
}

#[test]
fn damaged_programs_with_bodies_are_errors_or_programs() {
    let program = network(3, 0.1, Some(&Optimizer::new(Rule::Sgd, 0.1)));
    let bytes = postcard::to_allocvec(&program).unwrap();
    let dice = Stream::new(11, 0, 0);
    let mut refused = 0;
    for i in 0..1500u64 {
        let mut damaged = bytes.clone();
        let at = (dice.bits(2 * i) % bytes.len() as u64) as usize;
        damaged[at] ^= 1 << (dice.bits(2 * i + 1) % 8);
        match postcard::from_bytes::<Program>(&damaged) {
            Ok(read) => drop(read.to_string()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn what_has_no_gradient_in_a_body_is_named_with_its_place() {
    let mut b = Builder::new();
    let x = b.parameter("x", Shape::scalar(), Init::Constant(0.5)).unwrap();
    let yes = b.less_than(x, x).unwrap();
    let out = b.cond(yes, |_| Ok(vec![x]), |b| Ok(vec![b.op1(SquaredNorm, &[x])?])).unwrap();
    let mut program = b.finish().unwrap();
    let error = append_backward(&mut program, out[0], &[]).unwrap_err();
    let GraphError::NoGradient { op: "squared_norm", site, var, .. } = &error else { panic!("{error}") };
    assert!(site.file().ends_with("refusing.rs") && var == "x", "{error}");
}

#[test]
fn a_body_that_says_it_goes_backward_can_still_be_cloned_for_tests() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [1]).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let two = b.fill(DType::I64, [1], 2.0).unwrap();
    let next = |b: &mut Builder, v: &[VarId]| Ok(vec![b.increment(v[0], 1)?, b.scale(v[1], 2.0, 0.0)?]);
    let out = b.while_loop(3, &[i, x], |b, v| b.less_than(v[0], two), next).unwrap();
    b.named(out[1], "y").unwrap();
    let program = b.finish().unwrap();
    // Only what is inside of the body is changed: it was written first, and the loop itself comes last.
    let text = serde_json::to_string(&program).unwrap();
    let (inner, outer) = text.split_at(text.rfind("\"Forward\"").unwrap());
    let begin = inner.find("\"body\"").unwrap();
    let forged =
        format!("{}{}{outer}", &inner[..begin], inner[begin..].replace("\"Forward\"", "\"Backward\""));
    let forged: Program = serde_json::from_str(&forged).unwrap();
    let test = forged.clone_for_test();
    let mut executor = Executor::new(test, Options::default()).unwrap();
    let one = Tensor::new(&[1], &[1f32]).unwrap();
    let y = executor.run(&mut Store::new(0), &[("x", &one)], &["y"]).unwrap();
    assert_eq!(y[0].data::<f32>().unwrap(), [4.0]);
}
