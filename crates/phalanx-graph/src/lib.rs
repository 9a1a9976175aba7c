//! Static training programs: written for one device, checked before they run, planned once, run many times.
//!
//! A [`Program`] is made with a [`Builder`]; [`Optimizer::minimize`] adds gradients and updates to it as operations; an
//! [`Executor`] plans its memory and runs it on a [`Store`], which holds what lives from run to run. A
//! [`ParallelExecutor`] runs it on several replicas at once, and with other processes through a [`Collective`].

pub mod exec;
pub mod grad;
pub mod graph;
pub mod ir;
pub mod kernel;
pub mod layers;
pub mod onnx;
pub mod op;
pub mod optimizer;
pub mod plan;
pub mod saved;

pub use exec::{
    Collective, CollectiveError, Executor, Feed, Fetch, Fetched, Hogwild, Merge, Options, ParallelExecutor,
    RunError, Setup, Store, Tensor, TensorError,
};
pub use grad::{
    Chosen, accumulate, append_backward, append_backward_of, append_backward_with, append_gradients,
    recompute,
};
pub use graph::{BuildError, BuildStrategy, ExecutionStrategy, GradientScale, ReduceStrategy};
pub use ir::{BATCH, Dim, GraphError, Init, Learn, Program, Role, Shape, Sig, VarId, VarKind};
pub use layers::{Act, Builder};
pub use op::Schedule;
pub use optimizer::{Clip, Names, Optimizer, Rule};

/// The pages for people, whose programs are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/graph.md")]
#[doc = include_str!("../../../docs/graph-programs.md")]
#[doc = include_str!("../../../docs/graph-execution.md")]
#[doc = include_str!("../../../docs/graph-async.md")]
struct GraphPages;
