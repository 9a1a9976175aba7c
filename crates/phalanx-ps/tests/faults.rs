//! Ranks that are lost while tables are used.

use crate::worlds::{Hosts, WIDTH, bytes, bytes_mut, first, run, spec};
use phalanx_core::Rank;
use phalanx_net::ending::{End, Ending};
use phalanx_ps::{Consistency, PsError, Tables};

#[test]
fn a_lost_server_is_named_with_what_it_served_on_every_worker() {
    let said = run(Hosts { servers: 1, ..Hosts::of(&[2, 1]) }, |world, hub| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        if !world.is_worker(world.rank()) {
            hub.rank_ended(Rank(3), End::Process(Ending::Signal(9)));
            return tables.serve().expect_err("its world is over").to_string();
        }
        let mut row = [0.0f32; WIDTH];
        // Step 1 comes when rank 0 has pushed, which it never does: only the loss ends this.
        if world.rank().0 != 0 {
            tables.push(0, 0, &[1], bytes(&row), 0.1).ok();
        }
        tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect_err("the server is lost").to_string()
    });
    for text in &said[..3] {
        assert_eq!(
            text, "rank 3, which serves partitions of words, is lost: its process was killed by SIGKILL",
            "STATION-1: {said:?}"
        );
    }
}

#[test]
fn a_worker_that_dies_in_a_push_changes_nothing() {
    let said = run(Hosts::of(&[1, 2]), |world, hub| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        let mut row = [0.0f32; WIDTH];
        tables.pull(0, 0, &[5], bytes_mut(&mut row)).expect("rows come");
        if world.rank().0 == 2 {
            hub.rank_ended(Rank(2), End::Process(Ending::Signal(9)));
            return tables.pull(0, 1, &[5], bytes_mut(&mut row)).expect_err("it is lost").to_string();
        }
        // An incomplete step is never applied: the rows of step 0 are what there is until the loss is known.
        tables.push(0, 0, &[5], bytes(&[1.0; WIDTH]), 1.0).ok();
        let error = tables.pull(0, 1, &[5], bytes_mut(&mut row)).expect_err("step 1 never comes");
        assert_eq!(row[0], first(5, 0), "nothing was written");
        assert!(matches!(error, PsError::Net(_)), "{error:?}");
        error.to_string()
    });
    assert!(said[..2].iter().all(|text| text.contains("rank 2") && text.contains("SIGKILL")), "{said:?}");
}

#[test]
fn rates_that_differ_on_a_host_are_refused_with_both() {
    let said = run(Hosts::of(&[2]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        let rate = 0.5 + f64::from(world.rank().0);
        tables.push(0, 0, &[1], bytes(&[1.0; WIDTH]), rate).expect("it goes to the office");
        let mut row = [0.0f32; WIDTH];
        tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect_err("no step follows").to_string()
    });
    let wanted = "a server refused: table \"words\", step 0: rank 0 has the rate 0.5, rank 1 has 1.5; every rank must push with the same rate";
    assert_eq!(said, [wanted, wanted]);
}
