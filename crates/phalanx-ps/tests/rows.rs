//! What leaves a host, reading and writing with every bit, and what is refused before it is sent.

use crate::worlds::{Hosts, WIDTH, bytes, bytes_mut, first, rules, run, spec, touched};
use phalanx_core::DType;
use phalanx_ps::{Consistency, PsError, RowReduction, TableClip, TableRule, TableSpec, Tables};
use std::collections::BTreeSet;

#[test]
fn a_host_fetches_each_row_once_and_sends_the_union() {
    const STEPS: u64 = 6;
    let counted = run(Hosts::of(&[3, 1]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("t")], Consistency::Sync, 0).expect("tables open");
        for step in 0..STEPS {
            let (ids, grads) = touched(world.rank().0, step, 40);
            let mut rows = vec![0.0f32; grads.len()];
            tables.pull(0, step, &ids, bytes_mut(&mut rows)).expect("rows come");
            // Twice in a step: from what the office has.
            tables.pull(0, step, &ids, bytes_mut(&mut rows)).expect("rows come");
            tables.push(0, step, &ids, bytes(&grads), 0.5).expect("gradients go");
        }
        // The answer to this comes after everything before was counted.
        tables.pull(0, STEPS, &[0], bytes_mut(&mut [0.0; WIDTH])).expect("rows come");
        let counters = tables.counters();
        tables.close().expect("it ends well");
        counters
    });
    let union = |workers: std::ops::Range<u32>| -> (u64, u64, u64) {
        let mut totals = (0, 0, 0);
        for step in 0..STEPS {
            let sets: Vec<BTreeSet<u64>> =
                workers.clone().map(|w| touched(w, step, 40).0.into_iter().collect()).collect();
            totals.0 += sets.iter().flatten().collect::<BTreeSet<_>>().len() as u64;
            totals.1 += sets.iter().map(|set| set.len() as u64).sum::<u64>();
            totals.2 += 1;
        }
        totals
    };
    for (rank, workers) in [(0usize, 0..3), (3, 3..4)] {
        let (all, wanted, _) = union(workers.clone());
        let office = counted[rank].office;
        let n = workers.len() as u64;
        assert_eq!(office.pushed_rows, all, "OFFICE-2: rows pushed are the union");
        assert_eq!(office.pulled_rows, all + 1, "OFFICE-1: and so are rows pulled, with the last one");
        assert_eq!(office.given_rows, wanted, "{rank}");
        // The last row of the other workers of the host may be asked for later than that of this one.
        assert!(
            (2 * wanted + 1..=2 * wanted + n).contains(&office.wanted_rows),
            "{rank}: {}",
            office.wanted_rows
        );
    }
}

#[test]
fn rows_and_states_are_read_and_written_with_every_bit() {
    run(Hosts::of(&[1, 1]), |world, _| {
        let rule = TableRule::new(rules()[3].1);
        let table = TableSpec { rule, wire: Some(DType::F16), ..spec("t") };
        let mut tables = Tables::open(world, vec![table], Consistency::Sync, 7).expect("tables open");
        if world.rank().0 == 0 {
            for part in 0..3u8 {
                let rows = [1.0f32 + f32::EPSILON, f32::MIN_POSITIVE, 3e38, -0.0, 0.1, 0.3];
                tables.write(0, part, &[39, 2], bytes(&rows)).expect("rows are written");
                let mut back = [0.0f32; 9];
                tables.read(0, part, &[2, 39, 2], bytes_mut(&mut back)).expect("rows come");
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&back[3..6]), bits(&rows[..3]));
                assert_eq!((bits(&back[..3]), bits(&back[6..])), (bits(&rows[3..]), bits(&rows[3..])));
            }
        }
        tables.close().expect("it ends well");
    });
}

