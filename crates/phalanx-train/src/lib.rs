//! Distributed training of programs: with [`Ranks`] the processes of a world train one program together.
//!
//! ```
//! use phalanx_graph::{Act, BATCH, Builder, Dim, Feed, Fetch, Optimizer, ParallelExecutor, Rule, Setup, Store, Tensor};
//! use phalanx_train::Ranks;
//! use std::sync::Arc;
//!
//! let ranks = Ranks::from_env()?;
//! let mut b = Builder::new();
//! let x = b.feed("x", phalanx_core::DType::F32, [BATCH, Dim::Fixed(2)])?;
//! let y = b.fc(x, 1, Act::None)?;
//! let loss = b.mean(y)?;
//! let loss = b.named(loss, "loss")?;
//! let mut program = b.finish()?;
//! Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss)?;
//!
//! let setup = Setup { collective: Arc::new(ranks), replicas: Some(2), ..Setup::default() };
//! let mut train = ParallelExecutor::new(&program, Some("loss"), setup)?;
//! let mut store = Store::new(1);
//! let samples = Tensor::new(&[4, 2], &[1f32; 8])?;
//! train.run(&mut store, &[("x", Feed::Split(&samples))], &[Fetch::mean("loss")])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod data;
pub mod events;
pub mod parallax;
pub mod session;

mod ranks;

pub use ranks::{Lent, Ranks};
