//! Threads that wait run operations themselves; nothing is left lying when they stop (HELM-1, HELM-2, HELM-3).

use super::{everywhere, floats, on};
use phalanx_collective::engine::{Engine, EngineTensor, Handle, Request};
use std::{
    sync::mpsc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(20);

fn one(name: impl Into<String>) -> Request {
    Request::allreduce(EngineTensor::new(vec![1f32])).name(name)
}

/// Waits with a deadline, so that a test which hangs says so.
fn answer(handle: Handle) -> Vec<f32> {
    let outcome = handle.wait_until(Instant::now() + LIMIT).expect("it is answered").unwrap();
    outcome.tensor().and_then(EngineTensor::into_vec).unwrap()
}

/// The thread that calls back when this operation is done.
fn runner(engine: &Engine, request: Request) -> ThreadId {
    let (told, tell) = mpsc::channel();
    let handle = engine.submit(request).unwrap();
    handle.on_done(move |_| told.send(thread::current().id()).unwrap());
    answer(handle);
    tell.recv_timeout(LIMIT).unwrap()
}

#[test]
fn a_thread_that_waits_runs_what_it_waits_for() {
    on(&[2], &[], |engine| {
        let me = thread::current().id();
        // The mover's own thread may still be busy with what came before.
        let began = Instant::now();
        let mut n_mine = [0f32];
        while n_mine[0] < 2.0 {
            assert!(began.elapsed() < LIMIT, "every operation ran on another thread");
            let mine = runner(engine, one("awaited").awaited()) == me;
            let told = Request::allreduce(EngineTensor::new(vec![f32::from(u8::from(mine))])).name("mine");
            n_mine[0] = answer(engine.submit(told).unwrap())[0];
        }
    });
}

#[test]
fn a_promise_that_is_not_kept_holds_up_nobody() {
    everywhere(|engine| {
        let n = engine.size() as f32;
        for step in 0..60 {
            let dropped = engine.submit(one("dropped").awaited()).unwrap();
            let (told, tell) = mpsc::channel();
            dropped.then(move |answer| told.send(answer.is_ok()).unwrap());
            assert!(tell.recv_timeout(LIMIT).unwrap(), "HELM-2: step {step}");
            drop(engine.submit(one("nobody waits").awaited()).unwrap());
            assert_eq!(answer(engine.submit(one("after it")).unwrap()), [n]);
        }
    });
}

#[test]
fn threads_that_wait_for_different_operations_all_get_their_answers() {
    everywhere(|engine| {
        let n = engine.size() as f32;
        thread::scope(|scope| {
            for who in 0..3 {
                scope.spawn(move || {
                    for _ in 0..60 {
                        let request = one(format!("of thread {who}"));
                        let request = if who == 0 { request.awaited() } else { request };
                        let other = engine.submit(one(format!("second of thread {who}"))).unwrap();
                        let first = engine.submit(request).unwrap();
                        assert_eq!(answer(first), [n], "HELM-1");
                        assert_eq!(answer(other), [n]);
                    }
                });
            }
        });
    });
}

#[test]
fn what_nobody_waits_for_runs_while_another_thread_waits_and_afterwards() {
    on(&[3], &[], |engine| {
        for _ in 0..60 {
            let (told, tell) = mpsc::channel();
            for name in ["a", "b", "c"] {
                let told = told.clone();
                engine.submit(one(name)).unwrap().then(move |answer| {
                    told.send(answer.unwrap().tensor().and_then(EngineTensor::into_vec::<f32>)).unwrap();
                });
            }
            // Between them in the order of submission.
            assert_eq!(floats(engine.submit(one("waited for").awaited()).unwrap()), [3.0]);
            for _ in 0..3 {
                assert_eq!(tell.recv_timeout(LIMIT).unwrap(), Some(vec![3.0]), "HELM-2");
            }
        }
    });
}

#[test]
fn sets_come_and_go_while_threads_wait() {
    on(&[2], &[], |engine| {
        for _ in 0..3 {
            // Both ranks wait in the set of all while the mover's own thread makes another one (HELM-3).
            let pending = engine.submit(one("meanwhile").awaited()).unwrap();
            let set = engine.add_process_set(&[0]).unwrap();
            assert_eq!(answer(pending), [2.0]);
            if engine.rank().0 == 0 {
                assert_eq!(answer(engine.submit(one("alone").set(set).awaited()).unwrap()), [1.0]);
            }
            assert!(engine.remove_process_set(set).unwrap());
        }
    });
}
