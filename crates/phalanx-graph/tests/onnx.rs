//! Models from PyTorch, trained here and there (`python/oracle/onnx_models.py`).

use phalanx_core::DType;
use phalanx_graph::{
    BATCH, Builder, Executor, Optimizer, Options, Rule, Store, Tensor,
    onnx::{ImportOptions, Imported, InputFault, Limits, Norms, OnnxError, export, import},
};
use serde_json::Value;

const MLP: &[u8] = include_bytes!("fixtures/onnx/mlp.onnx");
const CNN: &[u8] = include_bytes!("fixtures/onnx/cnn.onnx");
const WORDS: &[u8] = include_bytes!("fixtures/onnx/words.onnx");
const NEWER: &[u8] = include_bytes!("fixtures/onnx/newer.onnx");
const PREDICT: &[u8] = include_bytes!("fixtures/onnx/cnn_predict.onnx");
const BAKED: &[u8] = include_bytes!("fixtures/onnx/baked.onnx");

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn dims(value: &Value) -> Vec<usize> {
    numbers(&value["dims"]).iter().map(|&d| d as usize).collect()
}

/// What is fed, in the types of the program.
fn feeds(imported: &Imported, wanted: &Value) -> Vec<(String, Tensor)> {
    let all = wanted["feeds"].as_object().expect("feeds");
    all.iter()
        .filter_map(|(name, value)| {
            let id = imported.program.find(name)?;
            let data = numbers(&value["data"]);
            let tensor = match imported.program.sig(id).dtype {
                DType::I64 => Tensor::new(&dims(value), &data.iter().map(|&v| v as i64).collect::<Vec<_>>()),
                _ => Tensor::new(&dims(value), &data.iter().map(|&v| v as f32).collect::<Vec<_>>()),
            };
            Some((name.clone(), tensor.expect("as many as the dimensions say")))
        })
        .collect()
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs().max(0.1)
}

/// Trains as PyTorch did; compares losses and, in the file that is written back, every learned value.
fn train(name: &str, bytes: &[u8], mut imported: Imported, loss: &str, wanted: &Value) -> Vec<u8> {
    let id = imported.program.find(loss).expect("the loss");
    let rate = wanted["rate"].as_f64().expect("a rate");
    Optimizer::new(Rule::Sgd, rate).minimize(&mut imported.program, id).unwrap();
    let mut executor = Executor::new(imported.program.clone(), Options::default()).unwrap();
    let mut store = Store::new(0);
    executor.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    let fed = feeds(&imported, wanted);
    let fed: Vec<(&str, &Tensor)> = fed.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for (step, wanted) in numbers(&wanted["losses"]).into_iter().enumerate() {
        let got = executor.run(&mut store, &fed, &[loss]).unwrap()[0].to_f64()[0];
        assert!(close(got, wanted, 1e-4), "{name}, step {step}: {got}, PyTorch says {wanted}");
    }
    let exported = imported.export(bytes, &mut store, &Limits::default()).unwrap();
    let again =
        import(&exported.bytes, &ImportOptions { norms: Norms::Learn, ..ImportOptions::default() }).unwrap();
    for (weight, value) in again.values() {
        let Some(after) = wanted["after"].get(weight) else { continue };
        assert!(exported.replaced.iter().any(|r| r == weight), "{name}: {weight} was not written");
        for (i, (got, wanted)) in value.to_f64().into_iter().zip(numbers(&after["data"])).enumerate() {
            assert!(close(got, wanted, 2e-4), "{name}: {weight}[{i}] is {got}, PyTorch says {wanted}");
        }
    }
    exported.bytes
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("the oracle's file")
}

