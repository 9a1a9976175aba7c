//! Drafts of all layers, for inputs that fit.

use super::*;
use crate::{
    ir::{BATCH, GraphError},
    layers::{Act, Builder, RnnOptions},
    op::{Pool, SequenceOp},
};
use phalanx_core::DType;

fn f32(dims: &[usize]) -> Sig {
    let dims = [BATCH].into_iter().chain(dims.iter().map(|&n| n.into()));
    Sig::dense(DType::F32, Shape(dims.collect()))
}

fn i64(dims: &[usize]) -> Sig {
    Sig { dtype: DType::I64, ..f32(dims) }
}

/// One of each kind at least, as JSON, with its inputs.
fn layers() -> Vec<(&'static str, Vec<Sig>)> {
    let lengths = || i64(&[]);
    vec![
        (r#"{"Accuracy":{"k":2}}"#, vec![f32(&[6]), i64(&[1])]),
        (r#"{"Activation":{"act":"elu"}}"#, vec![f32(&[6])]),
        (
            r#"{"Attention":{"heads":2,"causal":false,"mask":true,"ragged":true,"dropout":[0.5,3]}}"#,
            vec![f32(&[5, 8]), f32(&[3, 6]), Sig::dense(DType::F32, [5, 3]), lengths()],
        ),
        (
            r#"{"BatchNorm":{"epsilon":1e-5,"momentum":0.9,"fixed":false,"act":"relu"}}"#,
            vec![f32(&[4, 9, 9])],
        ),
        (r#"{"BatchNorm":{"epsilon":1e-5,"momentum":0.9,"fixed":true,"act":null}}"#, vec![f32(&[4])]),
        (
            r#"{"Conv":{"filters":6,"kernel":[3,3],"stride":[1,1],"padding":[0,0],"dilation":[1,1],"groups":2,
                "bias":true,"act":"softmax"}}"#,
            vec![f32(&[4, 9, 9])],
        ),
        (r#"{"Crf":{"begin":"Xavier","ragged":true}}"#, vec![f32(&[5, 8]), i64(&[5, 1]), lengths()]),
        (
            r#"{"CrfDecoding":{"label":true,"ragged":true}}"#,
            vec![f32(&[5, 8]), Sig::dense(DType::F32, [10, 8]), i64(&[5, 1]), lengths()],
        ),
        (r#"{"Dropout":{"probability":0.5,"stream":0,"downscale":true,"testing":false}}"#, vec![f32(&[6])]),
        (
            r#"{"Embedding":{"height":9,"width":4,"sparse":true,"padding":2,"squeeze":true,"begin":"Xavier"}}"#,
            vec![i64(&[7, 1])],
        ),
        (r#"{"Fc":{"size":3,"flatten":1,"bias":true,"act":"tanh"}}"#, vec![f32(&[6]), f32(&[2, 4])]),
        (r#"{"Huber":{"delta":1.5}}"#, vec![f32(&[6])]),
        (r#"{"LayerNorm":{"axis":2,"epsilon":1e-5,"act":"relu"}}"#, vec![f32(&[5, 8])]),
        (r#"{"Pool":{"op":"Max","kernel":null,"stride":[1,1],"padding":[0,0]}}"#, vec![f32(&[4, 9, 9])]),
        (
            r#"{"ProjectedGru":{"size":9,"bias":true,"reverse":false,"first":true,"ragged":true,"origin":false,
                "gate":"Sigmoid","candidate":"Relu"}}"#,
            vec![f32(&[5, 9]), f32(&[3]), lengths()],
        ),
        (
            r#"{"ProjectedLstm":{"size":8,"bias":"Peepholes","reverse":true,"first":[false,true],"ragged":true,
                "gate":"Sigmoid","cell":"Tanh","candidate":"Identity"}}"#,
            vec![f32(&[5, 8]), f32(&[2]), lengths()],
        ),
        (
            r#"{"Recurrent":{"cell":"Lstm","size":8,"reverse":true,"first":[false,true],"ragged":true}}"#,
            vec![f32(&[5, 8]), f32(&[2]), lengths()],
        ),
        (
            r#"{"Recurrent":{"cell":"Gru","size":6,"reverse":false,
                "first":[true,false],"ragged":true}}"#,
            vec![f32(&[5, 8]), f32(&[2]), lengths()],
        ),
        (r#"{"SequencePool":{"op":"Sum","by_root":true,"ragged":true}}"#, vec![f32(&[5]), lengths()]),
        (r#"{"SequenceSoftmax":{}}"#, vec![f32(&[5, 1]), lengths()]),
        (r#"{"Stack":{"axis":1}}"#, vec![f32(&[5]), f32(&[5])]),
    ]
}

/// Adds what an item gives to the element types and shapes of all values.
fn follow(item: &DraftItem, inputs: &[Sig], made: &[Vec<Sig>]) -> Vec<Sig> {
    let find = |value: &DraftValue| match *value {
        DraftValue::Input(input) => inputs[input].clone(),
        DraftValue::Made(item, output) => made[item][output].clone(),
    };
    match item {
        DraftItem::Parameter { shape, .. } | DraftItem::State { shape, .. } => {
            vec![Sig::dense(DType::F32, shape.clone())]
        }
        DraftItem::Op { kind, inputs, .. } | DraftItem::Write { kind, inputs, .. } => {
            let taken: Vec<Sig> = inputs.iter().map(find).collect();
            kind.operator().infer(&taken).expect("operations of a draft fit together")
        }
    }
}

/// LAYER-1, and operations that fit together, in a draft of every kind.
#[test]
fn items_take_what_was_made_before_them() {
    let mut kinds = std::collections::BTreeSet::new();
    for (text, inputs) in layers() {
        let layer: LayerKind = serde_json::from_str(text).unwrap();
        kinds.insert(format!("{layer:?}").split('(').next().unwrap_or_default().to_string());
        let draft = layer.draft(&inputs).unwrap();
        let mut made = Vec::new();
        for item in &draft.items {
            // An index out of bounds would be a value that is not there yet.
            let outputs = follow(item, &inputs, &made);
            if let DraftItem::Write { outputs: written, .. } = item {
                assert_eq!(written.len(), outputs.len(), "{text}");
            }
            made.push(outputs);
        }
        for value in &draft.outputs {
            let DraftValue::Made(item, output) = *value else { panic!("{text} gives its input") };
            assert!(output < made[item].len(), "{text}");
        }
    }
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), LayerKind::KINDS);
}

/// The text names the layer and the variable as the user knows them.
#[test]
fn faults_are_told_in_words_of_the_caller() {
    let told = |layer: LayerKind, sig: Sig| layer.draft(&[sig]).unwrap_err().tell("it", &["`x`".to_string()]);
    let fc = |size| LayerKind::Fc(FcLayer { size, flatten: 1, bias: true, act: Some("bend".into()) });
    assert_eq!(told(fc(3), f32(&[])), "it: `x` has no dimension 1 to take from");
    assert_eq!(told(fc(-1), f32(&[6])), "it: size must be a number from 0, got -1");
    assert!(
        told(fc(3), f32(&[6])).starts_with("there is no activation 'bend'; choose one of softmax, relu,")
    );
    let pool = PoolLayer { op: Pool::Max, kernel: None, stride: [1, 1], padding: [0, 0] };
    assert_eq!(told(LayerKind::Pool(pool), f32(&[4, 9])), "it: `x` has no axis 3");
    let norm = LayerNormLayer { axis: 0, epsilon: 1e-5, act: None };
    let text = "it: axis 0 of `x` depends on the batch; it must have a fixed size";
    assert_eq!(told(LayerKind::LayerNorm(norm), f32(&[4])), text);
    let pool = SequencePoolLayer { op: SequenceOp::Sum, by_root: false, ragged: false };
    let text = "it takes sequences [n, time, width], got `x`";
    assert_eq!(told(LayerKind::SequencePool(pool), f32(&[4])), text);
}

/// An error of a layer has the line of the call, wherever in the layer it was found.
#[test]
fn faults_have_the_line_of_the_call() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH]).unwrap();
    let faults = [
        (line!(), b.fc(x, 3, Act::Relu).unwrap_err()),
        (line!(), b.attention(x, 2, None).unwrap_err()),
        (line!(), b.lstm(x, RnnOptions::new(3), None).unwrap_err()),
    ];
    for (line, error) in faults {
        let GraphError::Layer { site, text, .. } = &error else { panic!("{error}") };
        assert_eq!((site.file().ends_with("draft/tests.rs"), site.line()), (true, line), "{error}");
        assert!(text.contains("`x` f32[batch]"), "{error}");
    }
    let y = b.feed("y", DType::I64, [BATCH, 6.into()]).unwrap();
    let (line, error) = (line!(), b.fc(y, 3, Act::None).unwrap_err());
    let GraphError::Misfit { site, .. } = &error else { panic!("{error}") };
    assert_eq!((site.file().ends_with("draft/tests.rs"), site.line()), (true, line), "{error}");
}
