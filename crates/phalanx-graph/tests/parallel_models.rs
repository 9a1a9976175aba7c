//! Models over sequences, and rewritten ones, on several replicas: PARA-1, AGAIN-1, ACCUM-1.

use crate::models::{self, Model};
use phalanx_core::DType;
use phalanx_graph::{
    BuildStrategy, ExecutionStrategy, Executor, Feed, Fetch, Options, ParallelExecutor, Program,
    ReduceStrategy, Setup, Store, Tensor, accumulate,
};
use std::collections::BTreeMap;

fn ready(model: &Model, with_checkpoints: bool) -> Program {
    let built = (model.build)(DType::F32).unwrap_or_else(|e| panic!("{}: {e}", model.name));
    let mut program = built.program;
    let checkpoints = if with_checkpoints { built.checkpoints } else { Vec::new() };
    model.optimizer.minimize_with(&mut program, built.loss, &checkpoints).unwrap();
    program
}

fn setup(reduce_strategy: ReduceStrategy, threads: usize) -> Setup {
    let build = BuildStrategy { reduce_strategy, ..BuildStrategy::default() };
    let exec = ExecutionStrategy { num_threads: threads, ..ExecutionStrategy::default() };
    Setup { build, exec, replicas: Some(3), ..Setup::default() }
}

fn bytes(store: &mut Store) -> BTreeMap<String, Vec<u8>> {
    let names: Vec<String> = store.names().map(str::to_string).collect();
    names.into_iter().map(|n| (n.clone(), store.get(&n).unwrap().bytes().to_vec())).collect()
}

/// Losses and the store after steps with 13 samples, which three replicas cannot divide.
fn train(model: &Model, program: &Program, setup: Setup, steps: u64) -> (Vec<u8>, BTreeMap<String, Vec<u8>>) {
    let mut executor = ParallelExecutor::new(program, Some("loss"), setup).unwrap();
    let mut store = Store::new(11);
    let mut losses = Vec::new();
    for step in 0..steps {
        let data = (model.data)(DType::F32, 13, step);
        let feeds: Vec<(&str, Feed)> = data.iter().map(|(n, t)| (*n, Feed::Split(t))).collect();
        let out = executor.run(&mut store, &feeds, &[Fetch::mean("loss")]).unwrap();
        losses.extend_from_slice(out[0].one().bytes());
    }
    (losses, bytes(&mut store))
}

#[test]
fn models_over_sequences_have_the_same_bits_however_they_are_run() {
    for model in models::all() {
        let program = ready(&model, false);
        let wanted = train(&model, &program, setup(ReduceStrategy::AllReduce, 1), 4);
        let other = train(&model, &program, setup(ReduceStrategy::Reduce, 3), 4);
        assert_eq!(wanted, other, "PARA-1: {}", model.name);
        let less = train(&model, &ready(&model, true), setup(ReduceStrategy::AllReduce, 2), 4);
        assert_eq!(wanted, less, "AGAIN-1: {}", model.name);
    }
}

#[test]
fn an_image_model_has_the_same_bits_whatever_graph_is_built_for_it() {
    let all = models::all();
    for name in ["SE-ResNeXt, nothing dropped", "SE-ResNeXt"] {
        let model = all.iter().find(|m| m.name == name).unwrap();
        let program = ready(model, false);
        let mut seen = 0;
        for sync_batch_norm in [false, true] {
            let mut wanted = None;
            for reduce_strategy in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
                let base = BuildStrategy { reduce_strategy, sync_batch_norm, ..BuildStrategy::default() };
                let ways = [
                    base.clone(),
                    BuildStrategy { fuse_all_reduce_ops: false, ..base.clone() },
                    BuildStrategy { bucket_bytes: 700, fuse_all_optimizer_ops: true, ..base.clone() },
                    BuildStrategy { fuse_elewise_add_act_ops: true, ..base.clone() },
                    BuildStrategy { enable_sequential_execution: true, ..base.clone() },
                    BuildStrategy { memory_optimize: false, enable_inplace: false, ..base },
                ];
                for build in ways {
                    for threads in [1, 2, 5] {
                        let told = format!("{name}: {threads} threads, {build:?}");
                        let setup = Setup { build: build.clone(), ..setup(reduce_strategy, threads) };
                        let got = train(model, &program, setup, 5);
                        seen += 1;
                        assert!(got == *wanted.get_or_insert_with(|| got.clone()), "PARA-1: {told}");
                    }
                }
            }
        }
        assert_eq!(seen, 72);
    }
}

#[test]
fn pieces_on_several_replicas_teach_what_the_batch_does_at_once() {
    let all = models::all();
    let model = all.iter().find(|m| m.name == "tagger, dense table").unwrap();
    let whole = ready(model, false);
    let mut parts = ready(model, true);
    accumulate(&mut parts, 2).unwrap();
    for way in [ReduceStrategy::AllReduce, ReduceStrategy::Reduce] {
        let mut at_once = Executor::new(whole.clone(), Options::default()).unwrap();
        let mut in_pieces = ParallelExecutor::new(&parts, Some("loss"), setup(way, 2)).unwrap();
        let (mut one, mut other) = (Store::new(6), Store::new(6));
        for step in 0..4 {
            let (a, b) = ((model.data)(DType::F32, 7, 2 * step), (model.data)(DType::F32, 7, 2 * step + 1));
            for data in [&a, &b] {
                let feeds: Vec<(&str, Feed)> = data.iter().map(|(n, t)| (*n, Feed::Split(t))).collect();
                in_pieces.run(&mut other, &feeds, &[]).unwrap();
            }
            let both: Vec<(&str, Tensor)> =
                a.iter().zip(&b).map(|(a, b)| (a.0, joined(&a.1, &b.1))).collect();
            let feeds: Vec<(&str, &Tensor)> = both.iter().map(|(n, t)| (*n, t)).collect();
            at_once.run(&mut one, &feeds, &[]).unwrap();
        }
        let names: Vec<String> = one.names().map(str::to_string).collect();
        for name in names {
            let (a, b) = (one.get(&name).unwrap().to_f64(), other.get(&name).unwrap().to_f64());
            let far = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-5, "ACCUM-1: {name} differs by {far} with {way:?}");
        }
    }
}

fn joined(a: &Tensor, b: &Tensor) -> Tensor {
    let mut dims = a.dims().to_vec();
    dims[0] += b.dims()[0];
    Tensor::new(&dims, &[a.data::<i64>().unwrap(), b.data::<i64>().unwrap()].concat()).unwrap()
}
