//! Collective algorithms as data, what proves and prices them, and the Communicator that runs them.

mod buffer;
mod bytes;
mod cache;
mod call;
mod communicator;
mod error;
pub mod plan;
mod run;
mod split;

pub use buffer::ArenaVec;
pub use communicator::{Communicator, Scale};
pub use error::Error;
