//! What `Auto` measures, and what follows from it.

use crate::{
    parallax::{EVERY, STEPS, config, difference, program, serial, share, train},
    worlds::engines,
};
use phalanx_graph::{Feed, Rule};
use phalanx_train::parallax::{
    AllotmentStrategy, Lodging, MeasuredRates, ParallaxConfig, TouchedRows, measure, parallel_run,
};
use std::collections::BTreeSet;

/// MEASURE-1: two hosts of two and one worker count the rows of their first batch, and all have the same numbers.
#[test]
fn every_worker_measures_the_same_and_places_alike() {
    let hosts = [0, 0, 1];
    let wanted = serial(Rule::Sgd, 1);
    let got = engines(&hosts, |engine| {
        let program = program(Rule::Sgd);
        let [ids, y] = share(0, engine.rank().index(), hosts.len());
        let feeds = [("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))];
        let rates = measure(&program, &engine, &feeds).unwrap();
        let unfed = measure(&program, &engine, &feeds[1..]).unwrap();
        assert!(unfed.rows.is_empty(), "rows that are not fed are not counted");
        let auto = AllotmentStrategy::Auto(rates.clone());
        let config = ParallaxConfig { average_sparse: true, ..config(auto) };
        parallel_run(&program, "loss", &engine, &config, |run, seat| {
            train(run, 0..STEPS, seat.worker_id, seat.num_workers);
            let values = EVERY.map(|name| run.value(name).unwrap().to_f64());
            assert!(values.iter().zip(&wanted).all(|(got, wanted)| difference(got, wanted) < 1e-6));
            (rates, run.allotment().vars.iter().map(|var| var.at).collect::<Vec<Lodging>>())
        })
        .unwrap()
    });
    let rows = |ranks: &[usize]| {
        let of = |rank: &usize| share(0, *rank, hosts.len())[0].data::<i64>().unwrap().to_vec();
        ranks.iter().flat_map(of).collect::<BTreeSet<_>>().len() as f64
    };
    let MeasuredRates { wire, memory, rows: touched } = &got[0].0;
    let union = rows(&[0, 1]).max(rows(&[2]));
    assert_eq!(touched["table"], TouchedRows { raw: 16.0, union });
    assert!(wire.is_finite() && *wire > 0.0 && memory.is_finite() && *memory > 0.0);
    assert!(got.iter().all(|other| *other == got[0]), "{got:?}");
}

#[test]
fn one_host_sends_nothing() {
    let got = engines(&[0, 0], |engine| {
        let [ids, y] = share(0, engine.rank().index(), 2);
        let feeds = [("ids", Feed::Split(&ids)), ("y", Feed::Split(&y))];
        let rates = measure(&program(Rule::Sgd), &engine, &feeds).unwrap();
        let config = config(AllotmentStrategy::Auto(rates.clone()));
        let placed =
            parallel_run(&program(Rule::Sgd), "loss", &engine, &config, |run, _| run.allotment().clone());
        (rates.wire, placed.unwrap().bytes_per_host())
    });
    assert_eq!(got, [(f64::INFINITY, 0.0); 2]);
}
