//! What ranks can disagree about: every rank is told, with both sides, and the engine goes on.

use super::{floats, on};
use phalanx_collective::engine::{Engine, EngineError, EngineTensor, Request};
use phalanx_core::{DType, Rank, ReduceOp};

/// One row of the table: what the last rank submits, what all others do, and what every rank is told.
type Case = (fn() -> Request, fn() -> Request, &'static str);

fn shaped(shape: &[u64]) -> EngineTensor {
    EngineTensor::zeros(DType::F32, shape.to_vec())
}

const CASES: &[Case] = &[
    (
        || Request::allreduce(EngineTensor::zeros(DType::F64, vec![4])),
        || Request::allreduce(shaped(&[4])),
        "Mismatched data types: rank 0 has f32, but rank LAST has f64",
    ),
    (
        || Request::allgather(shaped(&[4])),
        || Request::allreduce(shaped(&[4])),
        "Mismatched operations: rank 0 has allreduce, but rank LAST has allgather",
    ),
    (
        || Request::allreduce(shaped(&[2, 2])),
        || Request::allreduce(shaped(&[4])),
        "Mismatched tensor shapes: rank 0 has [4], but rank LAST has [2, 2]",
    ),
    (
        || Request::allreduce(shaped(&[3])).adasum(),
        || Request::allreduce(shaped(&[2])).adasum(),
        "Mismatched tensor shapes: rank 0 has [2], but rank LAST has [3]",
    ),
    (
        || Request::broadcast(shaped(&[3]), Rank(0)),
        || Request::broadcast(shaped(&[2]), Rank(0)),
        "Mismatched tensor shapes: rank 0 has [2], but rank LAST has [3]",
    ),
    (
        || Request::reducescatter(shaped(&[3])),
        || Request::reducescatter(shaped(&[2])),
        "Mismatched tensor shapes: rank 0 has [2], but rank LAST has [3]",
    ),
    (
        || Request::allreduce(shaped(&[4])).scale(2.0, 1.0),
        || Request::allreduce(shaped(&[4])),
        "Mismatched prescale and/or postscale factors: rank 0 has prescale 1 and postscale 1, but rank LAST has prescale 2 and postscale 1",
    ),
    (
        || Request::allreduce(shaped(&[4])).op(ReduceOp::Max),
        || Request::allreduce(shaped(&[4])),
        "Mismatched reduction operations: rank 0 has sum, but rank LAST has max",
    ),
    (
        || Request::allgather(shaped(&[])),
        || Request::allgather(shaped(&[])),
        "rank 0 tried to allgather a tensor without dimensions; give it one, e.g. shape [1]",
    ),
    (
        || Request::allgather(shaped(&[2, 3, 4])),
        || Request::allgather(shaped(&[2, 3])),
        "Mismatched tensor shapes beyond the first dimension: rank 0 has [rows, 3, ], but rank LAST has [rows, 3, 4, ]",
    ),
    (
        || Request::alltoall(shaped(&[12, 5]), None),
        || Request::alltoall(shaped(&[12, 6]), None),
        "Mismatched tensor shapes beyond the first dimension: rank 0 has [rows, 6, ], but rank LAST has [rows, 5, ]",
    ),
    (
        || Request::broadcast(shaped(&[2]), Rank(1)),
        || Request::broadcast(shaped(&[2]), Rank(0)),
        "Mismatched root ranks: rank 0 has root 0, but rank LAST has root 1",
    ),
    (
        || Request::allreduce(shaped(&[2])).device(0),
        || Request::allreduce(shaped(&[2])),
        "Mismatched CPU/GPU device selection: rank 0 has CPU, but rank LAST has GPU",
    ),
    (
        || Request::allreduce(shaped(&[2])).compress(DType::F16),
        || Request::allreduce(shaped(&[2])),
        "Mismatched compression: rank 0 has none, but rank LAST has f16",
    ),
    (
        || Request::grouped_allreduce(vec![shaped(&[2]), shaped(&[2])]),
        || Request::grouped_allreduce(vec![shaped(&[2])]),
        "Mismatched data types: rank 0 has f32, but rank LAST has f32, f32",
    ),
];

fn check(engine: &Engine) {
    let last = engine.size() - 1;
    for round in 0..2 {
        for (i, (odd, usual, why)) in CASES.iter().enumerate() {
            let request = if engine.rank().0 == last { odd() } else { usual() };
            // A good one in between: the engine is usable, and may be in the middle of a replay.
            let good = Request::allreduce(EngineTensor::new(vec![1.0f32; 3])).name("good");
            let good = engine.submit(good).unwrap();
            let error = engine.submit(request.name("odd")).unwrap().wait().unwrap_err();
            let want = format!("odd: {}", why.replace("LAST", &last.to_string()));
            assert_eq!(error.to_string(), want, "case {i}, round {round}");
            assert!(!error.is_failure(), "nobody should retry a mistake");
            assert_eq!(floats(good), [engine.size() as f32; 3]);
        }
    }
    assert_eq!(engine.counters().failed, 2 * CASES.len() as u64);
}

#[test]
fn two_ranks_disagree() {
    on(&[2], &[], check);
}

#[test]
fn three_ranks_disagree() {
    on(&[3], &[], check);
    on(&[1, 2], &[], check);
}

#[test]
fn four_ranks_disagree() {
    on(&[4], &[], check);
    on(&[2, 2], &[], check);
}

#[test]
fn what_one_rank_can_see_to_be_wrong_is_refused_at_once() {
    on(&[2], &[], |engine| {
        let refuse = |request: Request| engine.submit(request.name("x")).unwrap_err().to_string();
        assert_eq!(
            refuse(Request::broadcast(shaped(&[1]), Rank(7))),
            "x: root 7 is not a member of the process set, which has ranks 0, 1"
        );
        assert_eq!(
            refuse(Request::reducescatter(shaped(&[]))),
            "x: reducescatter does not take a tensor without dimensions; give it one, e.g. shape [1]"
        );
        assert_eq!(
            refuse(Request::reducescatter(shaped(&[4])).op(ReduceOp::Max)),
            "x: reducescatter supports only sum and average, not max"
        );
        assert_eq!(
            refuse(Request::alltoall(shaped(&[4]), Some(vec![4]))),
            "x: splits are for 1 ranks, but the process set has 2"
        );
        assert_eq!(
            refuse(Request::alltoall(shaped(&[4]), Some(vec![4, 1]))),
            "x: splits add up to 5 rows, but the tensor has 4"
        );
        assert_eq!(
            refuse(Request::alltoall(shaped(&[3]), None)),
            "x: without splits the 3 rows must divide evenly among 2 ranks"
        );
        assert_eq!(refuse(Request::grouped_allreduce(Vec::new())), "x: a group needs at least one tensor");
        assert_eq!(
            refuse(Request::allreduce(EngineTensor::new(vec![1i32])).adasum()),
            "x: adasum is defined for floating-point tensors, not for i32"
        );
        assert_eq!(
            refuse(Request::allreduce(EngineTensor::new(vec![1i32])).compress(DType::F16)),
            "x: i32 cannot be sent as f16: compression is for f32 and f64, to f16 or bf16"
        );
        assert_eq!(
            refuse(Request::allreduce(EngineTensor::new(vec![true])).op(ReduceOp::Average)),
            "average of bool is not defined; use max for any, min for all"
        );
        assert_eq!(
            refuse(Request::barrier().set(5)),
            "process set 5 does not exist; add_process_set makes one"
        );
    });
}

#[test]
fn a_name_is_taken_until_its_handle_was_looked_at() {
    on(&[2], &[], |engine| {
        let request = || Request::allreduce(EngineTensor::new(vec![1.0f32])).name("x");
        let first = engine.submit(request()).unwrap();
        // Done, but nobody has looked.
        engine.submit(Request::barrier()).unwrap().wait().unwrap();
        let error = engine.submit(request()).unwrap_err();
        assert!(matches!(error, EngineError::DuplicateName { .. }), "{error}");
        assert_eq!(floats(first), [2.0]);
        let second = engine.submit(request()).unwrap();
        drop(second);
        engine.submit(Request::barrier()).unwrap().wait().unwrap();
        assert_eq!(
            floats(loop {
                // The dropped one may still be under way.
                if let Ok(handle) = engine.submit(request()) {
                    break handle;
                }
            }),
            [2.0]
        );
    });
}
