//! What loops and branches give, and that memory changes nothing.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, Init, Optimizer, Options, Program, Rule, RunError, Store, Tensor,
    append_backward,
    kernel::{KernelError, Stream},
    op::{Embedding, Func, Logical, Reduction, TopK},
    plan::Reuse,
    saved::{load, save},
};

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let dice = Stream::new(seed, 9, 9);
    (0..n as u64).map(|i| dice.uniform(i) as f32 - 0.5).collect()
}

/// A counter from 0 to the limit that is fed, as long as the sum stays small; the sum doubles and grows by `w`.
fn counting(most: u64) -> Program {
    let mut b = Builder::new();
    let limit = b.feed("limit", DType::I64, [1]).unwrap();
    let w = b.parameter("w", [1], Init::Constant(0.5)).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let s = b.fill(DType::F32, [1], 1.0).unwrap();
    let out = b
        .while_loop(
            most,
            &[i, s],
            |b, v| b.less_than(v[0], limit),
            |b, v| {
                let s = b.scale(v[1], 2.0, 0.0)?;
                Ok(vec![b.increment(v[0], 1)?, b.add(s, w)?])
            },
        )
        .unwrap();
    b.named(out[0], "i").unwrap();
    b.named(out[1], "s").unwrap();
    b.finish().unwrap()
}

fn run(executor: &mut Executor, store: &mut Store, limit: i64) -> Result<(i64, f32), RunError> {
    let limit = Tensor::new(&[1], &[limit]).unwrap();
    let out = executor.run(store, &[("limit", &limit)], &["i", "s"])?;
    Ok((out[0].data::<i64>().unwrap()[0], out[1].data::<f32>().unwrap()[0]))
}

#[test]
fn a_loop_goes_as_far_as_its_condition_says_and_no_rounds_give_the_first_values() {
    let mut executor = Executor::new(counting(5), Options::default()).unwrap();
    let mut store = Store::new(0);
    assert_eq!(run(&mut executor, &mut store, 3), Ok((3, 11.5)));
    assert_eq!(run(&mut executor, &mut store, 0), Ok((0, 1.0)));
    assert_eq!(run(&mut executor, &mut store, -4), Ok((0, 1.0)));
    assert_eq!(run(&mut executor, &mut store, 5), Ok((5, 47.5)));
}

#[test]
fn too_many_rounds_are_an_error_with_the_limit_and_the_next_run_is_fine() {
    let mut executor = Executor::new(counting(5), Options::default()).unwrap();
    let mut store = Store::new(0);
    for _ in 0..2 {
        // CONTROL-1
        let error = run(&mut executor, &mut store, 6).unwrap_err();
        let RunError::Failed { op, site, why, .. } = &error else { panic!("{error}") };
        assert_eq!((*op, why), ("while", &KernelError::Rounds { most: 5 }));
        assert!(site.file().ends_with("running.rs"), "{error}");
        assert!(error.to_string().contains("after 5 rounds"), "{error}");
        assert_eq!(run(&mut executor, &mut store, 5), Ok((5, 47.5)), "EXEC-3");
    }
}

/// A recurrent network over time `[n, time, width]`, written as a loop with a counter; within each round a branch on the
/// parity of the counter, a loop of its own and dropout.
pub fn network(time: usize, dropout: f64, optimizer: Option<&Optimizer>) -> Program {
    let (width, h) = (3, 4);
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(time), Dim::Fixed(width)]).unwrap();
    let by_time = b.transpose(x, &[1, 0, 2]).unwrap();
    let steps = b.fill(DType::I64, [1], time as f64).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let first = b.fill(DType::F32, [BATCH, Dim::Fixed(h)], 0.1).unwrap();
    let shift = b.parameter("shift", [h], Init::Uniform { low: -0.3, high: 0.3 }).unwrap();
    let out = b
        .while_loop(
            time as u64 + 2,
            &[i, first],
            |b, v| b.less_than(v[0], steps),
            |b, v| {
                let now = b.gather(by_time, v[0])?;
                let now = b.reshape(now, [BATCH, Dim::Fixed(width)])?;
                let (u, r) = (b.fc(now, h, Act::None)?, b.fc(v[1], h, Act::None)?);
                let sum = b.add(u, r)?;
                let next = b.map(Func::Tanh, sum)?;
                let two = b.fill(DType::I64, [1], 2.0)?;
                let early = b.less_than(v[0], two)?;
                let next = b.cond(
                    early,
                    |b| Ok(vec![b.add(next, shift)?]),
                    |b| {
                        // As often as the round's number says.
                        let j = b.fill(DType::I64, [1], 0.0)?;
                        let deep = b.while_loop(
                            time as u64,
                            &[j, next],
                            |b, u| b.less_than(u[0], v[0]),
                            |b, u| {
                                let y = b.mul(u[1], shift)?;
                                let y = b.add(y, next)?;
                                Ok(vec![b.increment(u[0], 1)?, b.scale(y, 0.5, 0.0)?])
                            },
                        )?;
                        Ok(vec![deep[1]])
                    },
                )?[0];
                let next = if dropout > 0.0 { b.dropout(next, dropout)? } else { next };
                Ok(vec![b.increment(v[0], 1)?, next])
            },
        )
        .unwrap();
    let y = b.named(out[1], "last").unwrap();
    let y = b.fc(y, 2, Act::None).unwrap();
    let y = b.map(Func::Square, y).unwrap();
    let loss = b.mean(y).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    if let Some(optimizer) = optimizer {
        optimizer.minimize(&mut program, loss).unwrap();
    }
    program
}

