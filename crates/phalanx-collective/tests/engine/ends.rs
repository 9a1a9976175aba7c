//! How engines end: in order, by somebody else's doing, and again and again.

use super::{floats, support::run_owners};
use phalanx_collective::engine::{Engine, EngineError, Request, Tensor};
use phalanx_core::Rank;
use std::time::{Duration, Instant};

#[test]
fn a_shutdown_answers_everything_that_waits_and_names_who_did_it() {
    for hosts in [&[3u32][..], &[1, 2]] {
        run_owners(hosts, &[], |comm| {
            let engine = Engine::start(comm).unwrap();
            for _ in 0..5 {
                let request = Request::allreduce(Tensor::new(vec![1.0f32])).name("x");
                assert_eq!(floats(engine.submit(request).unwrap()), [3.0]);
            }
            if engine.rank() == Rank(1) {
                engine.shutdown().unwrap();
                return;
            }
            let waiting: Vec<_> = (0..10)
                .filter_map(|i| {
                    let request = Request::allreduce(Tensor::new(vec![1.0f32])).name(format!("y{i}"));
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
            assert_eq!(refused.to_string(), "rank 1 has shut its engine down, and with it everybody's");
        });
    }
}

fn n_threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn n_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn two_hundred_engines_one_after_the_other_leave_nothing_behind() {
    run_owners(&[2], &[], |mut comm| {
        let mut after_first = None;
        for round in 0..200 {
            let engine = Engine::start(comm).unwrap();
            for step in 0..4 {
                let request = Request::allreduce(Tensor::new(vec![1.0f32; 1000])).name("x");
                assert_eq!(
                    floats(engine.submit(request).unwrap()),
                    [2.0; 1000],
                    "round {round}, step {step}"
                );
            }
            engine.submit(Request::barrier()).unwrap().wait().unwrap();
            comm = engine.shutdown().unwrap();
            // Both ranks are threads of this process; neither may count while the other has an engine.
            comm.barrier().unwrap();
            if round == 9 {
                after_first = Some((n_threads(), n_files(), resident_kib()));
            }
            comm.barrier().unwrap();
        }
        let (threads, files, kib) = after_first.unwrap();
        assert_eq!((n_threads(), n_files()), (threads, files), "threads and files");
        assert!(resident_kib() < (kib + 8) << 10, "memory: {kib} KiB became {}", resident_kib());
        comm.barrier().unwrap();
    });
}
