//! Runs programs. Knows plans and kernels; decides nothing that a plan has decided.

mod error;
mod executor;
mod hogwild;
mod little_endian;
mod parallel;
mod store;
mod tensor;

pub use error::RunError;
pub use executor::{Executor, Options};
pub use hogwild::{Hogwild, NamedFeeds, ReaderError, Update, each};
pub use parallel::{
    Alone, Collective, CollectiveError, Data, Done, DryRun, Feed, Fetch, Fetched, Merge, Offer,
    ParallelExecutor, Refusal, Setup, tree,
};
pub use store::Store;
pub use tensor::{Tensor, TensorError};