#[test]
fn a_network_with_batch_norm_and_its_loss_learns_as_in_pytorch() {
    let wanted = parsed(include_str!("fixtures/onnx/cnn.json"));
    let imported = import(CNN, &ImportOptions::default()).unwrap();
    assert_eq!(imported.inputs, ["x", "label"]);
    assert_eq!(imported.outputs, ["loss", "scores"]);
    let mut learned: Vec<&str> = imported.parameters.iter().map(String::as_str).collect();
    let mut parameters: Vec<&str> =
        wanted["parameters"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    learned.sort_unstable();
    parameters.sort_unstable();
    assert_eq!(learned, parameters, "statistics are not learned");
    train("cnn", CNN, imported, "loss", &wanted);
}

#[test]
fn the_newer_exporter_forgets_that_norms_learn_and_can_be_told() {
    let wanted = parsed(include_str!("fixtures/onnx/cnn.json"));
    let error = import(NEWER, &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("ImportOptions::norms"), "{error}");
    let options = ImportOptions { norms: Norms::Learn, ..ImportOptions::default() };
    let mut imported = import(NEWER, &options).unwrap();
    let loss = imported.program.find("loss").unwrap();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut imported.program, loss).unwrap();
    let mut executor = Executor::new(imported.program.clone(), Options::default()).unwrap();
    let mut store = Store::new(0);
    executor.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    let fed = feeds(&imported, &wanted);
    let fed: Vec<(&str, &Tensor)> = fed.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for (step, wanted) in numbers(&wanted["losses"]).into_iter().enumerate() {
        let got = executor.run(&mut store, &fed, &["loss"]).unwrap()[0].to_f64()[0];
        assert!(close(got, wanted, 1e-4), "step {step}: {got}, PyTorch says {wanted}");
    }
}

#[test]
fn a_model_of_words_learns_as_in_pytorch_with_dense_and_sparse_gradients() {
    let wanted = parsed(include_str!("fixtures/onnx/words.json"));
    for sparse in [false, true] {
        let imported = import(WORDS, &ImportOptions { sparse, ..ImportOptions::default() }).unwrap();
        train("words", WORDS, imported, "loss", &wanted);
    }
}

#[test]
fn a_model_without_a_loss_gets_one_of_ours() {
    let wanted = parsed(include_str!("fixtures/onnx/mlp.json"));
    let mut imported = import(MLP, &ImportOptions::default()).unwrap();
    let scores = imported.program.find("scores").unwrap();
    let mut b = Builder::onto(std::mem::take(&mut imported.program));
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    b.named(loss, "loss").unwrap();
    imported.program = b.finish().unwrap();
    train("mlp", MLP, imported, "loss", &wanted);
}

#[test]
fn a_baked_in_batch_is_refused_with_the_way_out() {
    let error = import(BAKED, &ImportOptions::default()).unwrap_err();
    assert!(
        matches!(&error, OnnxError::Input { name, why: InputFault::Baked { .. } } if name == "x"),
        "{error}"
    );
    let said = error.to_string();
    assert!(
        said.contains("[8, 12]") && said.contains("dynamic_axes={\"x\": {0: \"batch\"}}"),
        "ONNX-4: {said}"
    );
}

#[test]
fn small_models_of_many_operations_learn_as_in_pytorch() {
    let all = parsed(include_str!("fixtures/onnx/cases.json"));
    let digit = |b: u8| (b as char).to_digit(16).expect("hexadecimal") as u8;
    for (name, wanted) in all.as_object().unwrap() {
        let hex = wanted["onnx"].as_str().unwrap().as_bytes();
        let bytes: Vec<u8> = hex.chunks_exact(2).map(|c| digit(c[0]) << 4 | digit(c[1])).collect();
        let imported = import(&bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        train(name, &bytes, imported, "loss", wanted);
    }
}

#[test]
fn what_is_frozen_keeps_its_values_and_what_is_listed_learns() {
    let learned = |options: &ImportOptions| import(CNN, options).unwrap().parameters;
    let frozen = learned(&ImportOptions { freeze: vec!["features.*".into()], ..ImportOptions::default() });
    assert_eq!(frozen, ["classes.weight", "classes.bias"]);
    let one = ImportOptions { learn: Some(vec!["classes.bias".into()]), ..ImportOptions::default() };
    assert_eq!(learned(&one), ["classes.bias"]);
    let wanted = parsed(include_str!("fixtures/onnx/cnn.json"));
    let mut imported = import(CNN, &one).unwrap();
    let loss = imported.program.find("loss").unwrap();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut imported.program, loss).unwrap();
    let mut executor = Executor::new(imported.program.clone(), Options::default()).unwrap();
    let mut store = Store::new(0);
    executor.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    let fed = feeds(&imported, &wanted);
    let fed: Vec<(&str, &Tensor)> = fed.iter().map(|(n, t)| (n.as_str(), t)).collect();
    executor.run(&mut store, &fed, &[]).unwrap();
    for (name, before) in imported.values() {
        let moved = store.get(name).unwrap() != *before;
        assert_eq!(moved, name == "classes.bias" || name.contains("running"), "{name}");
    }
    for wrong in [
        ImportOptions { learn: Some(vec!["clases.bias".into()]), ..ImportOptions::default() },
        ImportOptions { freeze: vec!["head.*".into()], ..ImportOptions::default() },
    ] {
        assert!(matches!(import(CNN, &wrong), Err(OnnxError::NoSuchWeight { .. })));
    }
}

