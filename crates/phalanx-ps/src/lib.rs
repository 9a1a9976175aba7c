//! Tables of parameters on servers: rows that workers pull, gradients that they push, and the rules that change the rows where they are.
//!
//! Words: a *table* is cut into *partitions*; a *server* has some partitions of every table; the *office* of a host collects what its workers
//! want and give. A process has at most one *station*: the thread that runs its office, its server, or both.
//! `Tables` is what a worker sees. `Shard` and `Office` decide; `station` and `mail` only carry letters.

mod error;
mod exact_sum;
mod gathering;
mod greeting;
mod letter;
mod line;
mod mail;
mod memory;
mod office;
mod placement;
mod reshard;
mod search;
mod search_run;
mod seats;
mod shard;
mod spec;
mod split;
mod station;
mod tables;
#[cfg(test)]
mod testing;
mod values;

pub use error::PsError;
pub use exact_sum::ExactSum;
pub use letter::{BodyLengths, HEADER, LetterError, LetterKind, Road, RowLetter};
pub use office::{Office, OfficeCounters, Port};
pub use placement::{Placement, RowPlace, TableLayout};
pub use search::{Next, Search, Trial};
pub use search_run::SearchRun;
pub use seats::Seats;
pub use shard::{Shard, ShardSetup};
pub use spec::{FirstValues, RowReduction, Spread, TableClip, TableRule, TableSpec, TableUpdate};
pub use tables::{Consistency, TableCounters, TableTerms, Tables};
pub use values::{RowValues, Rows};
