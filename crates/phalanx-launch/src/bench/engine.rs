//! `phalanx bench --engine`: many named tensors, one small one, and a first, negotiated step.

use super::BenchError;
use crate::table::{TextTable, left, right};
use phalanx_collective::{
    Communicator,
    engine::{Engine, EngineError, EngineTensor, Request},
};
use phalanx_core::ReduceOp;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Rounds in which the engine and the plain communicator take turns.
const ROUNDS: usize = 3;
const FIRST_TENSORS: usize = 1000;

/// Elements of the 161 parameter tensors of ResNet-50, in the order of its layers.
pub fn resnet50() -> Vec<usize> {
    let mut sizes = vec![64 * 3 * 49, 64, 64];
    let mut inputs = 64;
    for (n_blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..n_blocks {
            sizes.extend([inputs * width, width, width, width * width * 9, width, width]);
            sizes.extend([width * width * 4, width * 4, width * 4]);
            if block == 0 {
                sizes.extend([inputs * width * 4, width * 4, width * 4]);
            }
            inputs = width * 4;
        }
    }
    sizes.extend([2048 * 1000, 1000]);
    sizes
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    np: u32,
    tensors: usize,
    bytes: usize,
    buffers: &'static str,
    median_us: f64,
    min_us: f64,
    p99_us: f64,
    calls: usize,
}

/// What is measured, and its times in seconds.
struct Times {
    what: &'static str,
    tensors: usize,
    bytes: usize,
    buffers: &'static str,
    times: Vec<f64>,
}

pub fn run(mut comm: Communicator, seconds: f64, json: bool) -> Result<(), BenchError> {
    let sizes = resnet50();
    let bytes = sizes.iter().sum::<usize>() * 4;
    let row = |what, tensors, buffers, bytes| Times { what, tensors, bytes, buffers, times: Vec::new() };
    let mut rows = [
        row("flat allreduce", 1, "private", bytes),
        row("flat allreduce", 1, "arena", bytes),
        row("one by one", sizes.len(), "private", bytes),
        row("one by one", sizes.len(), "arena", bytes),
        row("named, 4 bytes", 1, "private", 4),
        row("first step", FIRST_TENSORS, "private", FIRST_TENSORS * 4),
    ];
    let each = Duration::from_secs_f64(seconds);
    for round in 0..ROUNDS {
        let mut flat = vec![1f32; bytes / 4];
        repeat(
            &mut comm,
            each,
            &mut rows[0].times,
            |comm| Ok(comm.allreduce(&mut flat, ReduceOp::Average)?),
        )?;
        drop(flat);
        let mut flat = comm.alloc::<f32>(bytes / 4)?;
        repeat(
            &mut comm,
            each,
            &mut rows[1].times,
            |comm| Ok(comm.allreduce(&mut flat, ReduceOp::Average)?),
        )?;
        drop(flat);
        let arena = sizes.iter().map(|n| comm.alloc::<f32>(*n)).collect::<Result<Vec<_>, _>>()?;
        let engine = Engine::start(comm)?;
        first_meeting(&engine, round, &mut rows[5].times)?;
        let mut tensors: Vec<EngineTensor> =
            sizes.iter().map(|n| EngineTensor::new(vec![1f32; *n])).collect();
        steps(&engine, &mut tensors, each, &mut rows[2].times)?;
        let shaped = arena.into_iter().map(|a| {
            let shape = vec![a.len() as u64];
            EngineTensor::in_arena(a, shape).expect("its own length fits")
        });
        let mut tensors: Vec<EngineTensor> = shaped.collect();
        steps(&engine, &mut tensors, each, &mut rows[3].times)?;
        drop(tensors);
        steps(&engine, &mut vec![EngineTensor::new(vec![1f32])], each, &mut rows[4].times)?;
        engine.submit(Request::barrier().name("end"))?.wait()?;
        comm = engine.shutdown()?;
    }
    if comm.rank().0 == 0 {
        print(rows.into(), comm.size(), json);
    }
    Ok(())
}

