//! The models a training system is judged by, small: what each is, and data it can learn.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, GraphError, Init, Optimizer, Program, Rule, Schedule, Tensor, VarId,
    kernel::Stream,
    layers::{AttentionOptions, BatchNormOptions, ConvOptions, EmbeddingOptions, RnnOptions},
    op::{Arith, Binary, Pool, Reduction, SequenceOp},
};

const TIME: usize = 6;
const WORDS: usize = 12;
const TAGS: usize = 3;
const SIDE: usize = 8;

/// A model without its optimizer. The loss is called `loss`.
pub struct Built {
    pub program: Program,
    pub loss: VarId,
    /// What may be kept while the rest is computed again.
    pub checkpoints: Vec<VarId>,
}

pub struct Model {
    pub name: &'static str,
    pub build: fn(DType) -> Result<Built, GraphError>,
    pub optimizer: Optimizer,
    /// A number of samples, a function of their number and the seed.
    pub data: fn(DType, usize, u64) -> Vec<(&'static str, Tensor)>,
}

pub fn all() -> Vec<Model> {
    let decayed = Schedule::Exponential { rate: 0.4, decay: 0.7, every: 20.0, stairs: true };
    let tagger = Optimizer { rate: decayed, ..Optimizer::new(Rule::Sgd, 0.0) };
    let warm = Schedule::Warmup { steps: 5, from: 0.0, to: None, then: Box::new(Schedule::Constant(0.01)) };
    let momentum = Rule::Momentum { mu: 0.9, nesterov: false };
    let (pieces, values) = (vec![30, 50], vec![0.05, 0.02, 0.01]);
    let stepwise = Schedule::Piecewise { until: pieces, values };
    vec![
        Model {
            name: "bag of words",
            build: bag_of_words,
            optimizer: Optimizer::new(Rule::Adagrad { epsilon: 1e-6 }, 0.1),
            data: opinions,
        },
        Model {
            name: "tagger, dense table",
            build: |dtype| tagger_with(dtype, false),
            optimizer: tagger.clone(),
            data: tagged,
        },
        Model {
            name: "tagger, sparse table",
            build: |dtype| tagger_with(dtype, true),
            optimizer: tagger,
            data: tagged,
        },
        Model {
            name: "SE-ResNeXt",
            build: |dtype| se_resnext_with(dtype, 0.2),
            optimizer: Optimizer { rate: stepwise.clone(), ..Optimizer::new(momentum, 0.0) },
            data: images,
        },
        Model {
            name: "SE-ResNeXt, nothing dropped",
            build: |dtype| se_resnext_with(dtype, 0.0),
            optimizer: Optimizer { rate: stepwise, ..Optimizer::new(momentum, 0.0) },
            data: images,
        },
        Model {
            name: "transformer",
            build: |dtype| transformer_with(dtype, 0.1),
            optimizer: Optimizer { rate: warm.clone(), ..Optimizer::new(Rule::adam(), 0.0) },
            data: counted,
        },
        Model {
            name: "transformer, nothing dropped",
            build: |dtype| transformer_with(dtype, 0.0),
            optimizer: Optimizer { rate: warm, ..Optimizer::new(Rule::adam(), 0.0) },
            data: counted,
        },
        Model {
            name: "gru language model",
            build: language,
            optimizer: Optimizer::new(Rule::adam(), 0.02),
            data: counted,
        },
    ]
}

fn done(mut b: Builder, loss: VarId, checkpoints: Vec<VarId>) -> Result<Built, GraphError> {
    let loss = b.named(loss, "loss")?;
    Ok(Built { program: b.finish()?, loss, checkpoints })
}

fn words(b: &mut Builder, name: &str) -> Result<VarId, GraphError> {
    b.feed(name, DType::I64, [BATCH, Dim::Fixed(TIME)])
}

fn bag_of_words(dtype: DType) -> Result<Built, GraphError> {
    let mut b = Builder::with_dtype(dtype);
    let (ids, lengths) = (words(&mut b, "words")?, b.feed("lengths", DType::I64, [BATCH])?);
    let label = b.feed("label", DType::I64, [BATCH])?;
    let x = b.embedding(ids, WORDS, 8, EmbeddingOptions { sparse: true, padding: None })?;
    let bag = b.sequence_pool(x, SequenceOp::Sum, Some(lengths))?;
    let bag = b.map(phalanx_graph::op::Func::Tanh, bag)?;
    let h = b.fc(bag, 16, Act::Tanh)?;
    let h = b.fc(h, 16, Act::Tanh)?;
    let scores = b.fc(h, 2, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    done(b, loss, vec![bag])
}

/// Two layers of LSTM in opposite directions with direct edges, a chain of tags, and one table for words and their contexts.
fn tagger_with(dtype: DType, sparse: bool) -> Result<Built, GraphError> {
    let mut b = Builder::with_dtype(dtype);
    let (ids, context) = (words(&mut b, "words")?, words(&mut b, "context")?);
    let (tags, lengths) = (words(&mut b, "tags")?, b.feed("lengths", DType::I64, [BATCH])?);
    let table = b.parameter("emb", [WORDS, 8], Init::Normal { mean: 0.0, std: 0.5 })?;
    let options = EmbeddingOptions { sparse, padding: None };
    let (own, around) = (b.lookup(table, ids, options)?, b.lookup(table, context, options)?);
    let x = b.concat(&[own, around], 2)?;
    let first = b.fc(x, 12, Act::Tanh)?;
    let forth = RnnOptions { lengths: Some(lengths), ..RnnOptions::new(10) };
    let up = b.lstm(first, forth, None)?.all;
    let both = b.concat(&[first, up], 2)?;
    let second = b.fc(both, 12, Act::Tanh)?;
    let down = b.lstm(second, RnnOptions { reverse: true, ..forth }, None)?.all;
    let both = b.concat(&[second, down], 2)?;
    let scores = b.fc(both, TAGS, Act::None)?;
    let (costs, weights) = b.linear_chain_crf(scores, tags, Some(lengths))?;
    let path = b.crf_decoding(scores, weights, Some(lengths))?;
    b.named(path, "path")?;
    let loss = b.mean(costs)?;
    done(b, loss, vec![first, second])
}

/// A block of grouped convolutions whose channels are weighed by what is in them, beside a shortcut.
fn se_resnext_with(dtype: DType, dropout: f64) -> Result<Built, GraphError> {
    let mut b = Builder::with_dtype(dtype);
    let x = b.feed("image", dtype, [BATCH, Dim::Fixed(3), Dim::Fixed(SIDE), Dim::Fixed(SIDE)])?;
    let label = b.feed("label", DType::I64, [BATCH])?;
    let conv = |b: &mut Builder, x, options: ConvOptions, act| {
        let y = b.conv2d(x, ConvOptions { bias: false, ..options })?;
        b.batch_norm(y, BatchNormOptions { act, ..BatchNormOptions::default() })
    };
    let wide = |filters| ConvOptions { padding: [1, 1], ..ConvOptions::new(filters, 3) };
    let stem = conv(&mut b, x, wide(8), Act::Relu)?;
    let y = conv(&mut b, stem, ConvOptions::new(8, 1), Act::Relu)?;
    let y = conv(&mut b, y, ConvOptions { groups: 4, ..wide(8) }, Act::Relu)?;
    let y = conv(&mut b, y, ConvOptions::new(16, 1), Act::None)?;
    let squeezed = b.reduce(Reduction::Mean, y, &[2, 3], false)?;
    let squeezed = b.fc(squeezed, 4, Act::Relu)?;
    let excited = b.fc(squeezed, 16, Act::Sigmoid)?;
    let y = b.op1(Binary { op: Arith::Mul, axis: 0 }, &[y, excited])?;
    let short = conv(&mut b, stem, ConvOptions::new(16, 1), Act::None)?;
    let y = b.add(y, short)?;
    let block = b.act(y, Act::Relu)?;
    let y = b.pool2d(block, Pool::Mean, SIDE, SIDE)?;
    let y = b.flatten(y)?;
    let y = if dropout > 0.0 { b.dropout(y, dropout)? } else { y };
    let scores = b.fc(y, 3, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    done(b, loss, vec![stem, block])
}

/// The mean of the losses of all words before the ends.
fn of_words(b: &mut Builder, losses: VarId, lengths: VarId) -> Result<VarId, GraphError> {
    let mask = b.sequence_mask(lengths, TIME)?;
    let losses = b.mul(losses, mask)?;
    let total = b.reduce(Reduction::Sum, losses, &[], false)?;
    let count = b.reduce(Reduction::Sum, mask, &[], false)?;
    b.div(total, count)
}

fn transformer_with(dtype: DType, dropout: f64) -> Result<Built, GraphError> {
    const WIDTH: usize = 16;
    let mut b = Builder::with_dtype(dtype);
    let (ids, next) = (words(&mut b, "words")?, words(&mut b, "next")?);
    let lengths = b.feed("lengths", DType::I64, [BATCH])?;
    let x = b.embedding(ids, WORDS, WIDTH, EmbeddingOptions::default())?;
    let places = b.parameter("places", [TIME, WIDTH], Init::Normal { mean: 0.0, std: 0.1 })?;
    let mut x = b.add(x, places)?;
    let mut checkpoints = vec![x];
    for _ in 0..2 {
        let y = b.layer_norm(x, 2)?;
        let options = AttentionOptions { causal: true, lengths: Some(lengths), heads: 2, dropout };
        let y = b.attend(y, y, options)?;
        x = b.add(x, y)?;
        let y = b.layer_norm(x, 2)?;
        let y = b.fc(y, 2 * WIDTH, Act::Gelu)?;
        let y = if dropout > 0.0 { b.dropout(y, dropout)? } else { y };
        let y = b.fc(y, WIDTH, Act::None)?;
        x = b.add(x, y)?;
        checkpoints.push(x);
    }
    let x = b.layer_norm(x, 2)?;
    let scores = b.fc(x, WORDS, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, next)?;
    let loss = of_words(&mut b, losses, lengths)?;
    done(b, loss, checkpoints)
}

fn language(dtype: DType) -> Result<Built, GraphError> {
    let mut b = Builder::with_dtype(dtype);
    let (ids, next) = (words(&mut b, "words")?, words(&mut b, "next")?);
    let lengths = b.feed("lengths", DType::I64, [BATCH])?;
    let x = b.embedding(ids, WORDS, 8, EmbeddingOptions { sparse: true, padding: None })?;
    let states = b.gru(x, RnnOptions { lengths: Some(lengths), ..RnnOptions::new(16) }, None)?;
    let scores = b.fc(states.all, WORDS, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, next)?;
    let loss = of_words(&mut b, losses, lengths)?;
    done(b, loss, vec![states.all])
}

/// Numbers below a limit, by place.
struct Dice(Stream);

impl Dice {
    fn new(seed: u64, what: u64) -> Dice {
        Dice(Stream::new(seed, 77, what))
    }

    fn list(&self, n: usize, limit: usize) -> Vec<i64> {
        (0..n).map(|i| (self.0.bits(i as u64) % limit as u64) as i64).collect()
    }
}

fn whole(dims: &[usize], data: &[i64]) -> Tensor {
    Tensor::new(dims, data).unwrap()
}

fn lengths(n: usize, seed: u64) -> Tensor {
    let all: Vec<i64> = Dice::new(seed, 0).list(n, TIME).iter().map(|l| l + 1).collect();
    whole(&[n], &all)
}

/// Texts whose words are mostly of one half of the dictionary: their class.
fn opinions(_: DType, n: usize, seed: u64) -> Vec<(&'static str, Tensor)> {
    let label = Dice::new(seed, 1).list(n, 2);
    let half = WORDS / 2;
    let words = Dice::new(seed, 2).list(n * TIME, half);
    let words: Vec<i64> = words.iter().enumerate().map(|(i, w)| w + label[i / TIME] * half as i64).collect();
    vec![("words", whole(&[n, TIME], &words)), ("lengths", lengths(n, seed)), ("label", whole(&[n], &label))]
}

/// Sentences whose tags follow from each word and the one before it.
fn tagged(_: DType, n: usize, seed: u64) -> Vec<(&'static str, Tensor)> {
    let words = Dice::new(seed, 1).list(n * TIME, WORDS);
    let before = |i: usize| if i.is_multiple_of(TIME) { 0 } else { words[i - 1] };
    let context: Vec<i64> = (0..words.len()).map(before).collect();
    let tags: Vec<i64> = words.iter().zip(&context).map(|(w, c)| (w / 4 + c / 6) % TAGS as i64).collect();
    vec![
        ("words", whole(&[n, TIME], &words)),
        ("context", whole(&[n, TIME], &context)),
        ("tags", whole(&[n, TIME], &tags)),
        ("lengths", lengths(n, seed)),
    ]
}

/// Sequences that count upwards in steps of one, two or three.
fn counted(_: DType, n: usize, seed: u64) -> Vec<(&'static str, Tensor)> {
    let (start, by) = (Dice::new(seed, 1).list(n, WORDS), Dice::new(seed, 2).list(n, 3));
    let at = |i: usize, ahead: usize| {
        let steps = (i % TIME + ahead) as i64;
        (start[i / TIME] + (by[i / TIME] + 1) * steps) % WORDS as i64
    };
    let list = |ahead: usize| (0..n * TIME).map(|i| at(i, ahead)).collect::<Vec<i64>>();
    vec![
        ("words", whole(&[n, TIME], &list(0))),
        ("next", whole(&[n, TIME], &list(1))),
        ("lengths", lengths(n, seed)),
    ]
}

/// Noise in which one channel has a bright bar: its class.
fn images(dtype: DType, n: usize, seed: u64) -> Vec<(&'static str, Tensor)> {
    let label = Dice::new(seed, 1).list(n, 3);
    let noise = Stream::new(seed, 78, 2);
    let pixel = |i: usize| {
        let (sample, channel, row) = (i / (3 * SIDE * SIDE), i / (SIDE * SIDE) % 3, i / SIDE % SIDE);
        let bright = channel as i64 == label[sample] && row / 2 == 1;
        noise.uniform(i as u64) + if bright { 1.0 } else { 0.0 }
    };
    let all: Vec<f64> = (0..n * 3 * SIDE * SIDE).map(pixel).collect();
    let dims = [n, 3, SIDE, SIDE];
    let image = match dtype {
        DType::F64 => Tensor::new(&dims, &all),
        _ => Tensor::new(&dims, &all.iter().map(|&v| v as f32).collect::<Vec<f32>>()),
    };
    vec![("image", image.unwrap()), ("label", whole(&[n], &label))]
}
