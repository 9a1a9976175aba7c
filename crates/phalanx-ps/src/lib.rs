//! Tables of parameters on servers: rows that workers pull, gradients that they push, and the rules that change the rows where they are.
//!
//! Words: a *table* is cut into *partitions*; a *server* has some partitions of every table; the *office* of a host collects what its workers
//! want and give. A process has at most one *station*: the thread that runs its office, its server, or both.
//! `Tables` is what a worker sees. `Shard` and `Office` decide; `station` and `mail` only carry letters.

mod counter;
mod error;
mod exact_sum;
mod gathering;
mod greeting;
mod letter;
mod line;
mod mail;
mod memory;
mod offer;
mod office;
mod placement;
mod reshard;
mod search;
mod search_run;
mod seats;
mod serving;
mod shard;
mod spec;
mod split;
mod station;
mod tables;
#[cfg(test)]
mod testing;
mod values;

/// For the fuzz targets and tests only.
#[doc(hidden)]
pub mod fuzzing {
    use crate::{
        Consistency, Office, Placement, Port, Road, RowReduction, Shard, ShardSetup, Spread, TableRule,
        TableSpec, TableUpdate,
    };
    use phalanx_core::{
        DType, Rank,
        kernel::update::{Adagrad, Adam},
    };
    use std::sync::Arc;

    pub use crate::mail::letters_in;

    /// Tables of every form that a letter may be about: few rows, so that few bytes are a whole letter.
    pub fn tables() -> Vec<TableSpec> {
        let plain = TableSpec {
            name: "plain".into(),
            height: 8,
            width: 2,
            dtype: DType::F32,
            first: Arc::new(|_, _| ()),
            rule: TableRule::new(TableUpdate::Sgd),
            reduction: RowReduction::Sum,
            wire: None,
            partitions: 3,
            spread: Spread::Mod,
            raw: false,
        };
        let adam = Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, decay: 0.0, epsilon_first: true };
        let named = |name: &str, spec: &TableSpec| TableSpec { name: name.into(), ..spec.clone() };
        vec![
            plain.clone(),
            TableSpec { reduction: RowReduction::ByTouch, ..named("touched", &plain) },
            TableSpec { raw: true, spread: Spread::Range, ..named("raw", &plain) },
            TableSpec { wire: Some(DType::F16), reduction: RowReduction::Mean, ..named("narrow", &plain) },
            TableSpec {
                dtype: DType::F64,
                rule: TableRule::new(TableUpdate::Adagrad(Adagrad { epsilon: 0.1 })),
                ..named("wide", &plain)
            },
            TableSpec { rule: TableRule::new(TableUpdate::Adam(adam)), ..named("adam", &plain) },
        ]
    }

    /// Reads letters from bytes; the first two say in which pieces they come, and who gets them. Whatever the letters say, a server and an
    /// office answer or refuse. Returns how many letters there were.
    pub fn row_letters(bytes: &[u8], specs: &[TableSpec]) -> usize {
        let Some((&[piece, who], bytes)) = bytes.split_first_chunk::<2>() else { return 0 };
        let road = if who & 1 == 0 { Road::Own } else { Road::Between };
        let letters = letters_in(bytes, usize::from(piece), specs, road);
        let n = letters.len();
        let placement = Placement::greedy(specs, 1);
        let mut shard = Shard::new(ShardSetup {
            server: 0,
            specs: specs.to_vec(),
            placement: placement.clone(),
            consistency: Consistency::Sync,
            n_offices: 1,
            n_workers: 2,
            step: 0,
        });
        let workers = vec![Rank(0), Rank(1)];
        let mut office = Office::new(0, workers, specs.to_vec(), placement, Consistency::Sync, 0);
        for letter in letters {
            let mut out = Vec::new();
            if road == Road::Own {
                office.step(Port::Worker(Rank(u32::from(who >> 1 & 1))), letter, &mut out);
                continue;
            }
            shard.step(Port::Office(0), letter.clone(), &mut out);
            office.step(Port::Server(0), letter, &mut out);
        }
        n
    }
}

pub use error::PsError;
pub use exact_sum::ExactSum;
pub use letter::{BodyLengths, HEADER, LetterError, LetterKind, Road, RowLetter};
pub use memory::free as free_memory;
pub use offer::TablesOffer;
pub use office::{Office, OfficeCounters, Port};
pub use placement::{Placement, RowPlace, TableLayout};
pub use search::{Next, Search, Trial};
pub use search_run::SearchRun;
pub use seats::Seats;
pub use serving::{ServerCall, Serving};
pub use shard::{Shard, ShardSetup};
pub use spec::{FirstValues, RowReduction, Spread, TableClip, TableRule, TableSpec, TableUpdate};
pub use tables::{Consistency, TableCounters, TableTerms, Tables};
pub use values::{RowValues, Rows};
