//! Speed of the element kernels: `cargo run --release -p phalanx-core --example kernels`.

use phalanx_core::{DType, ReduceOp, kernel};
use std::{hint::black_box, time::Instant};

/// The best of several short runs, in seconds per call: other work on the machine only ever slows a run down.
fn best_s(calls: usize, mut call: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() / calls as f64
    };
    (0..12).map(run).fold(f64::INFINITY, f64::min)
}

struct Case {
    dtype: DType,
    op: ReduceOp,
    n_ranks: u32,
    n_srcs: usize,
    n_dsts: usize,
}

impl Case {
    /// Gigabytes per second of one destination.
    fn measure(&self, n_bytes: usize) -> f64 {
        let reduction =
            kernel::ReduceKernel::new(self.dtype, self.op, 1.0, 1.0, self.n_ranks).expect("has a meaning");
        let mut buffers = vec![vec![1u8; n_bytes + 64]; self.n_srcs + self.n_dsts];
        let mut pointers = buffers.iter_mut().map(|b| b.as_mut_ptr());
        let dsts: Vec<*mut u8> = pointers.by_ref().take(self.n_dsts).collect();
        let srcs: Vec<*const u8> = pointers.map(|p| p.cast_const()).collect();
        let n_elements = n_bytes / self.dtype.size();
        let calls = ((16 << 20) / n_bytes).clamp(1, 200_000);
        let seconds = best_s(calls, || {
            // SAFETY: each pointer is a buffer of its own, of more than `n_elements` elements.
            unsafe { reduction.apply_raw(black_box(&dsts), black_box(&srcs), n_elements) }
        });
        n_bytes as f64 / seconds / 1e9
    }
}

fn main() {
    println!("level {}; GB/s of one destination", kernel::level());
    println!("{:22} {:>9} {:>9} {:>9} {:>9}", "2 sources", "4 KiB", "64 KiB", "1 MiB", "16 MiB");
    let row = |label: &str, case: Case| {
        print!("{label:22}");
        for n_bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            print!(" {:9.1}", case.measure(n_bytes));
        }
        println!();
    };
    for dtype in DType::ALL {
        for (op, n_ranks) in ReduceOp::ALL.map(|op| (op, 4)).into_iter().chain([(ReduceOp::Average, 3)]) {
            if op.check(dtype, 1.0, 1.0).is_ok() {
                let label = if op == ReduceOp::Average {
                    format!("{dtype} {op}/{n_ranks}")
                } else {
                    format!("{dtype} {op}")
                };
                row(&label, Case { dtype, op, n_ranks, n_srcs: 2, n_dsts: 1 });
            }
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (n_srcs, n_dsts) in [(1, 1), (2, 2), (3, 1), (4, 1), (8, 1), (8, 8)] {
            row(
                &format!("{dtype} sum {n_srcs} to {n_dsts}"),
                Case { dtype, op: ReduceOp::Sum, n_ranks: 1, n_srcs, n_dsts },
            );
        }
    }
    for dtype in DType::ALL {
        let case = Case { dtype, op: ReduceOp::Sum, n_ranks: 1, n_srcs: 2, n_dsts: 1 };
        println!("{dtype} sum of one element: {:.1} ns", dtype.size() as f64 / case.measure(dtype.size()));
    }
}
