//! The words of Phalanx. No I/O, no threads, no clocks.
//!
//! Glossary: each word means one thing everywhere in the code.
//! - **rank**: one process of a world, numbered from 0: workers first, then servers.
//! - **world**: the membership of one epoch.
//! - **epoch**: the number of a world; after a failure or a resize the next epoch's world is built.
//! - **host**: ranks that share one memory (the same machine and network namespace).
//! - **tier**: one level of the network, 0 the innermost (inside a host).
//! - **link**: an authenticated byte stream between two ranks.
//! - **arena**: the shared memory of the ranks of one host.
//! - **plan**: what one rank does in one collective, a list of **step**s.
//! - **chunk**: one rank's share of a vector; **segment**: one pipelined piece of it.
//! - **batch**: tensors fused together; **bucket**: graph gradients fused together.

pub mod config;
mod dtype;
mod grid;
pub mod kernel;
pub mod log;
mod op;
mod rank;
mod role;
pub mod topology;
pub mod trace;

pub use config::{Config, ConfigError, Encrypt, Transport};
pub use dtype::{DType, Element, UnknownDType};
pub use grid::{Grid, UnknownWay, Way};
pub use op::{OpError, ReduceOp};
pub use rank::{Epoch, Rank};
pub use role::{TaskRole, UnknownRole};
pub use topology::{Tiers, Topology};
