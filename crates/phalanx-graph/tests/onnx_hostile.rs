//! ONNX-1: whatever the bytes are, importing ends with a program or an error, and allocates little.

use crate::allocator::most_held;
use phalanx_graph::{
    Executor, Optimizer, Options, Rule, RunError, Store, Tensor, VarKind,
    onnx::{ImportOptions, Imported, Limits, OnnxError, export, import},
};
use std::cell::Cell;

const MODELS: [&[u8]; 3] = [
    include_bytes!("fixtures/onnx/mlp.onnx"),
    include_bytes!("fixtures/onnx/cnn.onnx"),
    include_bytes!("fixtures/onnx/words.onnx"),
];
/// Inputs in one run. With optimisation there is time for more.
const N_INPUTS: u64 = if cfg!(debug_assertions) { 40_000 } else { 200_000 };

thread_local! {
    /// Programs that ran to their end.
    static RAN: Cell<u64> = const { Cell::new(0) };
}

/// Repeatable randomness (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A valid model with flips, cuts, repetitions, moved pieces, and numbers larger than anybody means. Most changes keep
    /// the length, so that they reach what lies behind the decoder.
    fn tamper(&mut self, valid: &[u8]) -> Vec<u8> {
        let mut bytes = valid.to_vec();
        for _ in 0..1 + self.below(3) {
            let (at, from) = (self.below(bytes.len()), self.below(bytes.len()));
            let n = (1 + self.below(24)).min(bytes.len() - at.max(from));
            match self.below(10) {
                _ if bytes.len() < 64 => break,
                0..=2 => bytes[at] ^= 1 << self.below(8),
                3 => bytes[at] = self.next() as u8,
                4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                5 => bytes.copy_within(from..from + n, at),
                6 => bytes[at..at + n].fill(0xff),
                7 => bytes.truncate(at),
                8 => drop(bytes.drain(at..at + n)),
                _ => {
                    let again = bytes[from..from + n].to_vec();
                    drop(bytes.splice(at..at, again));
                }
            }
        }
        bytes
    }
}

/// Imports, and goes on as far as that led; says whether it became a program.
fn survives(bytes: &[u8]) -> bool {
    let options = ImportOptions::default();
    let (imported, most) = most_held(|| import(bytes, &options));
    // Decoding multiplies small messages; texts of errors and the tables of the importer come to some more.
    let bound = 64 * bytes.len() + (64 << 10);
    assert!(most <= bound, "ONNX-1: {most} bytes held for a file of {}", bytes.len());
    let Ok(mut imported) = imported else { return false };
    imported.program.verify().unwrap();
    let loss = imported.program.find(&imported.outputs[0]).unwrap();
    // Whether such a program can learn is its own affair; the attempt must end in order.
    let _ = Optimizer::new(Rule::Sgd, 0.1).minimize(&mut imported.program, loss);
    runs(&imported);
    true
}

/// Runs what was imported on two samples of everything, if it is small: no kernel panics, whatever the program is.
fn runs(imported: &Imported) {
    let program = &imported.program;
    let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
    let bytes = program.vars().fold(0usize, |sum, (_, var)| sum.saturating_add(var.sig.bytes(2)));
    if bytes > 32 << 20 {
        return;
    }
    let mut store = Store::new(0);
    let ready = executor.prepare(&mut store).and_then(|()| imported.give(&mut store));
    let feeds: Vec<(String, Tensor)> = program
        .vars()
        .filter(|(_, var)| var.kind == VarKind::Feed)
        .map(|(_, var)| (var.name.clone(), Tensor::zeros(var.sig.dtype, &var.sig.shape.at(2))))
        .collect();
    let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let ended = ready.and_then(|()| executor.run(&mut store, &feeds, &[&imported.outputs[0]]));
    RAN.set(RAN.get() + u64::from(ended.is_ok()));
    assert!(!matches!(ended, Err(RunError::Panicked { .. })), "{}", ended.unwrap_err());
}

#[test]
fn tampered_models_become_programs_or_errors() {
    let mut n_programs = 0u64;
    for seed in 0..N_INPUTS {
        let mut chance = Chance(seed);
        let bytes = chance.tamper(MODELS[seed as usize % MODELS.len()]);
        let ended = std::panic::catch_unwind(|| survives(&bytes));
        let is_program = ended.unwrap_or_else(|_| panic!("seed {seed} (the panic is above)"));
        n_programs += u64::from(is_program);
    }
    // Otherwise nothing behind the decoder was tried.
    assert!((N_INPUTS / 100..N_INPUTS).contains(&n_programs), "{n_programs} of {N_INPUTS} became programs");
    let n_ran = RAN.get();
    assert!(n_ran > n_programs / 2, "{n_ran} of {n_programs} programs ran");
}

