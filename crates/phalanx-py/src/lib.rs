//! The Python module `phalanx._phalanx`: converts arguments, calls the engine, converts results. The engine and `python/phalanx` decide what they
//! mean. No other crate uses pyo3.
//!
//! - PY-1: no thread of the engine takes the GIL; the thread that reads Python's stack ([`stack`]) does nothing else. pyo3 defers the release of
//!   Python objects that engine threads drop until a Python thread runs.
//! - PY-2: a thread that waits has released the GIL and checks for signals every [`gate::SLICE`].
//! - PY-3: [`state`] is locked only by a thread that holds the GIL, and never while it waits; so a fork, which also holds the GIL, finds it free.

mod alike;
mod array;
mod command;
mod ddl;
mod digest;
mod dlpack;
mod driver;
mod error;
mod events;
mod gate;
mod graph;
mod lent;
mod native;
mod operation;
mod packing;
mod sampler;
mod session;
mod stack;
mod state;
mod submit;
mod tables;
mod task;
mod world;

use pyo3::prelude::*;

#[pymodule]
mod _phalanx {
    #[pymodule_export]
    use crate::{
        alike::{alike_forget, alike_hold, alike_judge, alike_row, alike_turn},
        array::Array,
        command::{resources, run_command},
        ddl::{
            ddl_baseline, ddl_begin, ddl_coordinates, ddl_dump_due, ddl_end, ddl_found, ddl_greeting,
            ddl_groups, ddl_judge, ddl_may_ask_mpi, ddl_rebind, ddl_rebind_due, ddl_report, ddl_shape,
            ddl_shown, ddl_verdict, ddl_without_mpi,
        },
        digest::digests,
        events::EventFile,
        gate::_panic,
        graph::{
            GraphExecutor, GraphHogwild, GraphParallelExecutor, GraphProgram, GraphStore, GraphTables,
            graph_draft, graph_export_onnx, graph_import_onnx, graph_load, graph_load_values, graph_save,
            graph_save_values,
        },
        native::{native_failure, native_table},
        operation::Operation,
        packing::Packing,
        sampler::{DataIndices, DataSampler},
        session::{CheckpointFile, CheckpointFollower, SessionCore, SessionHook},
        stack::tell_failure,
        state::{abandon, close, init, is_initialized, shutdown},
        submit::{join, submit},
        tables::{PartitionSearch, ServedTables, free_memory, predicted},
        task::{Rotation, Task},
        world::{
            add_process_set, check_every, counters, fusion_bytes, give_up, hosts, is_homogeneous, is_strict,
            last_stall, place, process_sets, remove_process_set, start_timeline, stop_timeline,
            throughput_every, zeros,
        },
    };

    use super::*;

    #[pymodule_init]
    fn init_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