fn feed(time: usize, batch: usize, seed: u64) -> Tensor {
    Tensor::new(&[batch, time, 3], &numbers(batch * time * 3, seed)).unwrap()
}

/// Losses of a few steps and all parameters, as bits.
fn train(program: &Program, options: Options, time: usize) -> (Vec<u32>, Vec<Vec<f64>>, usize) {
    let mut executor = Executor::new(program.clone(), options).unwrap();
    let mut store = Store::new(5);
    let mut losses = Vec::new();
    for step in 0..6 {
        let x = feed(time, 5, step);
        let out = executor.run(&mut store, &[("x", &x)], &["loss"]).unwrap();
        losses.push(out[0].data::<f32>().unwrap()[0].to_bits());
    }
    let learned = program.trainable().into_iter().map(|p| store.get(&program.var(p).name).unwrap().to_f64());
    (losses, learned.collect(), executor.arena_bytes())
}

#[test]
fn with_and_without_reuse_of_memory_the_bits_are_the_same() {
    let program = network(5, 0.2, Some(&Optimizer::new(Rule::adam(), 0.05)));
    let (losses, learned, small) = train(&program, Options::default(), 5);
    assert!(f32::from_bits(losses[5]) < f32::from_bits(losses[0]), "it learns");
    for (across, in_place) in [(false, false), (true, false), (false, true)] {
        let options = Options { reuse: Reuse { across, in_place }, ..Options::default() };
        let (other, others, bytes) = train(&program, options, 5);
        assert_eq!((&losses, &learned), (&other, &others), "MEMPLAN-5: {across} {in_place}");
        assert!(across || bytes > small, "bodies take part in it: {bytes} and {small}");
    }
    let (other, others, _) = train(&program, Options { check_finite: true, ..Options::default() }, 5);
    assert_eq!((losses, learned), (other, others));
}

#[test]
fn a_program_that_is_written_down_and_read_again_is_the_same_and_its_text_shows_bodies() {
    let program = network(4, 0.2, Some(&Optimizer::new(Rule::Sgd, 0.1)));
    let json = serde_json::to_vec(&program).unwrap();
    let read: Program = serde_json::from_slice(&json).unwrap();
    assert_eq!(read, program);
    assert_eq!(read.to_string(), program.to_string());
    assert_eq!(train(&read, Options::default(), 4), train(&program, Options::default(), 4));
    let bytes = postcard::to_allocvec(&program).unwrap();
    assert_eq!(postcard::from_bytes::<Program>(&bytes).unwrap(), program);
    let text = program.to_string();
    for wanted in ["while(", "while_grad(", "    Forward: ", "gather(", "cond(", "cond_grad("] {
        assert!(text.contains(wanted), "{wanted} in\n{text}");
    }
}

#[test]
fn a_test_program_drops_nothing_in_bodies_and_keeps_no_rounds() {
    let dropping = network(5, 0.5, Some(&Optimizer::new(Rule::Sgd, 0.1)));
    let plain = network(5, 0.0, None);
    let test = dropping.clone_for_test();
    test.verify().unwrap();
    assert!(!test.to_string().contains("dropout("), "{test}");
    let x = feed(5, 4, 1);
    let of = |program: &Program| {
        let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
        let mut store = Store::new(3);
        let out = executor.run(&mut store, &[("x", &x)], &["last"]).unwrap();
        (out[0].to_f64(), executor.arena_bytes())
    };
    let ((a, small), (b, large)) = (of(&test), of(&plain));
    assert_eq!(a, b);
    assert!(small < large, "{small} and {large}");
    assert_ne!(of(&network(5, 0.5, None)).0, b, "dropout does something");
}

