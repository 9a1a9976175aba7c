//! Takes a model from PyTorch, trains it here on digits, and writes what it learned back into the file.
//!
//! ```text
//! cargo run --release -p phalanx-graph --example graph_onnx [-- in.onnx out.onnx [predict.onnx]]
//! ```
//!
//! Without arguments it uses the model of the tests and writes nothing. A model of your own takes `x` of `[batch, 1, 8, 8]` and
//! `label`, and gives `loss` and `scores`; `python/oracle/onnx_models.py` shows how to export one. With a third file, the same
//! model exported for prediction, what was learned is written into that one.

use phalanx_graph::{
    Executor, Optimizer, Options, Rule, Store, Tensor,
    kernel::Stream,
    onnx::{ImportOptions, Limits, import},
    saved,
};
use std::{env, error::Error, fs};

const STEPS: u64 = 200;
const SIDE: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = env::args().skip(1).collect();
    let bytes = match paths.first() {
        Some(path) => fs::read(path)?,
        None => include_bytes!("../tests/fixtures/onnx/cnn.onnx").to_vec(),
    };
    let mut model = import(&bytes, &ImportOptions::default())?;
    println!(
        "takes {:?}, gives {:?}, learns {} tensors",
        model.inputs,
        model.outputs,
        model.parameters.len()
    );
    let loss = model.program.find("loss").ok_or("the model gives no `loss`")?;
    Optimizer::new(Rule::Momentum { mu: 0.9, nesterov: false }, 0.05).minimize(&mut model.program, loss)?;

    let mut tester = Executor::new(model.program.clone_for_test(), Options::default())?;
    let mut trainer = Executor::new(model.program.clone(), Options::default())?;
    let mut store = Store::new(1);
    trainer.prepare(&mut store)?;
    model.give(&mut store)?;
    let (test_x, test_label) = digits(500, 1 << 40)?;
    for step in 0..STEPS {
        let (x, label) = digits(32, step)?;
        let out = trainer.run(&mut store, &[("x", &x), ("label", &label)], &["loss"])?;
        if step % 40 == 0 || step + 1 == STEPS {
            let seen = tester.run(&mut store, &[("x", &test_x), ("label", &test_label)], &["scores"])?;
            let right = accuracy(&seen[0], &test_label)?;
            println!("step {step:3}: loss {:.4}, test accuracy {right:.3}", out[0].to_f64()[0]);
        }
    }

    let into = paths.get(2).map(fs::read).transpose()?.unwrap_or(bytes);
    let learned = model.export(&into, &mut store, &Limits::default())?;
    println!(
        "{} initializers written back into {} bytes of ONNX",
        learned.replaced.len(),
        learned.bytes.len()
    );
    if let Some(path) = paths.get(1) {
        fs::write(path, &learned.bytes)?;
    }
    let file = saved::save(&model.program, &mut store, &["scores"])?;
    let saved = saved::load(&file)?;
    println!(
        "saved for prediction in {} bytes: takes {:?}, gives {:?}",
        file.len(),
        saved.feeds,
        saved.fetches
    );
    Ok(())
}

fn accuracy(scores: &Tensor, labels: &Tensor) -> Result<f64, Box<dyn Error>> {
    let (scores, labels) = (scores.data::<f32>()?, labels.data::<i64>()?);
    let best =
        |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i as i64);
    let width = scores.len() / labels.len().max(1);
    let right =
        scores.chunks_exact(width.max(1)).zip(labels).filter(|(row, label)| best(row) == **label).count();
    Ok(right as f64 / labels.len() as f64)
}

/// Digits of seven segments in 8 by 8 dots, moved by one and covered with noise; which, is decided by the seed.
fn digits(n: usize, seed: u64) -> Result<(Tensor, Tensor), Box<dyn Error>> {
    /// Top, upper left and right, middle, lower left and right, bottom.
    const SEGMENTS: [u8; 10] = [0x77, 0x24, 0x5d, 0x6d, 0x2e, 0x6b, 0x7b, 0x25, 0x7f, 0x6f];
    /// Row, column, height and width of each segment.
    const BARS: [[usize; 4]; 7] =
        [[0, 0, 1, 4], [0, 0, 4, 1], [0, 3, 4, 1], [3, 0, 1, 4], [3, 0, 4, 1], [3, 3, 4, 1], [6, 0, 1, 4]];
    let mut images = vec![0f32; n * SIDE * SIDE];
    let mut labels = Vec::with_capacity(n);
    for (i, image) in images.chunks_exact_mut(SIDE * SIDE).enumerate() {
        let dice = Stream::new(7, seed, i as u64);
        let digit = (dice.bits(0) % 10) as usize;
        let (down, right) = ((dice.bits(1) % 2) as usize, (dice.bits(2) % 5) as usize);
        for (_, [row, col, height, width]) in
            BARS.iter().enumerate().filter(|(s, _)| SEGMENTS[digit] >> s & 1 == 1)
        {
            for y in row + down..row + down + height {
                image[y * SIDE + col + right..][..*width].fill(1.0);
            }
        }
        for (k, pixel) in image.iter_mut().enumerate() {
            *pixel += 0.3 * dice.uniform(10 + k as u64) as f32;
        }
        labels.push(digit as i64);
    }
    Ok((Tensor::new(&[n, 1, SIDE, SIDE], &images)?, Tensor::new(&[n], &labels)?))
}
