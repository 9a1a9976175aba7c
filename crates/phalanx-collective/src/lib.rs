//! Collective algorithms as data, what proves and prices them, and the Communicator that runs them.

mod buffer;
mod bytes;
mod cache;
mod call;
mod communicator;
pub mod ddl;
pub mod engine;
mod error;
mod explore;
mod invoke;
mod meter;
mod mpi;
pub mod plan;
mod run;
mod split;

/// For the fuzz targets only: decoders that nobody else may call.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::engine::fuzzing::letters;

    /// Judges the header of a message on a link, against the call whose words stand first.
    pub fn link_header(bytes: &[u8]) {
        if let Some((mine, rest)) = bytes.split_first_chunk::<32>()
            && let Some(header) = rest.first_chunk()
        {
            let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|j| mine[i * 8 + j]));
            let words =
                crate::call::CallSignature { what: word(0), count: word(1), factors: [word(2), word(3)] };
            let _ = crate::run::exchange::judge(header, words, word(0), word(1));
        }
    }
}

/// Which build this is: ranks of one world must have the same.
pub const BUILD: &str = env!("BUILD_OF_PHALANX");

pub use buffer::ArenaVec;
pub use communicator::{Communicator, Scale};
pub use error::Error;
pub use explore::{ExploredWays, saved::ExploreError};
pub use meter::{Meter, TierTraffic};
#[doc(hidden)]
pub use run::exchange::WireFault;
