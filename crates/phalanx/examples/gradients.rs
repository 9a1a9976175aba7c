//! Averages the gradients of a ResNet-50 over all ranks, checks every value and prints how fast it went:
//! `phalanx run -np 4 -- target/release/examples/gradients`.

use phalanx::{Communicator, Error, ReduceOp};
use std::{ops::Range, time::Instant};

/// Each way is repeated and the median told: other work on the machine disturbs single runs.
const N_ROUNDS: usize = 7;
const BUCKET_VALUES: usize = (8 << 20) / size_of::<f32>();

fn main() -> Result<(), Error> {
    let comm = Communicator::from_env()?;
    let tensors = resnet50();
    let n_values = tensors.last().map_or(0, |t| t.end);
    let is_teller = comm.rank().0 == 0;
    let mut table = Table { n_ranks: comm.size(), comm, is_teller, first_s: None };
    table.head(&tensors);

    let ways: [(&str, Vec<Range<usize>>); 3] = [
        ("tensor by tensor", tensors.clone()),
        ("buckets of 8 MiB", buckets(&tensors)),
        ("all at once", std::iter::once(0..n_values).collect()),
    ];
    let mut private = vec![0f32; n_values];
    for (how, pieces) in &ways {
        table.line("private", how, &mut private, pieces)?;
    }
    drop(private);
    // Born where the ranks of a host can reach it: nothing is copied before it is reduced.
    let mut arena = table.comm.alloc::<f32>(n_values)?;
    for (how, pieces) in &ways {
        table.line("arena", how, &mut arena, pieces)?;
    }
    table.foot();
    Ok(())
}

struct Table {
    comm: Communicator,
    n_ranks: u32,
    is_teller: bool,
    /// What the other lines are compared with.
    first_s: Option<f64>,
}

impl Table {
    fn head(&self, tensors: &[Range<usize>]) {
        if !self.is_teller {
            return;
        }
        let n_hosts = self.comm.topology().n_hosts();
        let plural = |n: u32, word: &str| if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") };
        println!(
            "{} on {} average the gradients of a ResNet-50: {} tensors, {} values.\n\
             Each line is the median of {N_ROUNDS} rounds; every rank checks every value of every round.\n",
            plural(self.n_ranks, "rank"),
            plural(n_hosts, "host"),
            tensors.len(),
            tensors.last().map_or(0, |t| t.end),
        );
        println!(
            "  {:8} {:17} {:>5} {:>9} {:>10} {:>6} {:>7}  algorithm",
            "memory", "reduced", "calls", "bytes", "time", "GB/s", "speedup"
        );
    }

    fn foot(&self) {
        if self.is_teller {
            println!("\n✓ every value is the exact average, on every rank");
        }
    }

    /// Averages the pieces of the gradients, several times, and prints one line.
    fn line(
        &mut self,
        memory: &str,
        how: &str,
        gradients: &mut [f32],
        pieces: &[Range<usize>],
    ) -> Result<(), Error> {
        let mut times_s = Vec::new();
        let mut plans: Vec<&str> = Vec::new();
        for round in 0..=N_ROUNDS {
            fill(gradients, &Pattern::of_rank(self.comm.rank().0));
            self.comm.barrier()?;
            let start = Instant::now();
            for piece in pieces {
                self.comm.allreduce(&mut gradients[piece.clone()], ReduceOp::Average)?;
                if !plans.contains(&self.comm.last_plan()) {
                    plans.push(self.comm.last_plan());
                }
            }
            let took = start.elapsed().as_secs_f64();
            // The first round maps memory and opens links; it is not counted.
            if round > 0 {
                times_s.push(self.slowest(took)?);
            }
            self.check(gradients)?;
        }
        times_s.sort_by(f64::total_cmp);
        let median_s = times_s[times_s.len() / 2];
        let first_s = *self.first_s.get_or_insert(median_s);
        if self.is_teller {
            let bytes = size_of_val(gradients) as f64;
            // A rank that is alone has nothing to move.
            let (speed, gain) = match self.n_ranks {
                1 => ("-".into(), "-".into()),
                _ => (format!("{:.2}", bytes / median_s / 1e9), format!("{:.1}x", first_s / median_s)),
            };
            println!(
                "✓ {memory:8} {how:17} {:>5} {:>6.1} MB {:>7.2} ms {speed:>6} {gain:>7}  {}",
                pieces.len(),
                bytes / 1e6,
                median_s * 1e3,
                plans.join(", ")
            );
        }
        Ok(())
    }

    /// A call takes as long as its slowest rank.
    fn slowest(&mut self, took_s: f64) -> Result<f64, Error> {
        let mut time = [took_s];
        self.comm.allreduce(&mut time, ReduceOp::Max)?;
        Ok(time[0])
    }

    /// Every rank looks at every value; all must be content before the line is printed.
    fn check(&mut self, gradients: &[f32]) -> Result<(), Error> {
        let want = Pattern::average(self.n_ranks);
        let wrong = gradients.chunks(PERIOD).filter(|chunk| **chunk != want.0[..chunk.len()]).count();
        let mut all = [wrong as i64];
        self.comm.allreduce(&mut all, ReduceOp::Sum)?;
        assert_eq!(all[0], 0, "{wrong} stretches of this rank's averages are wrong");
        Ok(())
    }
}

/// Gradients repeat after this many values, a prime that no piece's size divides.
const PERIOD: usize = 61;

/// Gradients that depend on rank and place: small whole numbers, whose sums are exact in any order.
struct Pattern([f32; PERIOD]);

impl Pattern {
    fn of_rank(rank: u32) -> Pattern {
        Pattern(std::array::from_fn(|i| (3 * rank as usize + i) as f32))
    }

    fn average(n_ranks: u32) -> Pattern {
        // The sum of 3r over all ranks is 3n(n - 1)/2.
        let n = n_ranks as usize;
        Pattern(std::array::from_fn(|i| (3 * n * (n - 1) / 2 + n * i) as f32 / n as f32))
    }
}

fn fill(gradients: &mut [f32], pattern: &Pattern) {
    for chunk in gradients.chunks_mut(PERIOD) {
        chunk.copy_from_slice(&pattern.0[..chunk.len()]);
    }
}

/// Neighbouring tensors joined until a bucket is full.
fn buckets(tensors: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for tensor in tensors {
        match joined.last_mut() {
            Some(bucket) if tensor.end - bucket.start <= BUCKET_VALUES => bucket.end = tensor.end,
            _ => joined.push(tensor.clone()),
        }
    }
    joined
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
