//! Uneven data: ranks that have joined.

use super::{floats, on};
use phalanx_collective::engine::{EngineError, EngineTensor, Request};
use phalanx_core::{Rank, ReduceOp};

#[test]
fn ranks_with_more_data_go_on_and_all_learn_who_was_last() {
    for hosts in [&[4u32][..], &[2, 2]] {
        let last = on(hosts, &[], |engine| {
            let me = engine.rank().0;
            for step in 0..(me + 1) * 6 {
                let request = Request::allreduce(EngineTensor::new(vec![1.0f32; 10])).op(ReduceOp::Sum);
                let joined = (0..4).filter(|r| (r + 1) * 6 <= step).count();
                assert_eq!(floats(engine.submit(request).unwrap()), [(4 - joined) as f32; 10], "step {step}");
            }
            let last = engine.join().unwrap().wait().unwrap().last_joined;
            // Unnamed operations count from the same number again.
            let request = Request::allreduce(EngineTensor::new(vec![2.0f32; 3])).op(ReduceOp::Average);
            assert_eq!(floats(engine.submit(request).unwrap()), [2.0; 3]);
            last.unwrap()
        });
        assert_eq!(last, [Rank(3); 4]);
    }
}

/// CARRY-1: a rank that has joined makes the same calls as the others.
#[test]
fn everything_else_takes_empty_contributions_of_ranks_that_have_joined() {
    on(&[3], &[], |engine| {
        if engine.rank() == Rank(1) {
            engine.join().unwrap().wait().unwrap();
            return;
        }
        let me = engine.rank().0;
        let average = Request::allreduce(EngineTensor::new(vec![3.0f32])).op(ReduceOp::Average);
        assert_eq!(floats(engine.submit(average).unwrap()), [2.0], "the average is over all ranks");
        let gather = Request::allgather(EngineTensor::new(vec![me as f32; 2]));
        assert_eq!(floats(engine.submit(gather).unwrap()), [0.0, 0.0, 2.0, 2.0]);
        let broadcast = Request::broadcast(EngineTensor::new(vec![me as f32 + 1.0]), Rank(2));
        assert_eq!(floats(engine.submit(broadcast).unwrap()), [3.0]);
        let swap = Request::alltoall(EngineTensor::new(vec![me as f32; 3]), None);
        assert_eq!(floats(engine.submit(swap).unwrap()), [0.0, 2.0]);
        let scatter = Request::reducescatter(EngineTensor::new(vec![1.0f32; 3]));
        assert_eq!(floats(engine.submit(scatter).unwrap()), [2.0]);
        let from_joined = Request::broadcast(EngineTensor::new(vec![0.0f32]), Rank(1)).name("nothing");
        let error = engine.submit(from_joined).unwrap().wait().unwrap_err();
        assert!(matches!(&error, EngineError::Mismatch { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "nothing: rank 1 is the root but has joined, so it has no data to send"
        );
        engine.join().unwrap().wait().unwrap();
    });
}
