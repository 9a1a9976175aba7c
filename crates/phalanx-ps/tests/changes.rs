//! Tables that are cut anew or resumed, workers that have joined, and workers that ask servers by themselves.

use crate::worlds::{Hosts, WIDTH, bytes, bytes_mut, first, rules, run, spec, touched};
use phalanx_core::Rank;
use phalanx_net::World;
use phalanx_ps::{
    Consistency, OfficeCounters, PsError, RowReduction, TableRule, TableSpec, TableTerms, Tables,
};
use std::ops::Range;

const HEIGHT: u64 = 40;

fn steps(tables: &mut Tables, rank: Rank, steps: Range<u64>) {
    for step in steps {
        let (ids, grads) = touched(rank.0, step, HEIGHT);
        let mut rows = vec![0.0f32; grads.len()];
        let at = tables.step(0);
        tables.pull(0, at, &ids, bytes_mut(&mut rows)).expect("rows come");
        tables.push(0, at, &ids, bytes(&grads), 0.125).expect("gradients go");
    }
}

/// A part of a table with every bit.
fn whole(tables: &mut Tables, part: u8) -> Vec<u32> {
    let all: Vec<u64> = (0..HEIGHT).collect();
    let mut rows = vec![0.0f32; HEIGHT as usize * WIDTH];
    tables.read(0, part, &all, bytes_mut(&mut rows)).expect("rows come");
    rows.iter().map(|v| v.to_bits()).collect()
}

fn adam() -> TableSpec {
    TableSpec { rule: TableRule::new(rules()[3].1), ..spec("t") }
}

/// RESHARD-1: also where ranks that only serve have the tables, several times, and with a table that nothing trains.
#[test]
fn ranks_that_only_serve_follow_when_workers_cut_tables_anew() {
    let trained = |servers: u32, cuts: &'static [(u64, u32)]| {
        run(Hosts { servers, ..Hosts::of(&[2, 1]) }, move |world, _| {
            let specs = vec![adam(), spec("frozen")];
            let mut tables = Tables::open(world, specs, Consistency::Sync, 0).expect("tables open");
            if !world.is_worker(world.rank()) {
                tables.serve().expect("it serves to the end");
                return Vec::new();
            }
            for step in 0..9 {
                steps(&mut tables, world.rank(), step..step + 1);
                if let Some((_, partitions)) = cuts.iter().find(|(after, _)| *after == step) {
                    tables.reshard(*partitions).expect("tables are cut anew");
                    assert_eq!(tables.specs()[0].partitions, *partitions);
                    assert_eq!(tables.age(0), step + 1, "the rule counts on");
                }
            }
            let mut row = [0.0f32; WIDTH];
            let at = tables.step(1);
            tables.pull(1, at, &[3], bytes_mut(&mut row)).expect("rows come");
            assert_eq!(row[0], first(3, 0), "nothing trains it");
            let all = [whole(&mut tables, 0), whole(&mut tables, 1), whole(&mut tables, 2)].concat();
            tables.close().expect("it ends well");
            all
        })
    };
    let wanted = trained(0, &[]).remove(0);
    for servers in [0, 1, 2] {
        let got = trained(servers, &[(0, 3), (4, 11), (5, 1)]);
        assert!(got[..3].iter().all(|got| *got == wanted), "RESHARD-1 with {servers} servers");
    }
}

