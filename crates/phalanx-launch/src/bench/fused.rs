//! `phalanx bench --fused`: DDL's AllReduceN against one AllReduce for each tensor, with the tensors of ResNet-50 that are small.

use super::{BenchError, engine::resnet50};
use crate::table::{TextTable, left, right};
use phalanx_collective::ddl::{Ddl, DdlError, Manner};
use phalanx_core::{Rank, ReduceOp};
use serde::Serialize;
use std::time::Instant;

const SMALL_BYTES: usize = 64 << 10;
/// Passes before the first that counts: names are negotiated in them.
const WARM: usize = 3;
const MAX_PASSES: usize = 1000;

/// Some tensors that travelled, and how long that took.
#[derive(Serialize)]
pub struct TensorRow {
    what: &'static str,
    np: u32,
    tensors: usize,
    bytes: usize,
    median_us: f64,
    min_us: f64,
    calls: usize,
}

/// Both take turns, so that what disturbs one disturbs the other.
pub fn run(seconds: f64, json: bool) -> Result<(), BenchError> {
    let mut ddl = Ddl::init(None, "")?;
    let sizes: Vec<usize> = resnet50().into_iter().filter(|n| n * 4 < SMALL_BYTES).collect();
    let mut tensors: Vec<Vec<f32>> = sizes.iter().map(|n| vec![1.0; *n]).collect();
    let names: Vec<String> = (0..sizes.len()).map(|i| format!("tensor{i}")).collect();
    let (mut fused, mut single) = (Vec::new(), Vec::new());
    let mut start = Instant::now();
    for pass in 0..MAX_PASSES {
        if pass == WARM {
            start = Instant::now();
        }
        let together = timed(|| {
            let mut slices: Vec<&mut [f32]> = tensors.iter_mut().map(Vec::as_mut_slice).collect();
            ddl.allreduce_n("all", &mut slices, ReduceOp::Average, Manner::default())
        })?;
        let apart = timed(|| {
            let mut all = names.iter().zip(&mut tensors);
            all.try_for_each(|(name, t)| ddl.allreduce(name, t, ReduceOp::Average, Manner::default()))
        })?;
        let is_right = tensors.iter().flatten().all(|x| *x == 1.0);
        assert!(is_right, "the average of ones is not one on rank {}", ddl.rank());
        if pass < WARM {
            continue;
        }
        fused.push(together);
        single.push(apart);
        let mut over = [i32::from(start.elapsed().as_secs_f64() > seconds)];
        ddl.bcast("over", &mut over)?;
        if over != [0] {
            break;
        }
    }
    if ddl.rank() == Rank::ZERO {
        let bytes = sizes.iter().sum::<usize>() * 4;
        let row = |what, times: Vec<f64>| TensorRow::new(what, ddl.size(), (sizes.len(), bytes), times);
        print(&[row("allreduce_n", fused), row("allreduce each", single)], json);
    }
    Ok(ddl.finalize()?)
}

pub fn timed(call: impl FnOnce() -> Result<(), DdlError>) -> Result<f64, DdlError> {
    let began = Instant::now();
    call()?;
    Ok(began.elapsed().as_secs_f64())
}

impl TensorRow {
    pub fn new(
        what: &'static str,
        np: u32,
        (tensors, bytes): (usize, usize),
        mut times: Vec<f64>,
    ) -> TensorRow {
        times.sort_by(f64::total_cmp);
        let us = |seconds: f64| (seconds * 1e9).round() / 1e3;
        let (median_us, min_us) = (us(times[(times.len() - 1) / 2]), us(times[0]));
        TensorRow { what, np, tensors, bytes, median_us, min_us, calls: times.len() }
    }
}

pub fn print(rows: &[TensorRow], json: bool) {
    let table = TextTable::new(&[
        left("what", 16),
        right("tensors", 8),
        right("bytes", 12),
        right("min us", 12),
        right("median us", 12),
        right("calls", 8),
    ]);
    if !json {
        println!("{}", table.head());
    }
    for row in rows {
        let text = if json {
            serde_json::to_string(row).unwrap_or_default()
        } else {
            let numbers = [row.tensors.to_string(), row.bytes.to_string()];
            let times = [format!("{:.2}", row.min_us), format!("{:.2}", row.median_us)];
            let cells = [row.what.to_string()].into_iter().chain(numbers).chain(times);
            table.row(&cells.chain([row.calls.to_string()]).collect::<Vec<_>>())
        };
        println!("{text}");
    }
}
