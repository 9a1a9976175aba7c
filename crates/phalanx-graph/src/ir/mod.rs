//! The intermediate representation: what a program is. Knows no memory, no threads, no kernels.

mod body;
mod error;
mod nested;
mod outline;
mod program;
mod prune;
mod refit;
mod shape;
mod sig;
mod text;
mod verify;

pub use body::Body;
pub use error::{GraphError, Misfit};
pub use nested::MOST_NESTED;
pub(crate) use nested::nested;
pub use outline::{Region, captures};
pub use program::{Init, Learn, Op, OpId, Program, Role, Site, Var, VarId, VarKind};
pub use shape::{BATCH, Dim, MAX_RANK, Shape};
pub use sig::{ALIGN, MAX_OUTPUTS, Sig, Storage};
