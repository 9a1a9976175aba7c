//! Process sets: some of the ranks among themselves.

use super::{floats, on};
use crate::support::run_owners;
use phalanx_collective::engine::{Engine, EngineError, EngineOptions, EngineTensor, Request};
use phalanx_core::Rank;

#[test]
fn sets_are_made_used_at_the_same_time_and_removed() {
    for hosts in [&[4u32][..], &[2, 2]] {
        on(hosts, &[], |engine| {
            let me = engine.rank().0;
            let even = engine.add_process_set(&[2, 0]).unwrap();
            let odd = engine.add_process_set(&[1, 3]).unwrap();
            assert_eq!((even, odd), (1, 2));
            let (mine, other) = if me % 2 == 0 { (even, odd) } else { (odd, even) };
            for _ in 0..10 {
                let in_set = engine
                    .submit(Request::allreduce(EngineTensor::new(vec![me as f32])).name("x").set(mine))
                    .unwrap();
                let in_all =
                    engine.submit(Request::allreduce(EngineTensor::new(vec![1.0f32])).name("x")).unwrap();
                assert_eq!(floats(in_set), [if me % 2 == 0 { 2.0 } else { 4.0 }]);
                assert_eq!(floats(in_all), [4.0]);
            }
            let error = engine.submit(Request::barrier().set(other)).unwrap_err();
            assert_eq!(error.to_string(), format!("rank {me} is not a member of process set {other}"));
            let root = Request::broadcast(EngineTensor::new(vec![me as f32]), Rank(me % 2 + 2))
                .name("root")
                .set(mine);
            assert_eq!(
                floats(engine.submit(root).unwrap()),
                [(me % 2 + 2) as f32],
                "roots are ranks of the world"
            );
            assert!(engine.remove_process_set(even).unwrap());
            assert!(!engine.remove_process_set(even).unwrap() && !engine.remove_process_set(0).unwrap());
            assert!(matches!(
                engine.submit(Request::barrier().set(even)),
                Err(EngineError::NoSuchSet { set: 1 })
            ));
            let again = engine.add_process_set(&[3, 2, 1]).unwrap();
            assert_eq!(again, even, "numbers are used again, first come, first served");
            let sets = engine.process_sets();
            assert_eq!(sets[1], (1, vec![Rank(1), Rank(2), Rank(3)]));
            if me > 0 {
                let sum = Request::allreduce(EngineTensor::new(vec![me as f32])).set(again);
                assert_eq!(floats(engine.submit(sum).unwrap()), [6.0]);
            }
        });
    }
}

#[test]
fn one_set_goes_on_while_another_waits() {
    on(&[3], &[], |engine| {
        let set = engine.add_process_set(&[0, 1]).unwrap();
        // Rank 2 does not submit this one until the others have done a lot in their set.
        let pending = (engine.rank().0 < 2).then(|| {
            engine.submit(Request::allreduce(EngineTensor::new(vec![1.0f32])).name("slow")).unwrap()
        });
        if engine.rank().0 < 2 {
            for i in 0..50 {
                let request = Request::allreduce(EngineTensor::new(vec![1.0f32]))
                    .name(format!("quick{}", i % 3))
                    .set(set);
                assert_eq!(floats(engine.submit(request).unwrap()), [2.0]);
            }
        }
        engine.submit(Request::barrier().name("then")).unwrap().wait().unwrap();
        let pending = pending.unwrap_or_else(|| {
            engine.submit(Request::allreduce(EngineTensor::new(vec![1.0f32])).name("slow")).unwrap()
        });
        assert_eq!(floats(pending), [3.0]);
    });
}

#[test]
fn bad_sets_are_refused_with_the_reason() {
    on(&[2], &[], |engine| {
        for (ranks, why) in [
            (&[][..], "a process set needs at least one rank"),
            (&[0, 2], "rank 2 of the process set [0, 2] does not exist in a world of 2 ranks"),
            (&[1, 1], "rank 1 is listed twice in the process set [1, 1]"),
            (&[1, 0], "process set 0 already has exactly these ranks"),
        ] {
            assert_eq!(engine.add_process_set(ranks).unwrap_err().to_string(), why);
        }
        // Ranks that ask for different sets are told, and can go on.
        let error = engine.add_process_set(&[engine.rank().0]).unwrap_err().to_string();
        assert_eq!(
            error,
            "add_process_set: Mismatched process sets: rank 0 has ranks [0], but rank 1 has ranks [1]"
        );
        assert_eq!(engine.add_process_set(&[1]).unwrap(), 1);
    });
}

#[test]
fn sets_given_at_the_start_are_there_at_once_and_must_be_the_same_everywhere() {
    let ids = run_owners(&[3], &[], |comm| {
        let mut options = EngineOptions::from_config(comm.world().config());
        options.process_sets = vec![vec![0, 1], vec![2]];
        let engine = Engine::start_with(comm, options).unwrap();
        let set = if engine.rank().0 == 2 { 2 } else { 1 };
        let sum =
            floats(engine.submit(Request::allreduce(EngineTensor::new(vec![1.0f32])).set(set)).unwrap());
        engine.submit(Request::barrier()).unwrap().wait().unwrap();
        sum
    });
    assert_eq!(ids, [[2.0], [2.0], [1.0]]);
    let errors = run_owners(&[2], &[], |comm| {
        let mut options = EngineOptions::from_config(comm.world().config());
        options.process_sets = if comm.rank() == Rank(0) { vec![vec![0]] } else { vec![vec![1]] };
        Engine::start_with(comm, options).unwrap_err().to_string()
    });
    assert_eq!(errors, vec!["ranks 0 and 1 were started with different process sets".to_string(); 2]);
}
