//! Phalanx: write it for one device; march it on many.
//!
//! A [`Communicator`] is a group of processes, its *ranks*, that call the same collectives in the same order. The
//! program below is complete. Started alone it is a world of one; started with `phalanx run -np 4 -- ./program` four
//! copies of it find each other and share the work.
//!
//! ```
//! use phalanx::{Communicator, ReduceOp};
//!
//! fn main() -> Result<(), phalanx::Error> {
//!     let mut comm = Communicator::from_env()?;
//!     let mut gradients = vec![comm.rank().0 as f32; 1000];
//!     comm.allreduce(&mut gradients, ReduceOp::Average)?;
//!     assert_eq!(gradients[0], (comm.size() - 1) as f32 / 2.0);
//!     Ok(())
//! }
//! ```
//!
//! Gradients that live in memory from [`Communicator::alloc`] are reduced without being copied first: the ranks of a
//! host read and write each other's [`ArenaVec`]s during a call.
//!
//! ```
//! # use phalanx::{Communicator, ReduceOp};
//! # fn main() -> Result<(), phalanx::Error> {
//! let mut comm = Communicator::from_env()?;
//! let mut bucket = comm.alloc::<f32>(1 << 20)?;
//! bucket.fill(1.0);
//! comm.allreduce(&mut bucket, ReduceOp::Sum)?;
//! assert_eq!(bucket[0], comm.size() as f32);
//! # Ok(())
//! # }
//! ```
//!
//! Static programs are in `graph`, and `train` lets ranks train one together. The feature `graph`, which is on by default,
//! brings both.
//!
#![cfg_attr(
    feature = "graph",
    doc = r#"```
use phalanx::{DType, graph::{Act, BATCH, Builder, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Rule, Setup, Store, Tensor}};
use std::sync::Arc;

let mut b = Builder::new();
let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2)])?;
let y = b.fc(x, 1, Act::None)?;
let loss = b.mean(y)?;
let loss = b.named(loss, "loss")?;
let mut program: phalanx::graph::Program = b.finish()?;
Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss)?;

let ranks = phalanx::train::Ranks::from_env()?;
let setup = Setup { collective: Arc::new(ranks), replicas: Some(1), ..Setup::default() };
let mut train = ParallelExecutor::new(&program, Some("loss"), setup)?;
let samples = Tensor::new(&[4, 2], &[1f32; 8])?;
train.run(&mut Store::new(1), &[("x", Feed::Split(&samples))], &[Fetch::mean("loss")])?;
# Ok::<(), Box<dyn std::error::Error>>(())
```"#
)]
//!
//! This crate decides nothing itself. It names what a program needs of the crates below it, which remain reachable as
//! [`core`], [`net`] and [`collective`].

pub use phalanx_collective as collective;
pub use phalanx_core as core;
#[cfg(feature = "graph")]
pub use phalanx_graph as graph;
pub use phalanx_net as net;
#[cfg(feature = "graph")]
pub use phalanx_train as train;

pub use phalanx_collective::{ArenaVec, Communicator, Error, Scale, ddl, engine};
pub use phalanx_core::{
    Config, ConfigError, DType, Element, Epoch, Grid, OpError, Rank, ReduceOp, Tiers, Topology, Transport,
    Way,
};
pub use phalanx_net::{NetError, World, lost::Cause};

/// The pages for people, whose programs are compiled and run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/communicator.md")]
    struct CommunicatorPage;
    #[doc = include_str!("../../../docs/engine.md")]
    struct EnginePage;
}
