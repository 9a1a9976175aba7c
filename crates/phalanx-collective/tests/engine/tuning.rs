//! Autotuning on a running job.

use super::{floats, on};
use phalanx_collective::engine::{Request, Tensor};

#[test]
fn a_job_tunes_itself_goes_on_and_a_later_one_repeats_it() {
    for hosts in [&[2u32][..], &[1, 1]] {
        let log =
            std::env::temp_dir().join(format!("phalanx-tune-{}-{}.csv", std::process::id(), hosts.len()));
        let path = log.to_str().unwrap().to_string();
        let train = |engine: &phalanx_collective::engine::Engine| {
            for step in 0..300 {
                let handles: Vec<_> = (0..4)
                    .map(|i| {
                        let data = vec![step as f32; 100 * (i + 1)];
                        engine.submit(Request::allreduce(Tensor::new(data)).name(format!("t{i}"))).unwrap()
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
