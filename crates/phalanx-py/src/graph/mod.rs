//! Static training programs for Python. What a layer consists of, what an operation means, how a program runs and what is wrong with it is
//! decided in `phalanx-graph`; `python/phalanx/graph` has Paddle's names and signatures for it.
//!
//! - PYGRAPH-1: operations, kinds of variables and schedules cross as JSON, in the form in which a program is written down.
//! - PYGRAPH-2: an error that names a place in the user's code names a line of Python.
//! - PYGRAPH-3: each executor runs programs in its own thread; a caller waits for it through the gate. After Ctrl-C the run finishes
//!   in the background, and the next one waits for it.
//! - PYGRAPH-4: a program that could not be extended is unchanged.
//! - PYGRAPH-5: the thread that waits for an asynchronous run reads its batches, each when a replica asks for it; nothing that this thread
//!   does meanwhile waits for the run.

pub mod collective;
mod control;
mod error;
mod form;
mod function;
mod hogwild;
mod layer;
mod onnx;
mod optimizer;
mod parallel;
mod program;
mod rewrite;
mod saving;
mod sequential;
mod served;
mod store;
mod strategy;
mod tensor;

pub use hogwild::GraphHogwild;
pub use layer::graph_draft;
pub use onnx::{graph_export_onnx, graph_import_onnx};
pub use parallel::GraphParallelExecutor;
pub use program::GraphProgram;
pub use saving::{graph_load, graph_load_values, graph_save, graph_save_values};
pub use sequential::GraphExecutor;
pub use served::{GraphTables, of_parallax};
pub use store::{GraphStore, lock as store_lock};
