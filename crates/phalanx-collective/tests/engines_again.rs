//! Engines one after the other in one process. In a process of its own: it counts what the whole process has.

use crate::{alone::alone, support::run_owners};
use phalanx_collective::engine::{Engine, EngineTensor, Request};
use std::{
    thread,
    time::{Duration, Instant},
};

fn n_entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Threads, files, memory.
fn belongings() -> (usize, usize, usize) {
    (n_entries("/proc/self/task"), n_entries("/proc/self/fd"), resident_kib())
}

/// What there is once it is no more than before. A joined thread stays in `/proc/self/task` until the kernel has removed it.
fn settled(threads: usize, files: usize) -> (usize, usize, usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = belongings();
        if now.0 <= threads && now.1 <= files || Instant::now() > deadline {
            return now;
        }
        thread::yield_now();
    }
}

#[test]
fn two_hundred_engines_leave_nothing_behind() {
    alone("engines_again::two_hundred_engines_leave_nothing_behind", start_two_hundred_engines);
}

fn start_two_hundred_engines() {
    run_owners(&[2], &[], |mut comm| {
        let counts = comm.rank().0 == 0;
        let mut after_ten = None;
        for round in 0..200 {
            let engine = Engine::start(comm).unwrap();
            for step in 0..4 {
                let request = Request::allreduce(EngineTensor::new(vec![1.0f32; 1000])).name("x");
                let sum =
                    engine.submit(request).unwrap().wait().unwrap().tensor().and_then(EngineTensor::into_vec);
                assert_eq!(sum, Some(vec![2.0f32; 1000]), "round {round}, step {step}");
            }
            engine.submit(Request::barrier()).unwrap().wait().unwrap();
            comm = engine.shutdown().unwrap();
            // Both ranks are threads of this process: one counts while the other waits, without an engine.
            comm.barrier().unwrap();
            if counts && round == 9 {
                after_ten = Some(belongings());
            }
            comm.barrier().unwrap();
        }
        if let Some((threads, files, kib)) = after_ten {
            let (threads_now, files_now, kib_now) = settled(threads, files);
            assert!(threads_now <= threads, "threads: {threads} became {threads_now}");
            assert!(files_now <= files, "files: {files} became {files_now}");
            assert!(kib_now < kib + (8 << 10), "memory: {kib} KiB became {kib_now}");
        }
        comm.barrier().unwrap();
    });
}
