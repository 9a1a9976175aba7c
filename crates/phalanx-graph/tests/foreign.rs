//! Functions from outside as operations: values, gradients, errors, files.

use phalanx_core::DType;
use phalanx_graph::{
    BATCH, Builder, Dim, Executor, Init, Options, Program, Role, Sig, Store, Tensor, VarKind,
    append_gradients,
    ir::Site,
    op::{Foreign, ForeignBackward, ForeignFunction, ForeignInput, Reduction},
};

fn reals(x: &ForeignInput<'_>) -> Vec<f64> {
    x.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn cube(fails: bool) -> Foreign {
    let function = ForeignFunction::new(move |inputs, outputs| {
        if fails {
            return Err("raised something".into());
        }
        for (to, v) in outputs[0].bytes.chunks_exact_mut(8).zip(reals(&inputs[0])) {
            to.copy_from_slice(&(v * v * v).to_le_bytes());
        }
        Ok(())
    });
    let slope = ForeignFunction::new(|inputs, outputs| {
        let (x, dy) = (reals(&inputs[0]), reals(&inputs[1]));
        for (to, (v, d)) in outputs[0].bytes.chunks_exact_mut(8).zip(x.iter().zip(dy)) {
            to.copy_from_slice(&(3.0 * v * v * d).to_le_bytes());
        }
        Ok(())
    });
    let backward = Some(ForeignBackward { inputs: vec![true], outputs: vec![false], function: slope });
    let gives = vec![Sig::dense(DType::F64, [Dim::Fixed(3)])];
    Foreign { title: "py_func `cube`".into(), gives, backward, function }
}

fn program(fails: bool) -> (Program, String) {
    let mut b = Builder::with_dtype(DType::F64);
    let x = b.parameter("x", [3usize], Init::Normal { mean: 0.0, std: 1.0 }).unwrap();
    let y = b.op1(cube(fails), &[x]).unwrap();
    let loss = b.reduce(Reduction::Sum, y, &[], false).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    let wrt = program.trainable();
    let pairs = append_gradients(&mut program, loss, &wrt, &[]).unwrap();
    let gradient = program.var(pairs[0].1).name.clone();
    (program, gradient)
}

#[test]
fn a_function_and_its_gradient_are_called() {
    let (program, gradient) = program(false);
    let mut exe = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(1);
    exe.prepare(&mut store).unwrap();
    store.set("x", &Tensor::new(&[3], &[1.0, -2.0, 0.5]).unwrap()).unwrap();
    let out = exe.run(&mut store, &[], &["loss", &gradient]).unwrap();
    assert_eq!(out[0].data::<f64>().unwrap(), [1.0 - 8.0 + 0.125]);
    assert_eq!(out[1].data::<f64>().unwrap(), [3.0, 12.0, 0.75]);
}

#[test]
fn what_a_function_raises_is_told_with_its_name() {
    let (program, _) = program(true);
    let mut exe = Executor::new(program, Options::default()).unwrap();
    let why = exe.run(&mut Store::new(1), &[], &["loss"]).unwrap_err().to_string();
    assert!(why.contains("py_func `cube`: raised something"), "{why}");
}

#[test]
fn a_program_that_was_read_has_no_functions() {
    let (program, _) = program(false);
    assert_eq!(program.foreign(), Some("py_func `cube`"));
    let text = serde_json::to_string(&program).unwrap();
    let read: Program = serde_json::from_str(&text).unwrap();
    let mut exe = Executor::new(read, Options::default()).unwrap();
    let why = exe.run(&mut Store::new(1), &[], &["loss"]).unwrap_err().to_string();
    assert!(why.contains("read from a file"), "{why}");
}

/// A batch may be part of what a function gives, and replicas call it with their parts.
#[test]
fn outputs_may_have_a_batch() {
    let mut program = Program::new();
    let site = Site::here();
    let sig = Sig::dense(DType::F64, [BATCH, Dim::Fixed(2)]);
    let x = program.declare("x", sig.clone(), VarKind::Feed, site.clone()).unwrap();
    let y = program.declare("y", sig.clone(), VarKind::Temp, site.clone()).unwrap();
    let function = ForeignFunction::new(|inputs, outputs| {
        assert_eq!(inputs[0].dims, outputs[0].dims);
        outputs[0].bytes.copy_from_slice(inputs[0].bytes);
        Ok(())
    });
    let op = Foreign { title: "copy".into(), gives: vec![sig], backward: None, function };
    program.append_to(op, &[x], &[y], Role::Forward, site).unwrap();
    let mut exe = Executor::new(program, Options::default()).unwrap();
    let given = Tensor::new(&[3, 2], &[1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    assert_eq!(exe.run(&mut Store::new(1), &[("x", &given)], &["y"]).unwrap()[0], given);
}
