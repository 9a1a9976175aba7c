//! Static training programs for Python. Layers are put together in `python/phalanx/graph`; what an operation means, how a program runs
//! and what is wrong with it is decided in `phalanx-graph`.
//!
//! - PYGRAPH-1: operations, kinds of variables and schedules cross as JSON, in the form in which a program is written down.
//! - PYGRAPH-2: whatever names a place in the user's code names a line of Python.
//! - PYGRAPH-3: a thread of the executor's own runs programs; whoever waits for it goes through the gate, and after Ctrl-C the run ends
//!   alone and the next one waits for it.
//! - PYGRAPH-4: a program that could not be extended is as it was.
//! - PYGRAPH-5: batches of an asynchronous run are read by the thread that waits for it, one when a replica asks for it; what that thread
//!   does meanwhile never waits for the run.

pub mod collective;
mod control;
mod driver;
mod error;
mod form;
mod hogwild;
mod optimizer;
mod parallel;
mod program;
mod rewrite;
mod saving;
mod sequential;
mod store;
mod strategy;
mod tensor;

pub use hogwild::GraphHogwild;
pub use parallel::GraphParallelExecutor;
pub use program::GraphProgram;
pub use saving::{graph_load, graph_load_values, graph_save, graph_save_values};
pub use sequential::GraphExecutor;
pub use store::GraphStore;