/// Calls `f` until the time is over, on all ranks equally often.
fn repeat(
    comm: &mut Communicator,
    each: Duration,
    times: &mut Vec<f64>,
    mut f: impl FnMut(&mut Communicator) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    f(comm)?;
    let start = Instant::now();
    loop {
        let mut go_on = [i32::from(start.elapsed() < each)];
        comm.broadcast(&mut go_on, phalanx_core::Rank::ZERO)?;
        if go_on == [0] {
            return Ok(());
        }
        let began = Instant::now();
        f(comm)?;
        times.push(began.elapsed().as_secs_f64());
    }
}

/// Submits all tensors one by one and waits for all, over and over.
fn steps(
    engine: &Engine,
    tensors: &mut Vec<EngineTensor>,
    each: Duration,
    times: &mut Vec<f64>,
) -> Result<(), BenchError> {
    let names: Vec<String> = (0..tensors.len()).map(|i| format!("tensor{i}")).collect();
    let is_alone = names.len() == 1;
    let mut step = |times: Option<&mut Vec<f64>>| -> Result<(), EngineError> {
        let began = Instant::now();
        let submit = |(tensor, name): (EngineTensor, &String)| {
            let request = Request::allreduce(tensor).name(name.as_str()).op(ReduceOp::Average);
            engine.submit(if is_alone { request.awaited() } else { request })
        };
        let handles = tensors.drain(..).zip(&names).map(submit).collect::<Result<Vec<_>, _>>()?;
        for handle in handles {
            tensors.extend(handle.wait()?.tensors);
        }
        times.into_iter().for_each(|t| t.push(began.elapsed().as_secs_f64()));
        Ok(())
    };
    (0..6).try_for_each(|_| step(None))?;
    // How often: the first rank's guess, so that all do the same.
    let began = Instant::now();
    step(None)?;
    let guess = (each.as_secs_f64() / began.elapsed().as_secs_f64()).clamp(3.0, 2e5) as i64;
    let agreed = engine
        .submit(Request::broadcast(EngineTensor::new(vec![guess]), phalanx_core::Rank::ZERO).name("n"))?;
    let n = agreed.wait()?.tensor().and_then(EngineTensor::into_vec::<i64>).map_or(3, |n| n[0]);
    // Back to a sequence that repeats.
    (0..6).try_for_each(|_| step(None))?;
    (0..n).try_for_each(|_| step(Some(times)))?;
    Ok(())
}

fn first_meeting(engine: &Engine, round: usize, times: &mut Vec<f64>) -> Result<(), BenchError> {
    engine.submit(Request::barrier().name("begin"))?.wait()?;
    let began = Instant::now();
    let handles = (0..FIRST_TENSORS)
        .map(|i| {
            engine.submit(Request::allreduce(EngineTensor::new(vec![1f32])).name(format!("new{round}.{i}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    for handle in handles {
        handle.wait()?;
    }
    times.push(began.elapsed().as_secs_f64());
    Ok(())
}

fn print(rows: Vec<Times>, np: u32, json: bool) {
    let table = TextTable::new(&[
        left("what", 16),
        right("tensors", 8),
        right("bytes", 12),
        right("memory", 8),
        right("min us", 12),
        right("median us", 12),
        right("p99 us", 12),
        right("calls", 8),
    ]);
    if !json {
        println!("{}", table.head());
    }
    for Times { what, tensors, bytes, buffers, mut times } in rows {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| (times[((times.len() - 1) as f64 * share) as usize] * 1e9).round() / 1e3;
        let row = Row {
            what,
            np,
            tensors,
            bytes,
            buffers,
            median_us: at(0.5),
            min_us: at(0.0),
            p99_us: at(0.99),
            calls: times.len(),
        };
        if json {
            println!("{}", serde_json::to_string(&row).unwrap_or_default());
        } else {
            let times = [row.min_us, row.median_us, row.p99_us].map(|us| format!("{us:.1}"));
            let cells = [what.to_string(), tensors.to_string(), bytes.to_string(), buffers.to_string()];
            let cells: Vec<String> = cells.into_iter().chain(times).chain([row.calls.to_string()]).collect();
            println!("{}", table.row(&cells));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn resnet50_has_its_tensors() {
        let sizes = super::resnet50();
        assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (161, 25_557_032));
    }
}