#[test]
fn writing_back_what_was_not_changed_keeps_every_byte_of_the_content() {
    let imported = import(CNN, &ImportOptions::default()).unwrap();
    let executor = Executor::new(imported.program.clone(), Options::default()).unwrap();
    let mut store = Store::new(0);
    executor.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    let same = export(CNN, &mut store, &Limits::default()).unwrap();
    // PyTorch writes values as the last field, raw: then even the bytes are the same.
    assert_eq!(same.bytes, CNN, "ONNX-3");
    let zero = Tensor::zeros(DType::F32, &[10]);
    store.set("classes.bias", &zero).unwrap();
    let changed = export(CNN, &mut store, &Limits::default()).unwrap().bytes;
    assert_eq!(changed.len(), CNN.len());
    let differ = changed.iter().zip(CNN).filter(|(a, b)| a != b).count();
    assert!((1..=40).contains(&differ), "ONNX-3: {differ} bytes differ, ten numbers were changed");
    assert_eq!(export(MLP, &mut store, &Limits::default()), Err(OnnxError::NothingToWrite { n: 7 }));
}

#[test]
fn the_test_program_of_a_model_uses_its_statistics() {
    let wanted = parsed(include_str!("fixtures/onnx/cnn.json"));
    let imported = import(CNN, &ImportOptions::default()).unwrap();
    let test = imported.program.clone_for_test();
    let mut executor = Executor::new(test, Options::default()).unwrap();
    let mut store = Store::new(0);
    executor.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    let fed = feeds(&imported, &wanted);
    let fed: Vec<(&str, &Tensor)> = fed.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let all = executor.run(&mut store, &fed, &["scores"]).unwrap().remove(0);
    // One sample alone gives what it gives among others.
    let x = fed.iter().find(|(n, _)| *n == "x").unwrap().1.data::<f32>().unwrap();
    let one = Tensor::new(&[1, 1, 8, 8], &x[..64]).unwrap();
    let label = Tensor::new(&[1], &[0i64]).unwrap();
    let alone = executor.run(&mut store, &[("x", &one), ("label", &label)], &["scores"]).unwrap().remove(0);
    assert_eq!(alone.data::<f32>().unwrap(), &all.data::<f32>().unwrap()[..10]);
}

#[test]
fn what_was_learned_goes_into_the_file_for_prediction() {
    let wanted = parsed(include_str!("fixtures/onnx/cnn.json"));
    let mut imported = import(CNN, &ImportOptions::default()).unwrap();
    let loss = imported.program.find("loss").unwrap();
    Optimizer::new(Rule::Sgd, 0.1).minimize(&mut imported.program, loss).unwrap();
    let mut trainer = Executor::new(imported.program.clone(), Options::default()).unwrap();
    let mut store = Store::new(0);
    trainer.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    let fed = feeds(&imported, &wanted);
    let fed: Vec<(&str, &Tensor)> = fed.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for _ in 0..5 {
        trainer.run(&mut store, &fed, &[]).unwrap();
    }
    let mut tester = Executor::new(imported.program.clone_for_test(), Options::default()).unwrap();
    let here = tester.run(&mut store, &fed, &["scores"]).unwrap();

    let file = imported.export(PREDICT, &mut store, &Limits::default()).unwrap().bytes;
    let options = ImportOptions { norms: Norms::AsWritten, ..ImportOptions::default() };
    let there = import(&file, &options).unwrap();
    let mut executor = Executor::new(there.program.clone(), Options::default()).unwrap();
    let mut other = Store::new(1);
    executor.prepare(&mut other).unwrap();
    there.give(&mut other).unwrap();
    assert_eq!(executor.run(&mut other, &fed, &["scores"]).unwrap(), here);
    // A file of another model lacks something.
    let lacking = imported.export(MLP, &mut store, &Limits::default());
    assert_eq!(lacking.unwrap_err(), OnnxError::NothingToWrite { n: 7 });
    let mlp = import(MLP, &ImportOptions::default()).unwrap();
    let lacking = mlp.export(CNN, &mut store, &Limits::default());
    assert_eq!(lacking.unwrap_err(), OnnxError::NotInFile { name: "first.weight".into() });
}