#[test]
fn random_numbers_differ_from_round_to_round_and_run_to_run_and_not_otherwise() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(64)]).unwrap();
    let rounds = b.fill(DType::I64, [1], 3.0).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let none = b.fill(DType::F32, [BATCH, Dim::Fixed(64)], 0.0).unwrap();
    let out = b
        .while_loop(
            3,
            &[i, none, none, none],
            |b, v| b.less_than(v[0], rounds),
            |b, v| Ok(vec![b.increment(v[0], 1)?, v[2], v[3], b.dropout(x, 0.5)?]),
        )
        .unwrap();
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        b.named(out[1 + i], name).unwrap();
    }
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let x = Tensor::new(&[2, 64], &[1f32; 128]).unwrap();
    let mut runs = Vec::new();
    for seed in [1, 1, 2] {
        let mut store = Store::new(seed);
        for _ in 0..2 {
            let out = executor.run(&mut store, &[("x", &x)], &["a", "b", "c"]).unwrap();
            runs.push(out.iter().map(|t| t.data::<f32>().unwrap().to_vec()).collect::<Vec<_>>());
        }
    }
    let [a, b, c] = [0, 1, 2].map(|i| &runs[0][i]);
    assert!(a != b && b != c && a != c, "CONTROL-2");
    assert!(runs[0] != runs[1] && runs[0] != runs[4], "CONTROL-2");
    assert_eq!((&runs[0], &runs[1]), (&runs[2], &runs[3]), "the same seed, the same numbers");
}

#[test]
fn only_the_branch_that_is_taken_runs() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [2]).unwrap();
    let which = b.feed("which", DType::I64, [1]).unwrap();
    let zero = b.fill(DType::I64, [1], 0.0).unwrap();
    let is = b.less_than(zero, which).unwrap();
    let table = b.reshape(x, [2, 1]).unwrap();
    let out = b
        .cond(
            is,
            |b| {
                let row = b.gather(table, which)?;
                Ok(vec![b.reshape(row, [1])?, which])
            },
            |b| Ok(vec![b.slice(x, 0, 1, 2)?, which]),
        )
        .unwrap();
    b.named(out[0], "y").unwrap();
    b.named(out[1], "w").unwrap();
    let program = b.finish().unwrap();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(0);
    let x = Tensor::new(&[2], &[7f32, 8.0]).unwrap();
    let mut at = |which: i64| {
        let which = Tensor::new(&[1], &[which]).unwrap();
        let out = executor.run(&mut store, &[("x", &x), ("which", &which)], &["y", "w"]);
        out.map(|out| (out[0].to_f64()[0], out[1].to_f64()[0]))
    };
    assert_eq!(at(1), Ok((8.0, 1.0)));
    // Its number would be too large for the other branch, which does not run.
    assert_eq!(at(-3), Ok((8.0, -3.0)));
    let error = at(2).unwrap_err();
    let RunError::Failed { op: "cond", why: KernelError::Within(within), .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(within.op, "gather");
    assert_eq!(within.why, KernelError::Index { input: 1, at: 0, value: 2, limit: 2 });
    let text = error.to_string();
    assert!(text.matches("running.rs:").count() == 2 && text.contains("f32[2, 1]"), "both places: {text}");
}

#[test]
fn a_number_that_is_not_finite_is_told_of_the_operation_within() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [1]).unwrap();
    let one = b.fill(DType::F32, [1], 1e9).unwrap();
    let out = b
        .while_loop(
            9,
            &[x],
            |b, v| b.less_than(v[0], one),
            |b, v| {
                let y = b.map(Func::Log, v[0])?;
                Ok(vec![b.named(y, "inner")?])
            },
        )
        .unwrap();
    b.named(out[0], "y").unwrap();
    let options = Options { check_finite: true, ..Options::default() };
    let mut executor = Executor::new(b.finish().unwrap(), options).unwrap();
    let x = Tensor::new(&[1], &[-1f32]).unwrap();
    let error = executor.run(&mut Store::new(0), &[("x", &x)], &["y"]).unwrap_err();
    let RunError::NotFinite { op: "log", var, at: 0, .. } = &error else { panic!("{error}") };
    assert_eq!(var, "inner");
    // It is the body's own, and in no run is there one value of it.
    let error = executor.run(&mut Store::new(0), &[("x", &x)], &["inner"]).unwrap_err();
    assert_eq!(error, RunError::Unplanned { var: "inner".into() });
}

