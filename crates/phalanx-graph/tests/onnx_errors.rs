//! Models that cannot be imported, each with the error that says why and what to do. They are written here, byte by byte.

use phalanx_core::DType;
use phalanx_graph::{
    Executor, Options, Store, Tensor,
    onnx::{Fault, ImportOptions, Limits, Norms, OnnxError, TensorFault, import},
};

/// A message of the format.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut value: u64) -> Message {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn number(self, tag: u64, value: i64) -> Message {
        self.varint(tag << 3).varint(value as u64)
    }

    fn bytes(self, tag: u64, bytes: &[u8]) -> Message {
        let mut out = self.varint(tag << 3 | 2).varint(bytes.len() as u64);
        out.0.extend(bytes);
        out
    }

    fn with(self, tag: u64, inside: Message) -> Message {
        self.bytes(tag, &inside.0)
    }
}

fn message() -> Message {
    Message::default()
}

/// A node; inputs and outputs are lists with blanks between.
fn node(op: &str, inputs: &str, outputs: &str, attributes: &[Message]) -> Message {
    let mut node = message();
    for input in inputs.split(' ').filter(|i| !i.is_empty()) {
        // A dash is an input that is left out.
        node = node.bytes(1, input.trim_matches('-').as_bytes());
    }
    for output in outputs.split(' ') {
        node = node.bytes(2, output.as_bytes());
    }
    node = node.bytes(3, format!("/{outputs}").as_bytes()).bytes(4, op.as_bytes());
    attributes.iter().fold(node, |node, a| node.with(5, a.clone()))
}

fn int(name: &str, value: i64) -> Message {
    message().bytes(1, name.as_bytes()).number(3, value).number(20, 2)
}

fn ints(name: &str, values: &[i64]) -> Message {
    values.iter().fold(message().bytes(1, name.as_bytes()), |m, &v| m.number(8, v)).number(20, 7)
}

fn text(name: &str, value: &str) -> Message {
    message().bytes(1, name.as_bytes()).bytes(4, value.as_bytes()).number(20, 3)
}

fn weight(name: &str, dims: &[i64], value: f32) -> Message {
    let n = dims.iter().product::<i64>() as usize;
    let raw = value.to_le_bytes().repeat(n);
    dims.iter().fold(message(), |m, &d| m.number(1, d)).number(2, 1).bytes(8, name.as_bytes()).bytes(9, &raw)
}

fn list(name: &str, values: &[i64]) -> Message {
    let m = message().number(1, values.len() as i64).number(2, 7).bytes(8, name.as_bytes());
    values.iter().fold(m, |m, &v| m.number(7, v))
}

/// An input or output; names of dimensions are symbols.
fn value(name: &str, dtype: i64, dims: &[&str]) -> Message {
    let dim = |d: &&str| match d.parse::<i64>() {
        Ok(n) => message().number(1, n),
        Err(_) => message().bytes(2, d.as_bytes()),
    };
    let shape = dims.iter().fold(message(), |m, d| m.with(1, dim(d)));
    let kind = message().with(1, message().number(1, dtype).with(2, shape));
    message().bytes(1, name.as_bytes()).with(2, kind)
}

struct Model {
    nodes: Vec<Message>,
    weights: Vec<Message>,
    inputs: Vec<Message>,
    opset: i64,
}

impl Model {
    /// Takes `x` of `[batch, 4]`, gives `y`.
    fn new(nodes: Vec<Message>, weights: Vec<Message>) -> Model {
        Model { nodes, weights, inputs: vec![value("x", 1, &["batch", "4"])], opset: 17 }
    }

    fn bytes(&self) -> Vec<u8> {
        let graph = self.nodes.iter().fold(message(), |g, n| g.with(1, n.clone()));
        let graph = self.weights.iter().fold(graph, |g, w| g.with(5, w.clone()));
        let graph = self.inputs.iter().fold(graph, |g, i| g.with(11, i.clone()));
        let graph = graph.with(12, value("y", 1, &["batch"]));
        message().number(1, 8).with(7, graph).with(8, message().number(2, self.opset)).0
    }

    fn error(&self) -> OnnxError {
        import(&self.bytes(), &ImportOptions::default()).unwrap_err()
    }

    /// What the node that fails says.
    fn fault(&self) -> Fault {
        match self.error() {
            OnnxError::Node { why, .. } => *why,
            other => panic!("{other}"),
        }
    }
}

