//! What a host needs for the tables that it serves.

use crate::worlds::{Hosts, bytes_mut, rules, run, spec};
use phalanx_ps::{Consistency, TableRule, TableSpec, Tables};

const ROWS: u64 = 200_000;
const WIDTH: usize = 64;
const ROW: usize = WIDTH * 4;
const TOUCHED: usize = 1000;

/// The most memory that this process has had, in bytes.
fn peak() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has a peak");
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kib << 10
}

/// Rows, states, and what two steps move: not more than a tenth beyond them. The process of a test runs nothing else.
#[test]
fn tables_take_a_tenth_more_than_their_rows_and_states_at_most() {
    let taken = run(Hosts::of(&[1]), |world, _| {
        let rule = TableRule { first_state: 0.1, ..TableRule::new(rules()[2].1) };
        let first = std::sync::Arc::new(|row: u64, bytes: &mut [u8]| bytes.fill(row as u8 & 0x3f));
        let table = TableSpec { height: ROWS, width: WIDTH, rule, first, ..spec("t") };
        let (ids, grads) = ((0..TOUCHED as u64).map(|i| i * 7).collect::<Vec<_>>(), vec![0; TOUCHED * ROW]);
        let mut rows = vec![0.0f32; TOUCHED * WIDTH];
        let before = peak();
        let mut tables = Tables::open(world, vec![table], Consistency::Sync, 0).expect("tables open");
        for step in 0..10 {
            tables.pull(0, step, &ids, bytes_mut(&mut rows)).expect("rows come");
            tables.push(0, step, &ids, &grads, 0.1).expect("gradients go");
        }
        tables.pull(0, 10, &ids, bytes_mut(&mut rows)).expect("rows come");
        let taken = peak() - before;
        tables.close().expect("it ends well");
        taken
    });
    let own = 2 * ROWS as usize * ROW;
    let most = own / 10 * 11 + 2 * 2 * TOUCHED * ROW;
    assert!(taken[0] >= own / 2, "the tables are really there: {}", taken[0]);
    assert!(taken[0] <= most, "{} bytes for {own} bytes of rows and states, at most {most}", taken[0]);
}
