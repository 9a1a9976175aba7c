//! Static training programs: written for one device, checked before they run, planned once, run many times.
//!
//! A [`Program`] is made with a [`Builder`]; [`Optimizer::minimize`] adds gradients and updates to it as operations; an
//! [`Executor`] plans its memory and runs it on a [`Store`], which holds what lives from run to run.

pub mod exec;
pub mod grad;
pub mod ir;
pub mod kernel;
pub mod layers;
pub mod op;
pub mod optimizer;
pub mod plan;

pub use exec::{Executor, Options, RunError, Store, Tensor, TensorError};
pub use grad::{append_backward, append_gradients};
pub use ir::{BATCH, Dim, GraphError, Init, Learn, Program, Role, Shape, Sig, VarId, VarKind};
pub use layers::{Act, Builder};
pub use op::Schedule;
pub use optimizer::{Clip, Optimizer, Rule};