#[test]
fn what_is_wrong_is_said_with_table_and_both_sides_and_nothing_is_sent() {
    run(Hosts::of(&[1, 1]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("words")], Consistency::Sync, 0).expect("tables open");
        let mut row = [0.0f32; WIDTH];
        let says = |result: Result<(), PsError>| result.expect_err("it is refused").to_string();
        assert_eq!(
            says(tables.pull(0, 0, &[3, 40], bytes_mut(&mut [0.0; 2 * WIDTH]))),
            "table \"words\": row 40 at place 1 is not in 0..40"
        );
        assert_eq!(
            says(tables.pull(0, 0, &[3, 4], bytes_mut(&mut row))),
            "table \"words\": there is room for 12 bytes where 2 rows of 12 bytes need 24"
        );
        assert_eq!(
            says(tables.push(0, 0, &[3], &[0; 8], 0.1)),
            "table \"words\": the gradients have 8 bytes where 1 rows of 12 bytes need 12"
        );
        assert_eq!(
            says(tables.push(0, 1, &[], &[], 0.1)),
            "table \"words\": step 1 comes before step 0 was pushed; push every step once, in order, with no rows if there are none"
        );
        assert_eq!(says(tables.pull(1, 0, &[], &mut [])), "the world has no table number 1");
        assert_eq!(says(tables.read(0, 1, &[], &mut [])), "table \"words\": it has 0 states, not 1");
        assert_eq!(says(tables.write(0, 1, &[], &[])), "table \"words\": it has 0 states, not 1");
        tables.push(0, 0, &[3], bytes(&[1.0; WIDTH]), 0.5).expect("and goes on");
        assert_eq!(
            says(tables.push(0, 0, &[3], bytes(&row), 0.1)),
            "table \"words\": step 0 was pushed already; the next one is 1"
        );
        tables.pull(0, 1, &[3], bytes_mut(&mut row)).expect("rows come");
        assert_eq!(row[0], first(3, 0) - 2.0 * 0.5);
        tables.close().expect("it ends well");
    });
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let refused = |spec: TableSpec, consistency| {
        run(Hosts::of(&[1]), move |world, _| {
            Tables::open(world, vec![spec.clone()], consistency, 0).expect_err("it is refused").to_string()
        })
        .remove(0)
    };
    let sync = Consistency::Sync;
    assert_eq!(
        refused(TableSpec { height: 0, ..spec("t") }, sync),
        "table \"t\": a table has 1 to 4294967295 rows, not 0"
    );
    assert_eq!(
        refused(TableSpec { partitions: 41, ..spec("t") }, sync),
        "table \"t\": 40 rows are cut into 1 to 40 partitions, not 41"
    );
    assert!(refused(TableSpec { dtype: DType::F16, ..spec("t") }, sync).contains("f32 or f64, not f16"));
    let huge = TableSpec { height: u64::from(u32::MAX), width: 1 << 20, ..spec("t") };
    assert!(refused(huge, sync).contains("bytes for them and has "));
    let clipped = TableRule { clip: TableClip::Norm(1.0), ..spec("t").rule };
    assert!(refused(TableSpec { rule: clipped, ..spec("t") }, Consistency::Async).contains("needs sync"));
    let mean = TableSpec { reduction: RowReduction::Mean, ..spec("t") };
    assert!(refused(mean, Consistency::Bounded(2)).contains("only a sum"));
}

#[test]
fn ranks_that_open_other_tables_are_told_of_both() {
    let said = run(Hosts::of(&[1, 1]), |world, _| {
        let width = if world.rank().0 == 1 { 5 } else { WIDTH };
        let opened = Tables::open(world, vec![TableSpec { width, ..spec("t") }], Consistency::Sync, 0);
        opened.expect_err("they differ").to_string()
    });
    assert!(said.iter().all(|text| text.contains("40 x 3 f32") && text.contains("40 x 5 f32")), "{said:?}");
}

#[test]
fn rows_that_were_written_are_seen_in_the_same_step() {
    run(Hosts::of(&[2, 1]), |world, _| {
        let mut tables = Tables::open(world, vec![spec("t")], Consistency::Sync, 0).expect("tables open");
        let mut row = [0.0f32; WIDTH];
        tables.pull(0, 0, &[3], bytes_mut(&mut row)).expect("rows come");
        // As every rank does that loads a file.
        tables.write(0, 0, &[3], bytes(&[7.0; WIDTH])).expect("rows are written");
        tables.pull(0, 0, &[3], bytes_mut(&mut row)).expect("rows come");
        assert_eq!(row, [7.0; WIDTH]);
        tables.push(0, 0, &[], &[], 0.5).expect("it goes on");
        tables.pull(0, 1, &[3], bytes_mut(&mut row)).expect("rows come");
        assert_eq!(row, [7.0; WIDTH]);
        tables.close().expect("it ends well");
    });
}
