//! What workers, offices and servers read from each other, many inputs of a seed: no panic, no allocation above what the tables allow.

#[path = "../../phalanx-net/tests/inputs/mod.rs"]
mod inputs;

use inputs::{Chance, N_INPUTS, largest_allocation};
use phalanx_ps::{
    HEADER, LetterKind, Road, RowLetter, RowReduction, RowValues, Rows, TableSpec,
    fuzzing::{letters_in, row_letters, tables},
};

/// Words are the longest that a letter may have in tables as small as these.
const CAP: usize = 1 << 20;

/// A letter as it travels.
fn written(letter: &RowLetter) -> Vec<u8> {
    let numbers = |all: &[u32]| all.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let rows = &letter.rows;
    [&letter.header()[..], &numbers(&rows.ids), &numbers(&rows.touches), rows.values.bytes()].concat()
}

/// Letters that each table takes.
fn valid(specs: &[TableSpec], road: Road) -> Vec<Vec<u8>> {
    let mut all = vec![written(&RowLetter::words(LetterKind::Refused, 3, "why not"))];
    for (table, spec) in specs.iter().enumerate() {
        let dtype = if road == Road::Between { spec.wire_dtype() } else { spec.dtype };
        let of = |kind: LetterKind, row_bytes: usize, ids: &[u32]| {
            let counts = kind == LetterKind::Push && spec.reduction == RowReduction::ByTouch;
            let touches = if counts { vec![1; ids.len()] } else { Vec::new() };
            let rows = Rows { ids: ids.to_vec(), touches, values: RowValues::zeros(ids.len() * row_bytes) };
            RowLetter { rows, number: 0.5, ..RowLetter::new(kind, table as u32, 0) }
        };
        let ids = [1, 3, 6];
        all.extend([
            written(&of(LetterKind::Pull, 0, &ids)),
            written(&of(LetterKind::Push, spec.width * dtype.size(), &ids)),
            written(&of(LetterKind::Write, spec.row_bytes(), &ids)),
            written(&of(LetterKind::Age, 0, &[])),
            written(&of(LetterKind::Bye, 0, &[])),
        ]);
    }
    all
}

#[test]
fn letters_come_in_whatever_pieces_they_come() {
    let specs = tables();
    for road in [Road::Own, Road::Between] {
        let all = valid(&specs, road);
        let bytes = all.concat();
        for piece in [1, 7, HEADER, bytes.len()] {
            assert_eq!(letters_in(&bytes, piece, &specs, road).len(), all.len(), "{road:?}, {piece} at once");
        }
    }
}

/// LETTER-1.
#[test]
fn whatever_a_peer_writes_is_a_letter_or_an_error() {
    let (seed, specs) = (15, tables());
    println!("seed {seed}");
    let roads = [valid(&specs, Road::Own), valid(&specs, Road::Between)];
    let mut n_letters = 0;
    let largest = largest_allocation(|| {
        let chance = &mut Chance(seed);
        for _ in 0..N_INPUTS / 10 {
            let who = chance.next() as u8;
            let valid = &roads[usize::from(who & 1)];
            let mut bytes = vec![chance.next() as u8, who];
            for _ in 0..1 + chance.below(3) {
                let next = match chance.below(8) {
                    0 => {
                        let len = chance.below(2 * HEADER);
                        chance.bytes(len)
                    }
                    1 | 2 => chance.pick(valid).clone(),
                    _ => {
                        let whole = chance.pick(valid);
                        chance.tamper(whole)
                    }
                };
                bytes.extend(next);
            }
            n_letters += row_letters(&bytes, &specs);
        }
    });
    println!("{n_letters} letters, largest allocation {largest} bytes");
    assert!(n_letters > 10_000, "letters are reached: {n_letters}");
    assert!(largest <= CAP, "{largest} bytes were allocated at once, the cap is {CAP}");
}
