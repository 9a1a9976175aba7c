//! Sessions for Python: what their hooks decide, what ranks agree on between two steps, and checkpoints. What a step is, Python knows alone.
//!
//! One thread owns a session's exchanges with the other ranks; a caller waits for it through the gate. After Ctrl-C it goes on alone.
//! Tensors of Python's are copied where they lie, between two steps; nothing of Python's is used while a checkpoint is written.

mod core;
mod error;
mod files;
mod hook;
mod part;

pub use core::SessionCore;
pub use files::{CheckpointFile, CheckpointFollower};
pub use hook::SessionHook;