#[test]
fn operations_that_are_not_known_are_listed_all_at_once() {
    let nodes = vec![
        node("RNN", "x", "a", &[]),
        node("GridSample", "a", "b", &[]),
        node("RNN", "b", "c", &[]),
        node("Relu", "c", "d", &[]),
        node("Loop", "x", "nobody", &[]),
        node("Einsum", "d", "y", &[]),
    ];
    let error = Model::new(nodes, vec![]).error();
    let OnnxError::Unknown(all) = &error else { panic!("{error}") };
    let ops: Vec<(&str, usize)> = all.iter().map(|u| (u.op.as_str(), u.nodes.len())).collect();
    assert_eq!(
        ops,
        [("Einsum", 1), ("GridSample", 1), ("RNN", 2)],
        "ONNX-2, and what no output needs is nobody's loss"
    );
    assert!(error.to_string().contains("RNN (2 times: `/a`, `/c`)"), "{error}");
}

#[test]
fn what_a_file_says_of_itself_is_checked() {
    let relu = || vec![node("Relu", "x", "y", &[])];
    assert!(import(&Model::new(relu(), vec![]).bytes(), &ImportOptions::default()).is_ok());
    let old = Model { opset: 9, ..Model::new(relu(), vec![]) };
    assert!(old.error().to_string().contains("operator set 9"), "{}", old.error());
    let twice = Model::new(vec![node("Relu", "x", "y", &[]), node("Tanh", "x", "y", &[])], vec![]);
    assert_eq!(twice.error(), OnnxError::Twice { name: "y".into() });
    let nowhere = Model::new(vec![node("Relu", "z", "y", &[])], vec![]);
    assert_eq!(nowhere.fault(), Fault::Undefined { name: "z".into() });
    let symbols = Model { inputs: vec![value("x", 1, &["batch", "time"])], ..Model::new(relu(), vec![]) };
    assert!(symbols.error().to_string().contains("`time`, but the batch is `batch`"), "{}", symbols.error());
    let half = Model { inputs: vec![value("x", 10, &["batch"])], ..Model::new(relu(), vec![]) };
    assert!(half.error().to_string().contains("element type number 10"), "{}", half.error());
    let zero = Model { inputs: vec![value("x", 1, &["batch", "0"])], ..Model::new(relu(), vec![]) };
    assert!(zero.error().to_string().contains("size 0"), "{}", zero.error());
    assert_eq!(import(&[], &ImportOptions::default()).unwrap_err(), OnnxError::NoGraph);
    let limits = Limits { bytes: 16, ..Limits::default() };
    let long =
        import(&Model::new(relu(), vec![]).bytes(), &ImportOptions { limits, ..ImportOptions::default() });
    assert!(matches!(long, Err(OnnxError::TooLarge { what: "bytes", limit: 16, .. })), "ONNX-1");
}

#[test]
fn values_in_other_files_are_refused_with_the_way_out() {
    let external = weight("w", &[4], 1.0).number(14, 1);
    let model = Model::new(vec![node("Add", "x w", "y", &[])], vec![external]);
    assert_eq!(model.error(), OnnxError::Tensor { name: "w".into(), why: TensorFault::External });
    assert!(model.error().to_string().contains("external_data=False"));
    let short = message().number(1, 5).number(2, 1).bytes(8, b"w").bytes(9, &[0; 16]);
    let model = Model::new(vec![node("Add", "x w", "y", &[])], vec![short]);
    let why = TensorFault::Length { wanted: 20, got: 16 };
    assert_eq!(model.error(), OnnxError::Tensor { name: "w".into(), why });
}

#[test]
fn nodes_that_cannot_be_kept_to_their_word_say_which_and_why() {
    let one = |n: Message, weights: Vec<Message>| Model::new(vec![n], weights);
    let baked = one(node("Reshape", "x s", "y", &[]), vec![list("s", &[8, 4])]);
    assert!(matches!(baked.fault(), Fault::Baked { .. }), "ONNX-4: {}", baked.error());
    let said = baked.error().to_string();
    assert!(said.contains("node 0 `/y` (Reshape)") && said.contains("[batch, 4] the shape [8, 4]"), "{said}");
    let one_sample = Model::new(
        vec![node("Gather", "x i", "y", &[int("axis", 0)])],
        vec![message().number(2, 7).bytes(8, b"i").number(7, 0)],
    );
    assert_eq!(one_sample.fault(), Fault::Batch("one sample"));
    let perm = one(node("Transpose", "x", "y", &[ints("perm", &[0, 0])]), vec![]);
    assert!(matches!(perm.fault(), Fault::Attribute { name: "perm", .. }));
    let axis = one(node("Softmax", "x", "y", &[int("axis", 7)]), vec![]);
    assert!(
        axis.error().to_string().contains("`axis`: wants an axis of the input, got 7 of 2"),
        "{}",
        axis.error()
    );
    let far = one(node("Softmax", "x", "y", &[int("axis", i64::MIN)]), vec![]);
    assert!(matches!(far.fault(), Fault::Attribute { name: "axis", .. }));
    let data = one(node("Reshape", "x x", "y", &[]), vec![]);
    assert_eq!(data.fault(), Fault::NotConstant { slot: 1 });
    let pair = one(node("Add", "x w", "y", &[]), vec![weight("w", &[3], 1.0)]);
    assert!(matches!(pair.fault(), Fault::Pair { .. }));
    let missing = one(node("MatMul", "x", "y", &[]), vec![]);
    assert_eq!(missing.fault(), Fault::Missing { slot: 1 });
    let lossy = one(node("SoftmaxCrossEntropyLoss", "x x", "y", &[text("reduction", "median")]), vec![]);
    assert!(lossy.error().to_string().contains("SoftmaxCrossEntropyLoss"), "{}", lossy.error());
    let images = one(node("MaxPool", "x", "y", &[ints("kernel_shape", &[2, 2])]), vec![]);
    assert!(images.error().to_string().contains("images [n, c, h, w]"), "{}", images.error());
}

