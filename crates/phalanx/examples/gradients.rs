//! Averages the gradients of a ResNet-50 over all ranks, checks every value and prints how fast it went:
//! `phalanx run -np 4 -- target/release/examples/gradients`.

use phalanx::{Communicator, Error, ReduceOp};
use std::{ops::Range, time::Instant};

/// Each way is repeated and the median told: other work on the machine disturbs single runs.
const N_ROUNDS: usize = 7;

fn main() -> Result<(), Error> {
    let mut comm = Communicator::from_env()?;
    let tensors = resnet50();
    let n_values = tensors.last().map_or(0, |t| t.end);
    let bytes = n_values * size_of::<f32>();
    let is_teller = comm.rank().0 == 0;
    if is_teller {
        println!(
            "{} ranks on {} host(s) average the {} gradient tensors of a ResNet-50: {n_values} values, {:.1} MB a rank\n",
            comm.size(),
            comm.topology().n_hosts(),
            tensors.len(),
            bytes as f64 / 1e6
        );
        println!("  {:<44} {:>9}  {:>11}  {:<14}", "what", "time", "GB/s a rank", "algorithm");
    }

    let one_by_one = || tensors.iter().cloned();
    let largest = tensors.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let flat = || std::iter::once(0..n_values);
    let buckets = || buckets(&tensors, (8 << 20) / size_of::<f32>());

    let mut private = vec![0f32; n_values];
    let mut bench = Bench { comm: &mut comm, is_teller };
    bench.line("private memory, tensor by tensor", &mut private, one_by_one)?;
    bench.line("private memory, in buckets of 8 MiB", &mut private, buckets)?;
    bench.line("private memory, all at once", &mut private, flat)?;
    drop(private);

    let mut arena = bench.comm.alloc::<f32>(n_values)?;
    let place = if arena.is_shared() { "arena memory" } else { "own memory" };
    bench.line(&format!("{place}, tensor by tensor"), &mut arena, one_by_one)?;
    bench.line(&format!("{place}, in buckets of 8 MiB"), &mut arena, buckets)?;
    bench.line(&format!("{place}, all at once"), &mut arena, flat)?;
    drop(arena);

    if is_teller {
        println!("\n  ✓ every value on every rank is the average; the largest tensor has {largest} values");
    }
    Ok(())
}

struct Bench<'a> {
    comm: &'a mut Communicator,
    is_teller: bool,
}

impl Bench<'_> {
    /// Averages the pieces of the gradients, several times, and prints one line.
    fn line<I: Iterator<Item = Range<usize>>>(
        &mut self,
        what: &str,
        gradients: &mut [f32],
        pieces: impl Fn() -> I,
    ) -> Result<(), Error> {
        let mut seconds = Vec::new();
        let mut plans: Vec<&str> = Vec::new();
        for round in 0..=N_ROUNDS {
            fill(gradients, self.comm.rank().0);
            self.comm.barrier()?;
            let start = Instant::now();
            for piece in pieces() {
                self.comm.allreduce(&mut gradients[piece], ReduceOp::Average)?;
                if !plans.contains(&self.comm.last_plan()) {
                    plans.push(self.comm.last_plan());
                }
            }
            let took = start.elapsed().as_secs_f64();
            // The first round maps memory and opens links; it is not counted.
            if round > 0 {
                seconds.push(self.slowest(took)?);
            }
            self.check(gradients)?;
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        if self.is_teller {
            let speed = size_of_val(gradients) as f64 / median / 1e9;
            println!("✓ {what:<44} {:>6.1} ms  {speed:>11.2}  {:<14}", median * 1e3, plans.join(", "));
        }
        Ok(())
    }

    /// A call takes as long as its slowest rank.
    fn slowest(&mut self, took: f64) -> Result<f64, Error> {
        let mut time = [took];
        self.comm.allreduce(&mut time, ReduceOp::Max)?;
        Ok(time[0])
    }

    /// Every rank looks at every value; all must agree before the line is printed.
    fn check(&mut self, gradients: &[f32]) -> Result<(), Error> {
        let n = self.comm.size();
        let wrong = gradients.iter().enumerate().filter(|&(i, &g)| g != average(i, n)).count();
        let mut all = [wrong as i64];
        self.comm.allreduce(&mut all, ReduceOp::Sum)?;
        assert_eq!(all[0], 0, "{wrong} of this rank's {} averages are wrong", gradients.len());
        Ok(())
    }
}

/// A gradient that depends on rank and place: small whole numbers, whose sums are exact in any order.
fn value(rank: u32, i: usize) -> f32 {
    (rank as usize * 3 + i % 61) as f32
}

fn fill(gradients: &mut [f32], rank: u32) {
    gradients.iter_mut().enumerate().for_each(|(i, g)| *g = value(rank, i));
}

fn average(i: usize, n_ranks: u32) -> f32 {
    // The sum of 3r over all ranks is 3n(n - 1)/2.
    let n = n_ranks as usize;
    (3 * n * (n - 1) / 2 + n * (i % 61)) as f32 / n as f32
}

/// Neighbouring tensors joined until a bucket is full.
fn buckets(tensors: &[Range<usize>], n_values: usize) -> impl Iterator<Item = Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for tensor in tensors {
        match joined.last_mut() {
            Some(bucket) if tensor.end - bucket.start <= n_values => bucket.end = tensor.end,
            _ => joined.push(tensor.clone()),
        }
    }
    joined.into_iter()
}

/// Where each parameter tensor of a ResNet-50 lies in one flat vector: convolutions without bias, two vectors for each
/// normalisation, and the last layer.
fn resnet50() -> Vec<Range<usize>> {
    let mut sizes = Vec::new();
    let convolution = |sizes: &mut Vec<usize>, from: usize, to: usize, kernel: usize| {
        sizes.extend([from * to * kernel * kernel, to, to]);
    };
    convolution(&mut sizes, 3, 64, 7);
    let mut channels = 64;
    for (n_blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..n_blocks {
            convolution(&mut sizes, channels, width, 1);
            convolution(&mut sizes, width, width, 3);
            convolution(&mut sizes, width, 4 * width, 1);
            if block == 0 {
                convolution(&mut sizes, channels, 4 * width, 1);
            }
            channels = 4 * width;
        }
    }
    sizes.extend([channels * 1000, 1000]);
    assert_eq!((sizes.len(), sizes.iter().sum()), (161, 25_557_032usize), "the published shape");
    let mut end = 0;
    let place = |n| {
        end += n;
        end - n..end
    };
    sizes.into_iter().map(place).collect()
}
