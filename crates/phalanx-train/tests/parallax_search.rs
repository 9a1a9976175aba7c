//! Searches for partitions while worlds train: where they begin and end, and what they survive.

use crate::{
    parallax::{ROWS, config, program, share, train},
    worlds::{engines, with_servers},
};
use phalanx_graph::{Feed, Rule, Tensor};
use phalanx_train::parallax::{
    AllotmentStrategy, ParallaxConfig, ParallaxError, ParallaxRun, parallel_run, parallel_serve,
};

#[test]
fn a_search_begins_with_the_partitions_of_the_tables_and_small_dense_ones_do_not_end_it() {
    let hosts = [0, 1];
    let config = ParallaxConfig { search: Some((1, 1, 1)), ..config(AllotmentStrategy::Ps) };
    let got = engines(&hosts, |engine| {
        parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, seat| {
            let first = run.explain().unwrap();
            train(run, 0..40, seat.worker_id, seat.num_workers);
            (first, run.found_partitions(), run.explain().unwrap())
        })
        .unwrap()
    });
    for (first, found, last) in got {
        assert!(first.contains("table table: 24 x 4 f32, 2 partitions"), "hosts and not the least: {first}");
        let found = found.expect("it has ended");
        assert!(last.contains(&format!("table table: 24 x 4 f32, {found} partitions")), "{last}");
    }
    let both = ParallaxConfig { partitions: Some(3), ..config };
    engines(&[0], |engine| {
        let refused = ParallaxRun::new(&program(Rule::Sgd), "loss", &engine, &both).unwrap_err();
        assert!(matches!(refused, ParallaxError::SearchFrom(3)), "{refused}");
    });
}

#[test]
fn a_search_ends_and_training_goes_on_with_what_it_found() {
    let hosts = [0, 1];
    let config =
        ParallaxConfig { search: Some((1, 2, 3)), average_sparse: true, ..config(AllotmentStrategy::Hybrid) };
    let got = engines(&hosts, |engine| {
        parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, seat| {
            // Powers of two up to 24 rows, then below: never more than this many trials of 5 steps.
            for from in (0..60).step_by(5) {
                train(run, from..from + 5, seat.worker_id, seat.num_workers);
            }
            (run.found_partitions(), run.value("table").unwrap().to_f64())
        })
        .unwrap()
    });
    let found = got[0].0.expect("it has ended");
    assert!((1..=ROWS as u32).contains(&found));
    assert_eq!(got[0], got[1]);
    // The same without a search: partitions change no bit.
    let plain = ParallaxConfig { search: None, ..config };
    let wanted = engines(&hosts, |engine| {
        parallel_run(&program(Rule::Sgd), "loss", &engine, &plain, |run, seat| {
            train(run, 0..60, seat.worker_id, seat.num_workers);
            run.value("table").unwrap().to_f64()
        })
        .unwrap()
    });
    assert_eq!(wanted[0], got[0].1, "PART-1: bits do not depend on partitions");
}

/// Ranks that only serve go on when the search cuts tables anew, to its end.
#[test]
fn a_search_ends_where_ranks_only_serve() {
    let config =
        ParallaxConfig { search: Some((1, 1, 2)), average_sparse: true, ..config(AllotmentStrategy::Hybrid) };
    let learned = |search, servers| {
        let config = ParallaxConfig { search, ..config.clone() };
        let worker = |engine| {
            parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, seat| {
                train(run, 0..40, seat.worker_id, seat.num_workers);
                (run.found_partitions(), run.value("table").unwrap().bytes().to_vec())
            })
            .unwrap()
        };
        let serve = |world: &_| parallel_serve(&program(Rule::Sgd), world, &config).unwrap();
        with_servers(&[0, 0, 1], servers, worker, serve)
    };
    let plain = learned(None, 0);
    for servers in [1, 2] {
        let got = learned(config.search, servers);
        let found = got[0].0.expect("it has ended");
        assert!((1..=ROWS as u32).contains(&found));
        assert!(got.iter().all(|(other, table)| *other == Some(found) && *table == plain[0].1), "PART-1");
    }
}

/// A number that is no row ends a step on both ranks before anybody has learned from it. Its trial does not count, and training goes on.
#[test]
fn a_trial_with_a_step_that_fails_is_survived() {
    let config =
        ParallaxConfig { search: Some((1, 1, 2)), average_sparse: true, ..config(AllotmentStrategy::Hybrid) };
    let learned = |search, fails_at: Option<u64>| {
        let config = ParallaxConfig { search, ..config.clone() };
        engines(&[0, 1], |engine| {
            parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, seat| {
                for step in 0..45 {
                    if fails_at == Some(step) {
                        let [ids, y] = share(step, seat.worker_id, seat.num_workers);
                        let mut wrong = ids.data::<i64>().unwrap().to_vec();
                        wrong[0] = if seat.worker_id == 1 { 99 } else { wrong[0] };
                        let ids = Tensor::new(ids.dims(), &wrong).unwrap();
                        let feeds = [("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))];
                        let why = run.step(&feeds, &[]).unwrap_err().to_string();
                        assert!(why.contains("99"), "{why}");
                    }
                    train(run, step..step + 1, seat.worker_id, seat.num_workers);
                }
                (run.found_partitions(), run.value("table").unwrap().bytes().to_vec())
            })
            .unwrap()
        })
    };
    let plain = learned(None, None);
    let got = learned(config.search, Some(1));
    let found = got[0].0.expect("it has ended");
    assert!(
        (4..=ROWS as u32).contains(&found),
        "the first trial has crashed, and with it all below: {found}"
    );
    assert!(got.iter().all(|(other, table)| *other == Some(found) && *table == plain[0].1), "{got:?}");
}

/// One partition would put the whole table on one host, which has no room for it: the other host learns of it before anything is moved.
#[test]
fn partitions_that_a_host_has_no_room_for_are_not_tried() {
    let config = ParallaxConfig {
        search: Some((1, 1, 2)),
        average_sparse: true,
        // Half of the table, and a little more.
        server_bytes: Some(200),
        ..config(AllotmentStrategy::Hybrid)
    };
    let learned = |config: &ParallaxConfig| {
        engines(&[0, 0, 1], |engine| {
            parallel_run(&program(Rule::Sgd), "loss", &engine, config, |run, seat| {
                train(run, 0..45, seat.worker_id, seat.num_workers);
                let table = run.value("table").unwrap().bytes().to_vec();
                (run.found_partitions(), run.explain().unwrap(), table)
            })
            .unwrap()
        })
    };
    let plain = learned(&ParallaxConfig { search: None, partitions: Some(2), ..config.clone() });
    let got = learned(&config);
    let found = got[0].0.expect("it has ended");
    assert!((2..=ROWS as u32).contains(&found), "{found}");
    for (other, told, table) in &got {
        assert_eq!((*other, table), (Some(found), &plain[0].2));
        assert!(told.contains(&format!("table table: 24 x 4 f32, {found} partitions")), "{told}");
    }
    let small = ParallaxConfig { server_bytes: Some(100), ..config };
    let said = engines(&[0, 0, 1], |engine| {
        ParallaxRun::new(&program(Rule::Sgd), "loss", &engine, &small).unwrap_err().to_string()
    });
    assert!(said.iter().all(|text| text.contains("needs 192 bytes for them and has 100")), "{said:?}");
}
