//! Runs programs. Knows plans and kernels; decides nothing that a plan has decided.

mod error;
mod executor;
mod first;
mod hogwild;
mod little_endian;
mod parallel;
mod store;
mod tensor;

pub use error::RunError;
pub use executor::{Executor, Options};
pub use first::first_values;
pub use hogwild::{Hogwild, NamedFeeds, ReaderError, Update, each};
pub use parallel::{
    Alone, Collective, CollectiveError, Data, Done, DryRun, Feed, Fetch, Fetched, LocalServed, Merge, Offer,
    ParallelExecutor, PushedRows, Refusal, Served, Setup, tree,
};
pub use store::Store;
pub use tensor::{Tensor, TensorError};
