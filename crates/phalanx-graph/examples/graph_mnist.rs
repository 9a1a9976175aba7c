//! Trains a network of three layers to read digits, on one replica, and tests it while it trains.
//!
//! The digits are drawn here: seven segments, moved, dimmed and covered with noise.
//!
//! ```text
//! cargo run --release -p phalanx-graph --example graph_mnist
//! ```

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, Optimizer, Options, Rule, Store, Tensor, kernel::Stream,
};
use std::{error::Error, time::Instant};

const SIDE: usize = 28;
const BATCH_SIZE: usize = 64;
const STEPS: u64 = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(SIDE * SIDE)])?;
    let label = b.feed("label", DType::I64, [BATCH])?;
    let h = b.fc(image, 200, Act::Relu)?;
    let h = b.dropout(h, 0.1)?;
    let h = b.fc(h, 200, Act::Relu)?;
    let scores = b.fc(h, 10, Act::None)?;
    let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
    let loss = b.mean(losses)?;
    let loss = b.named(loss, "loss")?;
    let accuracy = b.accuracy(scores, label, 1)?;
    b.named(accuracy, "accuracy")?;
    let mut program = b.finish()?;
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss)?;

    let mut tester = Executor::new(program.clone_for_test(), Options::default())?;
    let mut trainer = Executor::new(program, Options::default())?;
    let mut store = Store::new(1);
    let (test_images, test_labels) = digits(1000, 1 << 40)?;
    let begin = Instant::now();
    for step in 0..STEPS {
        let (images, labels) = digits(BATCH_SIZE, step)?;
        let out = trainer.run(&mut store, &[("image", &images), ("label", &labels)], &["loss"])?;
        if step % 50 == 0 || step + 1 == STEPS {
            let test = [("image", &test_images), ("label", &test_labels)];
            let seen = tester.run(&mut store, &test, &["accuracy"])?;
            println!(
                "step {step:3}: loss {:.4}, test accuracy {:.3}",
                out[0].to_f64()[0],
                seen[0].to_f64()[0]
            );
        }
    }
    println!(
        "{STEPS} steps in {:.2?}, {} KiB of memory beside the parameters",
        begin.elapsed(),
        trainer.arena_bytes() / 1024
    );
    Ok(())
}

/// A number of digits; the seed decides which.
fn digits(n: usize, seed: u64) -> Result<(Tensor, Tensor), Box<dyn Error>> {
    /// Which of the seven segments each digit has: top, upper left and right, middle, lower left and right, bottom.
    const SEGMENTS: [u8; 10] = [0x77, 0x24, 0x5d, 0x6d, 0x2e, 0x6b, 0x7b, 0x25, 0x7f, 0x6f];
    /// Row, column, height and width of each segment.
    const BARS: [[usize; 4]; 7] = [
        [0, 0, 2, 10],
        [0, 0, 9, 2],
        [0, 8, 9, 2],
        [8, 0, 2, 10],
        [8, 0, 9, 2],
        [8, 8, 9, 2],
        [15, 0, 2, 10],
    ];
    let mut images = vec![0f32; n * SIDE * SIDE];
    let mut labels = Vec::with_capacity(n);
    for (i, image) in images.chunks_exact_mut(SIDE * SIDE).enumerate() {
        let dice = Stream::new(7, seed, i as u64);
        let digit = (dice.bits(0) % 10) as usize;
        let (down, right) = ((dice.bits(1) % 9) as usize, (dice.bits(2) % 16) as usize);
        let light = 0.5 + 0.5 * dice.uniform(3) as f32;
        for (_, [row, col, height, width]) in
            BARS.iter().enumerate().filter(|(s, _)| SEGMENTS[digit] >> s & 1 == 1)
        {
            for y in row + down..row + down + height {
                image[y * SIDE + col + right..][..*width].fill(light);
            }
        }
        for (k, pixel) in image.iter_mut().enumerate() {
            *pixel += 0.3 * dice.uniform(10 + k as u64) as f32;
        }
        labels.push(digit as i64);
    }
    Ok((Tensor::new(&[n, SIDE * SIDE], &images)?, Tensor::new(&[n], &labels)?))
}
