//! Runs programs. Knows plans and kernels; decides nothing that a plan has decided.

mod error;
mod executor;
mod store;
mod tensor;

pub use error::RunError;
pub use executor::{Executor, Options};
pub use store::Store;
pub use tensor::{Tensor, TensorError};