#[test]
fn huge_attributes_are_refused_before_arithmetic() {
    for (name, values) in [
        ("pads", [i64::MAX; 4].as_slice()),
        ("strides", [i64::MAX, 1].as_slice()),
        ("dilations", [i64::MIN, 1].as_slice()),
        ("kernel_shape", [0, 0].as_slice()),
    ] {
        let mut model = Model::new(vec![node("AveragePool", "x", "y", &[ints(name, values)])], vec![]);
        model.inputs = vec![value("x", 1, &["batch", "1", "8", "8"])];
        assert!(matches!(model.error(), OnnxError::Node { .. }), "{name}: {}", model.error());
    }
    let wide = Model {
        inputs: vec![value("x", 1, &["batch", "2147483648", "2147483648", "2147483648"])],
        ..Model::new(vec![node("Relu", "x", "y", &[])], vec![])
    };
    assert!(matches!(wide.error(), OnnxError::Graph(_)), "{}", wide.error());
}

#[test]
fn norms_in_evaluation_mode_are_refused_kept_or_set_to_learn() {
    let weights = ["s", "b", "m", "v"].map(|name| weight(name, &[4], 1.0)).to_vec();
    let model = Model::new(vec![node("BatchNormalization", "x s b m v", "y", &[])], weights);
    assert_eq!(model.fault(), Fault::FixedNorm);
    assert!(model.error().to_string().contains("training=torch.onnx.TrainingMode.TRAINING"));
    let kept = |norms| import(&model.bytes(), &ImportOptions { norms, ..ImportOptions::default() }).unwrap();
    let ops = |norms| kept(norms).program.ops().map(|(_, op)| op.name()).collect::<Vec<_>>();
    assert_eq!((ops(Norms::AsWritten), ops(Norms::Learn)), (vec!["batch_norm_fixed"], vec!["batch_norm"]));
    assert_eq!(kept(Norms::Learn).parameters, ["s", "b"]);
}

#[test]
fn dropout_drops_in_training_and_not_in_tests() {
    let ratio = message().number(2, 1).bytes(8, b"r").bytes(9, &0.5f32.to_le_bytes());
    let training = message().number(2, 9).bytes(8, b"t").bytes(9, &[1]);
    let model = Model::new(vec![node("Dropout", "x r t", "y mask", &[])], vec![ratio, training]);
    let imported = import(&model.bytes(), &ImportOptions::default()).unwrap();
    assert!(imported.parameters.is_empty(), "a rate is no weight");
    let x = Tensor::new(&[200, 4], &[1f32; 800]).unwrap();
    let run = |program| {
        let mut executor = Executor::new(program, Options::default()).unwrap();
        executor.run(&mut Store::new(1), &[("x", &x)], &["y"]).unwrap().remove(0).to_f64()
    };
    let dropped = run(imported.program.clone()).iter().filter(|v| **v == 0.0).count();
    assert!((300..500).contains(&dropped), "{dropped} of 800");
    assert_eq!(run(imported.program.clone_for_test()), [1.0; 800]);
}

#[test]
fn outputs_have_their_names_even_if_nothing_computes_them() {
    let model = Model::new(vec![node("Identity", "w", "y", &[])], vec![weight("w", &[2], 3.0)]);
    let imported = import(&model.bytes(), &ImportOptions::default()).unwrap();
    let mut executor = Executor::new(imported.program.clone(), Options::default()).unwrap();
    let mut store = Store::new(0);
    executor.prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    assert_eq!(executor.run(&mut store, &[], &["y"]).unwrap()[0], Tensor::new(&[2], &[3f32; 2]).unwrap());
    assert_eq!(imported.program.sig(imported.program.find("y").unwrap()).dtype, DType::F32);
}