#[test]
fn a_program_with_a_loop_is_saved_and_loaded() {
    let program = network(5, 0.5, Some(&Optimizer::new(Rule::Sgd, 0.1)));
    let mut store = Store::new(3);
    let x = feed(5, 4, 1);
    Executor::new(program.clone(), Options::default()).unwrap().run(&mut store, &[("x", &x)], &[]).unwrap();
    let mut predict = Executor::new(program.clone_for_test(), Options::default()).unwrap();
    let wanted = predict.run(&mut store, &[("x", &x)], &["last"]).unwrap();
    let loaded = load(&save(&program, &mut store, &["last"]).unwrap()).unwrap();
    let mut executor = Executor::new(loaded.program.clone(), Options::default()).unwrap();
    let mut other = Store::new(0);
    executor.prepare(&mut other).unwrap();
    loaded.give(&mut other).unwrap();
    assert_eq!(executor.run(&mut other, &[("x", &x)], &["last"]).unwrap(), wanted, "SAVED-1");
}

#[test]
fn a_table_that_is_learned_in_a_loop_gets_a_dense_gradient() {
    let mut b = Builder::new();
    let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
    let table = b.parameter("table", [5, 2], Init::Constant(0.5)).unwrap();
    let rounds = b.fill(DType::I64, [1], 3.0).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let none = b.fill(DType::F32, [BATCH, Dim::Fixed(2)], 0.0).unwrap();
    let out = b
        .while_loop(
            3,
            &[i, none],
            |b, v| b.less_than(v[0], rounds),
            |b, v| {
                let rows = b.op1(Embedding { sparse: true, padding: None }, &[table, ids])?;
                Ok(vec![b.increment(v[0], 1)?, b.add(v[1], rows)?])
            },
        )
        .unwrap();
    let loss = b.reduce(Reduction::Sum, out[1], &[], false).unwrap();
    let mut program = b.finish().unwrap();
    let pairs = append_backward(&mut program, loss, &[]).unwrap();
    assert!(program.sig(pairs[0].1).is_dense(), "GRAD-4");
    let name = program.var(pairs[0].1).name.clone();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let ids = Tensor::new(&[3], &[1i64, 4, 1]).unwrap();
    let got = executor.run(&mut Store::new(0), &[("ids", &ids)], &[&name]).unwrap();
    assert_eq!(got[0].to_f64(), [0., 0., 6., 6., 0., 0., 0., 0., 3., 3.]);
}

#[test]
fn gradients_draw_the_numbers_that_loop_and_branch_have_drawn() {
    let mut b = Builder::with_dtype(DType::F64);
    let w = b.parameter("w", [40], Init::Uniform { low: 0.5, high: 1.5 }).unwrap();
    let rounds = b.fill(DType::I64, [1], 3.0).unwrap();
    let i = b.fill(DType::I64, [1], 0.0).unwrap();
    let none = b.fill(DType::F64, [40], 0.0).unwrap();
    let out = b
        .while_loop(
            3,
            &[i, none],
            |b, v| b.less_than(v[0], rounds),
            |b, v| {
                let one = b.fill(DType::I64, [1], 1.0)?;
                let early = b.less_than(v[0], one)?;
                let dropped = b.dropout(w, 0.5)?;
                let other = |b: &mut Builder| Ok(vec![b.dropout(w, 0.4)?]);
                let side = b.cond(early, |b| Ok(vec![b.dropout(w, 0.6)?]), other)?;
                let sum = b.add(v[1], dropped)?;
                Ok(vec![b.increment(v[0], 1)?, b.add(sum, side[0])?])
            },
        )
        .unwrap();
    let loss = b.reduce(Reduction::Sum, out[1], &[], false).unwrap();
    b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    append_backward(&mut program, loss, &[]).unwrap();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(4);
    for _ in 0..3 {
        let out = executor.run(&mut store, &[], &["loss", "w@GRAD", "w"]).unwrap();
        // What is computed is linear in `w` for the numbers of a run, so its gradient says all of it.
        let dot: f64 = out[1].to_f64().iter().zip(out[2].to_f64()).map(|(g, w)| g * w).sum();
        let loss = out[0].to_f64()[0];
        assert!((dot - loss).abs() < 1e-9 * loss, "CONTROL-2: {dot} and {loss}");
    }
}