/// RESHARD-2: the server that would have everything has no room for it, which only it knows.
#[test]
fn partitions_for_which_a_server_has_no_room_leave_tables_as_they_were() {
    for servers in [0, 2] {
        let got = run(Hosts { servers, ..Hosts::of(&[2, 1]) }, move |world, _| {
            let table = TableSpec { partitions: 2, ..adam() };
            let most = table.bytes() * 3 / 4;
            let serves_first = world.rank().0 == if servers == 0 { 0 } else { 3 };
            let terms = TableTerms { most_bytes: serves_first.then_some(most), ..TableTerms::default() };
            let mut tables = Tables::open_as(world, vec![table], terms).expect("tables open");
            if !world.is_worker(world.rank()) {
                tables.serve().expect("it serves to the end");
                return None;
            }
            steps(&mut tables, world.rank(), 0..3);
            let before = [whole(&mut tables, 0), whole(&mut tables, 1)];
            let error = tables.reshard(1).expect_err("one server would have everything");
            assert!(matches!(error, PsError::Uncut(_)), "{error:?}");
            assert_eq!([whole(&mut tables, 0), whole(&mut tables, 1)], before, "RESHARD-1");
            assert_eq!((tables.specs()[0].partitions, tables.age(0)), (2, 3));
            steps(&mut tables, world.rank(), 3..5);
            tables.reshard(4).expect("there is room for that");
            let rows = whole(&mut tables, 0);
            tables.close().expect("it ends well");
            Some((error.to_string(), rows))
        });
        let got: Vec<_> = got.into_iter().flatten().collect();
        let first = if servers == 0 { 0 } else { 3 };
        let wanted =
            format!("the tables stay cut as they were: rank {first}, which serves partitions of t, needs ");
        assert!(got.len() == 3 && got.iter().all(|(text, _)| text.starts_with(&wanted)), "{got:?}");
        assert!(got.iter().all(|(_, rows)| *rows == got[0].1));
    }
}

/// Who may not hold more is known to all, also where a rank only serves.
#[test]
fn a_server_that_may_not_hold_its_part_is_known_before_anything_moves() {
    let got = run(Hosts { servers: 2, ..Hosts::of(&[2, 1]) }, |world, _| {
        let table = TableSpec { partitions: 2, ..adam() };
        let terms = TableTerms { most_bytes: Some(table.bytes() * 3 / 4), ..TableTerms::default() };
        let tables = Tables::open_as(world, vec![table], terms).expect("tables open");
        if !world.is_worker(world.rank()) {
            tables.serve().expect("it serves to the end");
            return None;
        }
        let said = [1, 2, 8].map(|n| tables.admits(n).err().map(|why| why.to_string()));
        tables.close().expect("it ends well");
        Some(said)
    });
    for [one, two, eight] in got.into_iter().flatten() {
        assert!(one.is_some_and(|text| text.starts_with("rank 3, which serves partitions of t, needs ")));
        assert_eq!((two, eight), (None, None));
    }
}

/// What Adam has learned in nine steps, all at once or resumed after five by tables that count from zero.
#[test]
fn a_resumed_rule_counts_on_from_the_step_that_was_saved() {
    let got = run(Hosts::of(&[2, 1]), |world, _| {
        let open = |step| Tables::open(world, vec![adam()], Consistency::Sync, step).expect("tables open");
        let mut straight = open(0);
        steps(&mut straight, world.rank(), 0..5);
        let saved: Vec<Vec<u32>> = (0..3).map(|part| whole(&mut straight, part)).collect();
        let age = straight.age(0);
        assert_eq!(age, 5);
        steps(&mut straight, world.rank(), 5..9);
        let wanted = whole(&mut straight, 0);
        straight.close().expect("it ends well");
        let ends = [None, Some(age)].map(|age| {
            let mut again = open(0);
            let all: Vec<u64> = (0..HEIGHT).collect();
            for (part, rows) in (0..).zip(&saved) {
                again.write(0, part, &all, bytemuck::cast_slice(rows)).expect("rows are written");
            }
            if let Some(age) = age {
                again.set_age(0, age).expect("it is told");
            }
            // Every rank has loaded before one begins.
            steps(&mut again, world.rank(), 5..9);
            assert_eq!(again.age(0), age.unwrap_or(0) + 4);
            let end = whole(&mut again, 0);
            again.close().expect("it ends well");
            end
        });
        (wanted, ends)
    });
    for (wanted, [fresh, resumed]) in got {
        assert_eq!(resumed, wanted);
        assert_ne!(fresh, wanted, "a count that begins anew is noticed");
    }
}

