//! Overlap with the engine: a backward pass submits every gradient as soon as it is computed, and waits only at the end.
//! `phalanx run -np 2 -- target/release/examples/overlap`.

use phalanx::{
    Communicator, ReduceOp,
    engine::{Counters, Engine, EngineError, EngineTensor, Handle, Request},
};
use std::{error::Error, time::Instant};

const N_LAYERS: usize = 48;
const N_STEPS: usize = 30;

/// How a step treats its gradients.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Waits for each before it computes the next.
    OneByOne,
    /// Submits each and computes on.
    AsTheyCome,
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(Communicator::from_env()?)?;
    let is_teller = engine.rank().0 == 0;
    if is_teller {
        println!(
            "{} rank(s) train {N_LAYERS} layers for {N_STEPS} steps; every gradient is averaged under its own name, and checked.\n",
            engine.size()
        );
        println!(
            "  {:<34} {:>10} {:>11} {:>9} {:>8} {:>7} {:>9}",
            "gradients", "ms a step", "operations", "batches", "fused", "packed", "replayed"
        );
    }
    for (what, way) in
        [("waited for one by one", Way::OneByOne), ("submitted while computing goes on", Way::AsTheyCome)]
    {
        // One vector for each gradient, used again in every step.
        let mut model: Vec<Vec<f32>> =
            (0..N_LAYERS).flat_map(|layer| [vec![0.0; weights(layer)], vec![0.0; 256]]).collect();
        train(&engine, way, 0, &mut model)?;
        let before = engine.counters();
        let mut times_s = Vec::new();
        for step in 0..N_STEPS {
            let began = Instant::now();
            train(&engine, way, step, &mut model)?;
            times_s.push(began.elapsed().as_secs_f64());
        }
        times_s.sort_by(f64::total_cmp);
        if is_teller {
            line(what, times_s[N_STEPS / 2], before, engine.counters());
        }
    }
    if is_teller {
        println!("\n✓ every average is exact, on every rank");
        println!("  fused: batches of several tensors; packed: bytes that were copied to travel together;");
        println!(
            "  replayed: operations that ran from the recording of an earlier step, without a message between ranks"
        );
    }
    engine.shutdown()?;
    Ok(())
}

fn line(what: &str, median_s: f64, before: Counters, after: Counters) {
    println!(
        "✓ {what:<34} {:>10.2} {:>11} {:>9} {:>8} {:>4.1} MB {:>9}",
        median_s * 1e3,
        after.operations - before.operations,
        after.batches - before.batches,
        after.fused_batches - before.fused_batches,
        (after.packed_bytes - before.packed_bytes) as f64 / 1e6,
        after.replayed - before.replayed,
    );
}

/// One backward pass, the last layer first.
fn train(engine: &Engine, way: Way, step: usize, model: &mut [Vec<f32>]) -> Result<(), EngineError> {
    let mut waiting: Vec<(usize, Handle)> = Vec::new();
    for index in (0..model.len()).rev() {
        let layer = index / 2;
        let mut gradient = std::mem::take(&mut model[index]);
        compute(&mut gradient, (engine.rank().index() + layer + step) as f32);
        let part = if index.is_multiple_of(2) { "weight" } else { "bias" };
        let how = if way == Way::OneByOne { "waited" } else { "flowing" };
        let request =
            Request::allreduce(EngineTensor::new(gradient)).name(format!("{how}.layer{layer}.{part}"));
        let handle = engine.submit(request.op(ReduceOp::Average))?;
        match way {
            Way::OneByOne => model[index] = check(engine, layer, step, handle)?,
            Way::AsTheyCome => waiting.push((index, handle)),
        }
    }
    for (index, handle) in waiting {
        model[index] = check(engine, index / 2, step, handle)?;
    }
    Ok(())
}

/// Small layers and large ones.
fn weights(layer: usize) -> usize {
    if layer.is_multiple_of(4) { 200_000 } else { 4_000 }
}

/// Stands for the computation of a gradient: some work for every value, with a known result.
fn compute(gradient: &mut [f32], value: f32) {
    gradient.fill(value);
    for _ in 0..6 {
        gradient.iter_mut().for_each(|x| *x = (*x * 2.0 + 4.0) * 0.5 - 2.0);
    }
}

/// Waits for a gradient's average and looks at every value.
fn check(engine: &Engine, layer: usize, step: usize, handle: Handle) -> Result<Vec<f32>, EngineError> {
    let average = handle.wait()?.tensor().and_then(EngineTensor::into_vec::<f32>).unwrap_or_default();
    let n = engine.size() as f32;
    let want = (0..engine.size()).map(|r| (r as usize + layer + step) as f32).sum::<f32>() / n;
    assert!(!average.is_empty() && average.iter().all(|x| *x == want), "layer {layer} is not {want}");
    Ok(average)
}
