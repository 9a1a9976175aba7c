//! Ranks on which the system starts no more threads: nobody waits for them, and nothing of an engine that could not start is left.

use super::floats;
use crate::support::run_owners;
use phalanx_collective::engine::{Engine, EngineOptions, EngineTensor, Request};
use std::sync::Arc;

const NO_THREAD: &str = "Resource temporarily unavailable (os error 11)";

#[test]
fn a_set_that_one_member_cannot_serve_is_made_nowhere_and_the_engine_goes_on() {
    for hosts in [&[3u32][..], &[2, 1]] {
        let told = run_owners(hosts, &[], |comm| {
            let mut options = EngineOptions::from_config(comm.world().config());
            // Enough for the engine itself.
            options.most_threads = (comm.rank().0 == 1).then_some(2);
            let engine = Engine::start_with(comm, options).unwrap();
            let why = engine.add_process_set(&[0, 1]).unwrap_err().to_string();
            assert_eq!(engine.process_sets().len(), 1, "MOVER-1");
            let sum =
                floats(engine.submit(Request::allreduce(EngineTensor::new(vec![1.0f32])).name("x")).unwrap());
            assert_eq!(sum, [3.0]);
            let set = engine.add_process_set(&[0, 2]).unwrap();
            if engine.rank().0 != 1 {
                let request = Request::allreduce(EngineTensor::new(vec![1.0f32])).set(set);
                assert_eq!(floats(engine.submit(request).unwrap()), [2.0]);
            }
            engine.submit(Request::barrier().name("before the end")).unwrap().wait().unwrap();
            (set, why)
        });
        let why = format!("rank 1 cannot start a thread for the process set [0, 1]: {NO_THREAD}");
        assert_eq!(told, vec![(1, why); 3], "MOVER-1");
    }
}

#[test]
fn an_engine_that_cannot_start_leaves_nothing_behind_and_everybody_is_told() {
    let gave_up = format!("rank 1 gave up: cannot start a thread: {NO_THREAD}");
    let no_set = |list: &str| format!("rank 1 cannot start a thread for the process set {list}: {NO_THREAD}");
    // Movers of both sets, the control thread, the mover of all ranks.
    let cases = [no_set("[0, 1]"), no_set("[1, 2]"), gave_up.clone(), gave_up];
    for (most, expected) in cases.into_iter().enumerate() {
        let told = run_owners(&[3], &[], move |comm| {
            let mut options = EngineOptions::from_config(comm.world().config());
            options.process_sets = vec![vec![0, 1], vec![1, 2]];
            options.most_threads = (comm.rank().0 == 1).then_some(most as u32);
            let world = Arc::downgrade(&comm.world_arc());
            let why = match Engine::start_with(comm, options) {
                Err(why) => why.to_string(),
                // Others may have started before they could know.
                Ok(engine) => {
                    engine.submit(Request::barrier()).and_then(|b| b.wait()).unwrap_err().to_string()
                }
            };
            (why, world.upgrade().is_none())
        });
        assert_eq!(told, vec![(expected, true); 3], "START-1: {most} threads");
    }
}
