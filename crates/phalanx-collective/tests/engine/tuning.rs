//! Autotuning on a running job.

use super::{floats, on};
use phalanx_collective::engine::{Engine, EngineTensor, Request};
use phalanx_core::Rank;

#[test]
fn a_job_tunes_itself_goes_on_and_a_later_one_repeats_it() {
    for hosts in [&[2u32][..], &[1, 1]] {
        let log =
            std::env::temp_dir().join(format!("phalanx-tune-{}-{}.csv", std::process::id(), hosts.len()));
        let path = log.to_str().unwrap().to_string();
        let train = |engine: &Engine| {
            for step in 0..300 {
                let handles: Vec<_> = (0..4)
                    .map(|i| {
                        let data = vec![step as f32; 100 * (i + 1)];
                        engine
                            .submit(Request::allreduce(EngineTensor::new(data)).name(format!("t{i}")))
                            .unwrap()
                    })
                    .collect();
                for handle in handles {
                    assert!(floats(handle).iter().all(|x| *x == 2.0 * step as f32), "step {step}");
                }
            }
        };
        on(hosts, &[("PHALANX_AUTOTUNE", "1"), ("PHALANX_AUTOTUNE_LOG", &path)], train);
        let text = std::fs::read_to_string(&log).expect("rank 0 has written what it tried");
        assert!(text.lines().count() > 8, "{text}");
        assert!(text.lines().last().unwrap().ends_with(",1"), "the last line is the best: {text}");
        on(hosts, &[("PHALANX_AUTOTUNE", &path)], train);
        std::fs::remove_file(log).unwrap();
    }
}

/// What programs do once: parameters are broadcast, and ranks compare what they have.
fn begin(engine: &Engine) {
    for name in ["w", "b", "w"] {
        let request = Request::broadcast(EngineTensor::new(vec![1.0f32; 10]), Rank::ZERO).name(name);
        assert_eq!(floats(engine.submit(request).unwrap()), [1.0; 10]);
    }
    for _ in 0..3 {
        engine.submit(Request::allgather(EngineTensor::new(vec![1u8]))).unwrap().wait().unwrap();
    }
}

#[test]
fn a_job_whose_first_operations_run_once_tunes_itself_and_ends() {
    let log = std::env::temp_dir().join(format!("phalanx-tune-once-{}.csv", std::process::id()));
    let path = log.to_str().unwrap().to_string();
    on(&[2], &[("PHALANX_AUTOTUNE", "1"), ("PHALANX_AUTOTUNE_LOG", &path)], |engine| {
        begin(engine);
        // Eight settings of eighteen steps each, and those in which it becomes clear that the broadcasts do not come back.
        for step in 0..8 * 18 + 80 {
            let request = Request::allreduce(EngineTensor::new(vec![step as f32; 100])).name("g");
            assert_eq!(floats(engine.submit(request).unwrap()), [2.0 * step as f32; 100]);
        }
    });
    let text = std::fs::read_to_string(&log).expect("rank 0 has written what it tried");
    assert_eq!(text.lines().count(), 1 + 8 + 1, "TUNE-3: {text}");
    assert!(text.lines().last().unwrap().ends_with(",1"), "the last line is the best: {text}");
    std::fs::remove_file(log).unwrap();
}
