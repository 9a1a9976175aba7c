//! Ends at awkward moments, in one process: all ranks are threads.

use super::worker::ones;
use crate::support::run_owners;
use phalanx_collective::engine::{Engine, EngineError, Handle};
use phalanx_core::Rank;
use std::time::{Duration, Instant};

fn answered(handle: Handle) -> Result<(), EngineError> {
    let deadline = Instant::now() + Duration::from_secs(20);
    handle.wait_until(deadline).expect("every operation is answered").map(|_| ())
}

#[test]
fn an_engine_dropped_while_a_thread_waits_answers_it() {
    for hosts in [&[2u32][..], &[1, 1]] {
        run_owners(hosts, &[], |comm| {
            let engine = Engine::start(comm).unwrap();
            let me = engine.rank();
            let handle = engine.submit(ones(format!("only {me}"))).unwrap();
            engine.submit(ones("all")).unwrap().wait().unwrap();
            let waiting = std::thread::spawn(move || answered(handle));
            drop(engine);
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, EngineError::ShutDown { .. }), "{error}");
        });
    }
}

/// A service may catch a panic and go on: nobody waits for a rank that is no more.
#[test]
fn a_rank_whose_thread_panics_is_named_also_where_its_process_goes_on() {
    for hosts in [&[3u32][..], &[1, 2]] {
        run_owners(hosts, &[], |comm| {
            let engine = Engine::start(comm).unwrap();
            let me = engine.rank();
            engine.submit(ones("all")).unwrap().wait().unwrap();
            if me == Rank(2) {
                let panicked = std::thread::spawn(move || {
                    let _engine = engine;
                    panic!("as ordered");
                });
                panicked.join().unwrap_err();
                return;
            }
            let error = engine.submit(ones("more")).and_then(answered).unwrap_err().to_string();
            assert!(error.contains("rank 2") && error.contains("panicked"), "{error}");
        });
    }
}

/// CTL-2: on two hosts, the link that closes after the end is not taken for a lost rank.
#[test]
fn engines_end_while_sets_exist_and_have_operations_that_wait() {
    for hosts in [&[3u32][..], &[2, 1]] {
        run_owners(hosts, &[], |comm| {
            let engine = Engine::start(comm).unwrap();
            let sets = [[0, 1], [1, 2], [0, 2]].map(|ranks| engine.add_process_set(&ranks).unwrap());
            let me = engine.rank().0;
            let mut waiting = Vec::new();
            for (i, set) in sets.into_iter().enumerate() {
                // Only the first of each pair submits it.
                if [0, 1, 0][i] == me {
                    waiting.push(engine.submit(ones("half").set(set)).unwrap());
                }
            }
            engine.submit(ones("all")).unwrap().wait().unwrap();
            if me == 2 {
                engine.shutdown().unwrap();
                return;
            }
            for handle in waiting {
                let error = answered(handle).unwrap_err();
                assert!(matches!(error, EngineError::ShutDown { rank: Rank(2) }), "{error}");
            }
        });
    }
}

#[test]
fn a_set_is_removed_while_some_of_its_members_wait_in_it() {
    for hosts in [&[3u32][..], &[2, 1], &[1, 2]] {
        run_owners(hosts, &[], |comm| {
            let engine = Engine::start(comm).unwrap();
            for round in 0..20 {
                let set = engine.add_process_set(&[0, 2]).unwrap();
                let me = engine.rank();
                let whole = (me != Rank(1)).then(|| engine.submit(ones("whole").set(set)).unwrap());
                let half = (me == Rank(2)).then(|| engine.submit(ones("half").set(set)).unwrap());
                assert!(engine.remove_process_set(set).unwrap(), "round {round}");
                // What both have submitted may run before the removal; what only one has submitted fails.
                whole.into_iter().for_each(|handle| drop(answered(handle)));
                half.into_iter().for_each(|handle| assert!(answered(handle).is_err()));
                let gone = engine.submit(ones("gone").set(set)).err();
                assert!(matches!(gone, Some(EngineError::NoSuchSet { .. })), "round {round}: {gone:?}");
            }
            engine.submit(ones("all")).unwrap().wait().unwrap();
            engine.shutdown().unwrap();
        });
    }
}

#[test]
fn a_set_that_is_made_while_another_rank_ends_everything_ends_too() {
    for hosts in [&[3u32][..], &[1, 2]] {
        for _ in 0..60 {
            run_owners(hosts, &[], |comm| {
                let engine = Engine::start(comm).unwrap();
                let made = engine.add_process_set(&[0, 1]);
                if engine.rank() == Rank(2) {
                    return; // Drops the engine: the end of everybody's.
                }
                if let Ok(handle) = made.and_then(|set| engine.submit(ones("x").set(set))) {
                    drop(answered(handle));
                }
                drop(engine); // CTL-3: does not wait for a thread that nobody ends.
            });
        }
    }
}
