//! `phalanx bench --ddl`: AllReduce through DDL, with the options of `DDL_OPTIONS`. The last quarter of the calls counts: with `-mode p` the first ones try
//! the ways of each tier.

use super::{
    BenchError,
    fused::{TensorRow, print, timed},
};
use phalanx_collective::ddl::{Ddl, Manner};
use phalanx_core::{Rank, ReduceOp};

/// Enough for `-mode p` to try every way of two tiers, four times each, and then some.
const CALLS: u32 = 32;

pub fn run(sizes: &[u64], calls: Option<u32>, json: bool) -> Result<(), BenchError> {
    let mut ddl = Ddl::init(None, "")?;
    let calls = calls.unwrap_or(CALLS) as usize;
    let mut rows = Vec::new();
    for &bytes in sizes {
        let name = format!("bytes{bytes}");
        let mut tensor = vec![1.0f32; (bytes / 4).max(1) as usize];
        let mut times = Vec::new();
        for _ in 0..calls {
            // All begin together.
            ddl.bcast("begin", &mut [0i32])?;
            let took = timed(|| ddl.allreduce(&name, &mut tensor, ReduceOp::Average, Manner::default()))?;
            let mut slowest = [took];
            ddl.allreduce("slowest", &mut slowest, ReduceOp::Max, Manner::default())?;
            times.push(slowest[0]);
        }
        let is_right = tensor.iter().all(|x| *x == 1.0);
        assert!(is_right, "the average of ones is not one on rank {}", ddl.rank());
        let counted = times.split_off(calls - calls.div_ceil(4));
        rows.push(TensorRow::new("allreduce", ddl.size(), (1, tensor.len() * 4), counted));
    }
    if ddl.rank() == Rank::ZERO {
        print(&rows, json);
    }
    Ok(ddl.finalize()?)
}
