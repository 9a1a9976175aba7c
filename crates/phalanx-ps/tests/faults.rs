//! Ranks that are lost while tables are used.

use crate::worlds::{Hosts, WIDTH, bytes, bytes_mut, first, run, spec};
use phalanx_core::Rank;
use phalanx_net::ending::{End, Ending};
use phalanx_ps::{Consistency, PsError, TableClip, TableRule, TableSpec, TableTerms, Tables};

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
        let text = tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect_err("no step follows").to_string();
        let again = tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect_err("nor later").to_string();
        assert_eq!(again, text, "the first reason stays");
        tables.close().expect("all say goodbye");
        text
    });
    let wanted = "a server refused: table \"words\", step 0: rank 0 has the rate 0.5, rank 1 has 1.5; every rank must push with the same rate";
    assert_eq!(said, [wanted, wanted]);
}

#[test]
fn tables_that_are_dropped_and_not_closed_are_an_end_that_names_the_rank() {
    let said = run(Hosts::of(&[2, 1]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        let mut row = [0.0f32; WIDTH];
        if world.rank().0 == 1 {
            drop(tables);
            return String::new();
        }
        tables.push(0, 0, &[1], bytes(&row), 0.1).ok();
        let text = tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect_err("step 1 never comes").to_string();
        assert_eq!(
            tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect_err("nor later").to_string(),
            text,
            "the first reason stays"
        );
        text
    });
    for text in [&said[0], &said[2]] {
        assert!(text.contains("rank 1") && text.contains("dropped and not closed"), "{said:?}");
    }
}

#[test]
fn a_thread_that_panics_with_tables_tells_the_others() {
    let said = run(Hosts::of(&[1, 1]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        if world.rank().0 == 1 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _held = tables;
                std::panic::resume_unwind(Box::new("a test"));
            }));
            assert!(ended.is_err());
            return String::new();
        }
        tables.push(0, 0, &[], &[], 0.1).ok();
        tables.pull(0, 1, &[1], bytes_mut(&mut [0.0; WIDTH])).expect_err("step 1 never comes").to_string()
    });
    assert!(said[0].contains("rank 1") && said[0].contains("owned its tables panicked"), "{said:?}");
}

#[test]
fn a_close_that_others_do_not_join_says_who() {
    let short = Hosts { settings: &[("PHALANX_TIMEOUT", "1")], ..Hosts::of(&[2]) };
    let (told, heard) = std::sync::mpsc::channel::<()>();
    let (told, heard) = (std::sync::Mutex::new(Some(told)), std::sync::Mutex::new(heard));
    let said = run(short, move |world, _| {
        let tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        if world.rank().0 == 1 {
            // Until rank 0 has given up.
            let _ = heard.lock().expect("it is ours").recv_timeout(crate::worlds::DEADLINE);
            tables.close().ok();
            return String::new();
        }
        let text = tables.close().expect_err("rank 1 does not close").to_string();
        drop(told.lock().expect("it is ours").take());
        text
    });
    assert!(
        said[0].ends_with("these ranks have not closed their tables: 1; every rank closes them"),
        "{said:?}"
    );
}

#[test]
fn a_rank_whose_memory_does_not_suffice_tells_all_that_wait_for_it() {
    let said = run(Hosts::of(&[2, 1]), |world, _| {
        let huge = TableSpec { height: u64::from(u32::MAX), width: 1 << 20, ..spec("t") };
        let text =
            Tables::open(world, vec![huge], Consistency::Sync, 0).expect_err("it does not fit").to_string();
        // The links of what failed are not in the way of what follows.
        Tables::open(world, vec![spec("t")], Consistency::Sync, 0)
            .expect("tables open")
            .close()
            .expect("it ends well");
        text
    });
    assert!(said.iter().all(|text| text.contains("which serves partitions of t, needs ")), "{said:?}");
}

/// GREETING-1: also for workers whose own office has room, and for ranks that only serve.
#[test]
fn one_server_without_room_is_named_on_every_rank() {
    for (servers, full) in [(0, Rank(2)), (2, Rank(5)), (2, Rank(6))] {
        let said = run(Hosts { servers, ..Hosts::of(&[2, 2, 1]) }, move |world, _| {
            let open = |most_bytes| {
                let terms = TableTerms { most_bytes, ..TableTerms::default() };
                Tables::open_as(world, vec![TableSpec { partitions: 6, ..spec("words") }], terms)
            };
            let text = open((world.rank() == full).then_some(10)).expect_err("one has no room").to_string();
            // Everybody can try again at once.
            let tables = open(None).expect("tables open");
            match world.is_worker(world.rank()) {
                true => tables.close().expect("it ends well"),
                false => tables.serve().expect("it serves to the end"),
            }
            text
        });
        let wanted = format!("rank {full}, which serves partitions of words, needs ");
        assert!(said.iter().all(|text| text.contains(&wanted)), "{wanted}: {said:?}");
    }
}

#[test]
fn rates_and_factors_that_differ_between_hosts_are_refused_with_both() {
    let said = run(Hosts::of(&[1, 2]), |world, _| {
        let rule = TableRule { clip: TableClip::Given, ..spec("t").rule };
        let clipped = TableSpec { rule, ..spec("clipped") };
        let specs = vec![spec("words"), clipped];
        let mut said = Vec::new();
        for differs in [0, 1] {
            let mut tables = Tables::open(world, specs.clone(), Consistency::Sync, 0).expect("tables open");
            let own = 0.5 + f64::from(world.rank().0.min(1));
            let (rate, factor) = if differs == 0 { (own, 1.0) } else { (0.5, own) };
            tables.push(0, 0, &[1], bytes(&[1.0; WIDTH]), rate).expect("it goes to the office");
            tables.push(1, 0, &[1], bytes(&[1.0; WIDTH]), 0.5).expect("it goes to the office");
            tables.release(0, factor).expect("it goes to the office");
            let mut row = [0.0f32; WIDTH];
            let pulled = tables.pull(differs, 1, &[1], bytes_mut(&mut row));
            said.push(pulled.expect_err("no step follows").to_string());
            tables.close().expect("all say goodbye");
        }
        said
    });
    let wanted = [
        "a server refused: table \"words\", step 0: host 0 has 0.5 and host 1 has 1.5 as rates; every rank must push with the same rate",
        "a server refused: table \"clipped\", step 0: host 0 has 0.5 and host 1 has 1.5 as factors; every rank must release with the same factor",
    ];
    assert!(said.iter().all(|said| said == &wanted), "{said:?}");
}

#[test]
fn a_worker_that_closes_early_is_named_to_all_that_wait_for_its_push() {
    let said = run(Hosts::of(&[1, 2]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        tables.push(0, 0, &[1], bytes(&[1.0; WIDTH]), 0.5).expect("it goes");
        if world.rank().0 == 2 {
            tables.close().expect("it has its own end");
            return String::new();
        }
        let mut row = [0.0f32; WIDTH];
        tables.pull(0, 1, &[1], bytes_mut(&mut row)).expect("all have pushed step 0");
        tables.push(0, 1, &[1], bytes(&[1.0; WIDTH]), 0.5).expect("it goes");
        let text = tables.pull(0, 2, &[1], bytes_mut(&mut row)).expect_err("step 2 never comes").to_string();
        tables.close().expect("all say goodbye");
        text
    });
    let wanted = "a server refused: table \"words\": rank 2 has closed its tables and never pushes step 1";
    assert_eq!(said[..2], [wanted, wanted]);
}
