//! Single letters to an office or a server, and what they answer.

use crate::worlds::{WIDTH, bytes, spec};
use phalanx_core::Rank;
use phalanx_ps::{
    Consistency, LetterKind, Office, Placement, Port, RowLetter, RowValues, Rows, Shard, ShardSetup,
    TableSpec,
};

fn shard() -> Shard {
    let specs = vec![spec("t")];
    Shard::new(ShardSetup {
        server: 0,
        placement: Placement::greedy(&specs, 1),
        specs,
        consistency: Consistency::Sync,
        n_offices: 2,
        n_workers: 2,
        step: 0,
    })
}

fn letter(kind: LetterKind, from: u32, step: u64, row: &[f32]) -> RowLetter {
    let rows = Rows { ids: vec![1], values: RowValues::of(bytes(row)), ..Rows::default() };
    RowLetter { from, number: 1.0, rows, ..RowLetter::new(kind, 0, step) }
}

fn tell(shard: &mut Shard, office: u32, letter: RowLetter) -> Vec<(Port, RowLetter)> {
    let mut out = Vec::new();
    shard.step(Port::Office(office), letter, &mut out);
    out
}

#[test]
fn rows_are_replaced_after_the_pushes_of_the_steps_before() {
    let mut shard = shard();
    let ones = [1.0; WIDTH];
    assert!(tell(&mut shard, 0, letter(LetterKind::Push, 0, 0, &ones)).is_empty());
    assert!(
        tell(&mut shard, 0, letter(LetterKind::Write, 0, 1, &[9.0; WIDTH])).is_empty(),
        "step 0 is not over"
    );
    assert!(tell(&mut shard, 0, letter(LetterKind::Pull, 0, 1, &[])).is_empty());
    let answers = tell(&mut shard, 1, letter(LetterKind::Push, 1, 0, &ones));
    let kinds: Vec<LetterKind> = answers.iter().map(|(_, letter)| letter.kind).collect();
    assert_eq!(kinds, [LetterKind::Written, LetterKind::Pulled]);
    assert_eq!(answers[1].1.rows.values.as_slice::<f32>(), [9.0; WIDTH], "no gradient came after it");
}

#[test]
fn a_server_refuses_what_comes_in_another_offices_name() {
    let mut shard = shard();
    let answers = tell(&mut shard, 0, letter(LetterKind::Push, 1, 0, &[1.0; WIDTH]));
    assert_eq!(answers[0].1.text(), "a letter of office 1 that comes from another one");
    assert_eq!(shard.version(0), 0);
}

#[test]
fn what_waits_for_a_worker_that_is_gone_is_refused_whoever_comes_first() {
    let wanted = "table \"t\": rank 1 has closed its tables and never pushes step 0";
    let gone = || letter(LetterKind::Gone, 1, 0, &[]);
    let pull = || letter(LetterKind::Pull, 0, 1, &[]);
    let mut first = shard();
    assert!(tell(&mut first, 0, pull()).is_empty());
    assert_eq!(tell(&mut first, 1, gone())[0].1.text(), wanted);
    let mut second = shard();
    assert!(tell(&mut second, 1, gone()).is_empty());
    let now = tell(&mut second, 0, letter(LetterKind::Pull, 0, 0, &[]));
    assert_eq!(now[0].1.kind, LetterKind::Pulled, "this step needs no push");
    assert_eq!(tell(&mut second, 0, pull())[0].1.text(), wanted);
}

/// OFFICE-1: what is kept of a step has a bound.
#[test]
fn an_office_does_not_keep_all_that_evaluation_touches() {
    const LARGE: usize = 1 << 22;
    let specs = vec![TableSpec { width: LARGE, ..spec("t") }];
    let mut office =
        Office::new(0, vec![Rank(0)], specs.clone(), Placement::greedy(&specs, 1), Consistency::Sync, 0);
    let mut pull = |id: u32| {
        let mut out = Vec::new();
        let rows = Rows { ids: vec![id], ..Rows::default() };
        office.step(
            Port::Worker(Rank(0)),
            RowLetter { rows, ..RowLetter::new(LetterKind::Pull, 0, 0) },
            &mut out,
        );
        let (to, asked) = out.remove(0);
        if to == Port::Worker(Rank(0)) {
            return false;
        }
        let rows = Rows { values: RowValues::zeros(LARGE * 4), ..Rows::default() };
        let came = RowLetter { rows, ticket: asked.ticket, ..RowLetter::new(LetterKind::Pulled, 0, 0) };
        office.step(Port::Server(0), came, &mut out);
        assert_eq!((out.len(), out[0].0), (1, Port::Worker(Rank(0))));
        true
    };
    assert!(pull(0) && !pull(0), "a row is fetched once");
    assert!((1..8).all(&mut pull));
    assert!(pull(0), "128 MiB of rows are not kept");
}

/// Any letter that passes the checks of `RowLetter`, in any order: no panic, and never more answers than letters have come.
#[test]
fn letters_in_any_order_are_answered_or_refused() {
    use LetterKind::*;
    const KINDS: [LetterKind; 14] = [
        Hello, Pull, Pulled, Push, Read, HaveRead, Write, Written, Norm, NormIs, Release, Bye, Refused, Gone,
    ];
    for seed in 0..200u64 {
        let mut state = seed * 2_654_435_761 + 99;
        let mut dice = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let specs = vec![spec("t")];
        let mut server = shard();
        let placement = Placement::greedy(&specs, 1);
        let workers = vec![Rank(0), Rank(1)];
        let mut office = Office::new(0, workers, specs.clone(), placement, Consistency::Sync, 0);
        let mut n_answers = 0;
        for _ in 0..100 {
            let kind = KINDS[dice(14) as usize];
            let mut ids: Vec<u32> = (0..dice(5)).map(|_| dice(40) as u32).collect();
            ids.sort_unstable();
            ids.dedup();
            let values = match kind {
                Push | Write => RowValues::zeros(ids.len() * WIDTH * 4),
                _ => RowValues::default(),
            };
            if !matches!(kind, Pull | Read | Push | Write) {
                ids.clear();
            }
            let step = [0, 1, 2, dice(5), u64::MAX - 1][dice(5) as usize];
            let from = [0, 1, 2, u32::MAX][dice(4) as usize];
            let number = [0.0, 1.0, f64::NAN, f64::INFINITY][dice(4) as usize];
            let ticket = dice(6);
            let rows = Rows { ids, values, ..Rows::default() };
            let letter = RowLetter { from, ticket, number, rows, ..RowLetter::new(kind, 0, step) };
            assert_eq!(letter.check(&specs).ok(), Some(()), "seed {seed}");
            let mut out = Vec::new();
            server.step(Port::Office(dice(2) as u32), letter.clone(), &mut out);
            n_answers += out.len();
            out.clear();
            let port = match dice(3) {
                0 => Port::Server(0),
                n => Port::Worker(Rank(n as u32 - 1)),
            };
            office.step(port, letter, &mut out);
        }
        // A refusal may go to both offices.
        assert!(n_answers <= 200, "seed {seed}: {n_answers}");
    }
}
