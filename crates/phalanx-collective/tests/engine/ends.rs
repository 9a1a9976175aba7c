//! How engines end: in order, by somebody else's doing, and again and again.

use super::floats;
use crate::support::run_owners;
use phalanx_collective::engine::{Engine, EngineError, EngineTensor, Request};
use phalanx_core::Rank;
use std::time::{Duration, Instant};

#[test]
fn a_shutdown_answers_everything_that_waits_and_names_who_did_it() {
    for hosts in [&[3u32][..], &[1, 2]] {
        run_owners(hosts, &[], |comm| {
            let engine = Engine::start(comm).unwrap();
            for _ in 0..5 {
                let request = Request::allreduce(EngineTensor::new(vec![1.0f32])).name("x");
                assert_eq!(floats(engine.submit(request).unwrap()), [3.0]);
            }
            if engine.rank() == Rank(1) {
                engine.shutdown().unwrap();
                return;
            }
            let waiting: Vec<_> = (0..10)
                .filter_map(|i| {
                    let request = Request::allreduce(EngineTensor::new(vec![1.0f32])).name(format!("y{i}"));
                    engine.submit(request).ok()
                })
                .collect();
            let deadline = Instant::now() + Duration::from_secs(20);
            for handle in waiting {
                let error = handle.wait_until(deadline).expect("it is answered").unwrap_err();
                assert!(matches!(error, EngineError::ShutDown { rank: Rank(1) }), "{error}");
                assert!(error.is_failure());
            }
            let refused = engine.submit(Request::barrier()).and_then(|h| h.wait().map(|_| ())).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "rank 1 has shut down its engine, which ends the engines of all ranks"
            );
        });
    }
}