#[test]
fn conditions_are_put_together() {
    let mut b = Builder::new();
    let (x, y) = (b.feed("x", DType::Bool, [4]).unwrap(), b.feed("y", DType::Bool, [4]).unwrap());
    let (and, or) = (b.logical_and(x, y).unwrap(), b.logical_or(x, y).unwrap());
    let (xor, not) = (b.op1(Logical::Xor, &[x, y]).unwrap(), b.logical_not(x).unwrap());
    for (var, name) in [(and, "and"), (or, "or"), (xor, "xor"), (not, "not")] {
        b.named(var, name).unwrap();
    }
    let mut executor = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
    let flags = |all: [u8; 4]| Tensor::from_le_bytes(DType::Bool, &[4], &all).unwrap();
    let (x, y) = (flags([0, 0, 1, 1]), flags([0, 1, 0, 1]));
    let feeds = [("x", &x), ("y", &y)];
    let out = executor.run(&mut Store::new(0), &feeds, &["and", "or", "xor", "not"]).unwrap();
    let wanted = [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]];
    for (got, wanted) in out.iter().zip(wanted) {
        assert_eq!(got.bytes(), wanted);
    }
}

/// A loop that carries something beside what the loss is made of: a length that is zero at first, or what has no gradient.
fn beside(of_top: bool) -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(3)]).unwrap();
    let w = b.parameter("w", [3], Init::Constant(0.0)).unwrap();
    let zero = b.fill(DType::I64, [1], 0.0).unwrap();
    let n = b.fill(DType::I64, [1], 3.0).unwrap();
    let h = b.scale(x, 0.0, 0.0).unwrap();
    let length = b.reduce(Reduction::Sum, h, &[1], true).unwrap();
    let body = |b: &mut Builder, v: &[phalanx_graph::VarId]| {
        let square = b.mul(v[1], v[1])?;
        let sum = b.reduce(Reduction::Sum, square, &[1], true)?;
        let beside = if of_top { b.op1(TopK { k: 1 }, &[v[1]])? } else { b.map(Func::Sqrt, sum)? };
        Ok(vec![b.increment(v[0], 1)?, b.add(v[1], w)?, beside])
    };
    let out = b.while_loop(5, &[zero, h, length], |b, v| b.less_than(v[0], n), body).unwrap();
    let loss = b.mean(out[1]).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::Sgd, 0.0).minimize(&mut program, loss).unwrap();
    program
}

#[test]
fn what_is_carried_beside_the_loss_does_not_disturb_its_gradient() {
    for of_top in [false, true] {
        let mut executor = Executor::new(beside(of_top), Options::default()).unwrap();
        let x = Tensor::zeros(DType::F32, &[2, 3]);
        let out = executor.run(&mut Store::new(1), &[("x", &x)], &["w@GRAD"]).unwrap();
        assert_eq!(out[0].data::<f32>().unwrap(), [1.0; 3]);
    }
}

#[test]
fn many_values_are_carried_and_too_many_refused_in_words() {
    let looping = |n: usize| {
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1)]).unwrap();
        let zero = b.fill(DType::I64, [1], 0.0)?;
        let two = b.fill(DType::I64, [1], 2.0)?;
        let mut first = vec![zero];
        first.extend(vec![x; n]);
        let body = |b: &mut Builder, v: &[phalanx_graph::VarId]| {
            let mut next = vec![b.increment(v[0], 1)?];
            for &one in &v[1..] {
                next.push(b.scale(one, 2.0, 0.0)?);
            }
            Ok(next)
        };
        let out = b.while_loop(2, &first, |b, v| b.less_than(v[0], two), body)?;
        let last = b.named(out[n], "last")?;
        assert_eq!(b.program().var(last).name, "last");
        b.finish()
    };
    let mut executor = Executor::new(looping(200).unwrap(), Options::default()).unwrap();
    let one = Tensor::new(&[1, 1], &[1f32]).unwrap();
    let out = executor.run(&mut Store::new(0), &[("x", &one)], &["last"]).unwrap();
    assert_eq!(out[0].data::<f32>().unwrap(), [4.0]);
    let error = looping(600).unwrap_err().to_string();
    assert!(error.contains("at most") && error.contains("while"), "{error}");
}