#[test]
fn a_model_that_is_cut_anywhere_is_an_error() {
    for (i, model) in MODELS.into_iter().enumerate() {
        survives(model).then_some(()).expect("the whole model is valid");
        for n in 0..model.len() {
            // The version of the operators stands at the end, so that no part is a model.
            assert!(!survives(&model[..n]), "model {i}, cut at {n} of {}", model.len());
        }
    }
}

#[test]
fn a_cut_or_tampered_model_is_never_written_into() {
    let model = MODELS[0];
    let imported = import(model, &ImportOptions::default()).unwrap();
    let mut store = Store::new(0);
    Executor::new(imported.program.clone(), Options::default()).unwrap().prepare(&mut store).unwrap();
    imported.give(&mut store).unwrap();
    for seed in 0..N_INPUTS / 10 {
        let bytes = Chance(seed).tamper(model);
        if let Ok(exported) = export(&bytes, &mut store, &Limits::default()) {
            // Values that were kept in another form may be longer in this one.
            assert!(exported.bytes.len() <= 2 * bytes.len() + 4096, "seed {seed}");
        }
    }
}

#[test]
fn lengths_and_counts_that_lie_allocate_nothing() {
    // A graph that says it has 2^31 bytes.
    let long = [0x3a, 0xff, 0xff, 0xff, 0xff, 0x07, 0x0a];
    let (error, most) = most_held(|| import(&long, &ImportOptions::default()).unwrap_err());
    assert!(matches!(error, OnnxError::Malformed { at: 6, .. }), "{error}");
    assert!(most < 1024, "{most}");
    // A million empty nodes in two million bytes.
    let nodes: Vec<u8> = [0x0a, 0x00].repeat(1 << 20);
    let mut many = vec![0x3a, 0x80, 0x80, 0x80, 0x01];
    many.extend(nodes);
    let (error, most) = most_held(|| import(&many, &ImportOptions::default()).unwrap_err());
    assert!(matches!(error, OnnxError::TooLarge { what: "fields", .. }), "{error}");
    assert!(most < 1024, "ONNX-1: {most}");
    let limits = Limits { fields: 10, ..Limits::default() };
    let few = ImportOptions { limits, ..ImportOptions::default() };
    assert!(matches!(import(MODELS[1], &few), Err(OnnxError::TooLarge { what: "fields", limit: 10, .. })));
    let nested: Vec<u8> = [0x3a, 0x7f].repeat(64);
    assert!(import(&nested, &ImportOptions::default()).is_err());
}

/// A field of bytes.
fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag << 3 | 2);
    let mut n = bytes.len();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out.extend(bytes);
}

fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let mut node = Vec::new();
    inputs.iter().for_each(|i| put(&mut node, 1, i.as_bytes()));
    put(&mut node, 2, output.as_bytes());
    put(&mut node, 4, op.as_bytes());
    node
}

/// A model of these nodes; it has the list `s` with the one number 1000, takes `x` of `[batch]` and gives `y`.
fn model(nodes: &[Vec<u8>]) -> Vec<u8> {
    let mut graph = Vec::new();
    nodes.iter().for_each(|n| put(&mut graph, 1, n));
    let mut list = vec![0x08, 1, 0x10, 7, 0x38, 0xe8, 0x07];
    put(&mut list, 8, b"s");
    put(&mut graph, 5, &list);
    // dim_param "n" in a shape in a tensor of f32 in a type.
    let feed = [0x0a, 1, b'x', 0x12, 11, 0x0a, 9, 0x08, 1, 0x12, 5, 0x0a, 3, 0x12, 1, b'n'];
    put(&mut graph, 11, &feed);
    put(&mut graph, 12, &[0x0a, 1, b'y']);
    let mut model = Vec::new();
    put(&mut model, 7, &graph);
    put(&mut model, 8, &[0x10, 17]);
    model
}

#[test]
fn small_nodes_cannot_make_much_of_little() {
    // A thousand zeros, handed on by many nodes of a few bytes.
    let names: Vec<String> = (0..2000).map(|i| format!("a{i}")).collect();
    let mut nodes = vec![node("ConstantOfShape", &["s"], "a0")];
    for pair in names.windows(2) {
        nodes.push(node("Identity", &[&pair[0]], &pair[1]));
    }
    nodes.push(node("Identity", &["a1999"], "y"));
    let bytes = model(&nodes);
    assert!(!survives(&bytes), "ONNX-1");
    assert!(
        import(&bytes, &ImportOptions::default()).unwrap_err().to_string().contains("too many for this file")
    );
    // One node with many operands: each costs the same, however many there were before.
    let sum = model(&[node("Sum", &vec!["x"; 20_000], "y")]);
    assert!(import(&sum, &ImportOptions::default()).is_ok());
}