#[test]
fn who_has_joined_takes_part_without_a_rate_of_its_own() {
    let told = run(Hosts::of(&[2, 1, 1]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("t")], Consistency::Sync, 0).expect("tables open");
        let mut row = [0.0f32; WIDTH];
        for step in 0..4 {
            // One worker of the first host, and all of the second, have no data; the rate changes all the same.
            match world.rank().0 {
                1 | 2 => tables.attend(0, step).expect("it takes part"),
                _ => tables.push(0, step, &[5], bytes(&[1.0; WIDTH]), 0.5 + step as f64).expect("it goes"),
            }
            tables.pull(0, step + 1, &[5], bytes_mut(&mut row)).expect("the step is made");
        }
        tables.attend(0, 4).expect("now all have joined");
        tables.pull(0, 5, &[5], bytes_mut(&mut row)).expect("the step is made");
        let refused = tables.push(0, 5, &[5], bytes(&row), f64::NAN).expect_err("it is no rate").to_string();
        tables.close().expect("it ends well");
        (row[0], refused)
    });
    for (value, refused) in told {
        assert_eq!(value, first(5, 0) - 2.0 * (0.5 + 1.5 + 2.5 + 3.5));
        assert_eq!(
            refused,
            "table \"t\": the rate of step 5 is not a number; push with a learning rate that is one"
        );
    }
}

/// Every worker's counters, and what all read at the end.
fn naive(table: TableSpec, collects: bool) -> (Vec<OfficeCounters>, Vec<u32>) {
    let all = run(Hosts::of(&[3, 1]), move |world: &std::sync::Arc<World>, _| {
        let terms = TableTerms { collects, ..TableTerms::default() };
        let mut tables = Tables::open_as(world, vec![table.clone()], terms).expect("tables open");
        steps(&mut tables, world.rank(), 0..6);
        let end = whole(&mut tables, 0);
        let counters = tables.counters().office;
        tables.close().expect("it ends well");
        (counters, end)
    });
    let end = all[0].1.clone();
    assert!(all.iter().all(|(_, other)| *other == end));
    (all.into_iter().map(|(counters, _)| counters).collect(), end)
}

/// R2, R6: what the naive ways send, and that they learn the same.
#[test]
fn workers_that_ask_by_themselves_send_every_row_and_learn_the_same() {
    let (_, wanted) = naive(adam(), true);
    for (collects, raw) in [(false, false), (false, true), (true, true)] {
        let (counters, end) = naive(TableSpec { raw, ..adam() }, collects);
        assert_eq!(end, wanted, "sums are exact here: collects {collects}, raw {raw}");
        if collects {
            continue;
        }
        for (rank, counters) in (0u32..).zip(counters) {
            let rows = (0..6).map(|step| touched(rank, step, HEIGHT).0);
            let sent: usize = match raw {
                true => rows.map(|ids| ids.len()).sum(),
                false => {
                    rows.map(|ids| ids.into_iter().collect::<std::collections::BTreeSet<_>>().len()).sum()
                }
            };
            assert_eq!(counters.pushed_rows, sent as u64, "rank {rank}, raw {raw}");
            assert_eq!(counters.pulled_rows, sent as u64, "rank {rank}, raw {raw}");
        }
    }
    let by_touch = TableSpec { reduction: RowReduction::ByTouch, ..adam() };
    let (_, wanted) = naive(by_touch.clone(), true);
    assert_eq!(naive(TableSpec { raw: true, ..by_touch.clone() }, false).1, wanted);
    run(Hosts::of(&[1]), move |world, _| {
        let opened =
            Tables::open(world, vec![TableSpec { raw: true, ..by_touch.clone() }], Consistency::Sync, 0);
        assert!(matches!(opened, Err(PsError::Spec { .. })), "an office cannot count who touched raw rows");
    });
}
