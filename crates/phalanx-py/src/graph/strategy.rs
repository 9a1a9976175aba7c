//! Strategies, as Python passes them and as they are in effect.

use phalanx_graph::{BuildStrategy, ExecutionStrategy, GradientScale, ReduceStrategy, graph::Effective};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};
use std::path::PathBuf;

/// What `phalanx.graph.BuildStrategy` holds.
#[derive(Debug, FromPyObject)]
pub struct Build {
    reduce_strategy: String,
    gradient_scale_strategy: String,
    fuse_all_reduce_ops: bool,
    bucket_bytes: usize,
    accumulate: usize,
    fuse_all_optimizer_ops: bool,
    fuse_elewise_add_act_ops: bool,
    enable_sequential_execution: bool,
    sync_batch_norm: bool,
    async_mode: bool,
    memory_optimize: bool,
    enable_inplace: bool,
    num_trainers: Option<usize>,
    trainer_id: Option<usize>,
    debug_graphviz_path: Option<PathBuf>,
    check_nan_inf: bool,
    pub without_passes: Vec<String>,
}

impl Build {
    pub fn strategy(&self) -> PyResult<BuildStrategy> {
        Ok(BuildStrategy {
            reduce_strategy: one_of("reduce strategy", &self.reduce_strategy, REDUCE)?,
            gradient_scale: one_of("gradient scale", &self.gradient_scale_strategy, SCALE)?,
            fuse_all_reduce_ops: self.fuse_all_reduce_ops,
            bucket_bytes: self.bucket_bytes,
            accumulate: self.accumulate,
            fuse_all_optimizer_ops: self.fuse_all_optimizer_ops,
            fuse_elewise_add_act_ops: self.fuse_elewise_add_act_ops,
            enable_sequential_execution: self.enable_sequential_execution,
            sync_batch_norm: self.sync_batch_norm,
            async_mode: self.async_mode,
            // `GraphTables` says what is on servers.
            served: Vec::new(),
            memory_optimize: self.memory_optimize,
            enable_inplace: self.enable_inplace,
            num_trainers: self.num_trainers,
            trainer_id: self.trainer_id,
            debug_graphviz_path: self.debug_graphviz_path.clone(),
            check_nan_inf: self.check_nan_inf,
        })
    }
}

/// What `phalanx.graph.ExecutionStrategy` holds.
#[derive(Clone, Copy, Debug, FromPyObject)]
pub struct Execution {
    num_threads: usize,
    num_iteration_per_drop_scope: usize,
    num_iteration_per_run: usize,
    dry_run: bool,
}

impl Execution {
    pub fn strategy(self) -> ExecutionStrategy {
        let Execution { num_threads, num_iteration_per_drop_scope, num_iteration_per_run, dry_run } = self;
        ExecutionStrategy { num_threads, num_iteration_per_drop_scope, num_iteration_per_run, dry_run }
    }
}

const REDUCE: &[(&str, ReduceStrategy)] = &[
    ("AllReduce", ReduceStrategy::AllReduce),
    ("Reduce", ReduceStrategy::Reduce),
    ("NoReduce", ReduceStrategy::NoReduce),
];

const SCALE: &[(&str, GradientScale)] = &[
    ("CoeffNumDevice", GradientScale::CoeffNumDevice),
    ("One", GradientScale::One),
    ("Customized", GradientScale::Customized),
    ("BySamples", GradientScale::BySamples),
];

fn one_of<T: Copy>(what: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    let found = known.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
    found.ok_or_else(|| PyValueError::new_err(format!("there is no {what} {name}")))
}

fn name_of<T: PartialEq>(value: &T, known: &[(&'static str, T)]) -> &'static str {
    known.iter().find(|(_, v)| v == value).map_or("", |(name, _)| name)
}

/// Everything that holds, by the names of both strategies.
pub fn effective<'py>(py: Python<'py>, effective: &Effective) -> PyResult<Bound<'py, PyDict>> {
    let (build, exec) = (&effective.build, &effective.exec);
    let dict = PyDict::new(py);
    dict.set_item("devices", effective.replicas)?;
    dict.set_item("reduce_strategy", name_of(&build.reduce_strategy, REDUCE))?;
    dict.set_item("gradient_scale_strategy", name_of(&build.gradient_scale, SCALE))?;
    dict.set_item("fuse_all_reduce_ops", build.fuse_all_reduce_ops)?;
    dict.set_item("bucket_bytes", build.bucket_bytes)?;
    dict.set_item("accumulate", build.accumulate)?;
    dict.set_item("fuse_all_optimizer_ops", build.fuse_all_optimizer_ops)?;
    dict.set_item("fuse_elewise_add_act_ops", build.fuse_elewise_add_act_ops)?;
    dict.set_item("enable_sequential_execution", build.enable_sequential_execution)?;
    dict.set_item("sync_batch_norm", build.sync_batch_norm)?;
    dict.set_item("async_mode", build.async_mode)?;
    dict.set_item("memory_optimize", build.memory_optimize)?;
    dict.set_item("enable_inplace", build.enable_inplace)?;
    dict.set_item("num_trainers", effective.processes)?;
    dict.set_item("trainer_id", effective.process)?;
    dict.set_item("debug_graphviz_path", build.debug_graphviz_path.as_ref())?;
    dict.set_item("check_nan_inf", build.check_nan_inf)?;
    dict.set_item("num_threads", effective.threads)?;
    dict.set_item("num_iteration_per_drop_scope", exec.num_iteration_per_drop_scope)?;
    dict.set_item("num_iteration_per_run", exec.num_iteration_per_run)?;
    dict.set_item("dry_run", exec.dry_run)?;
    Ok(dict)
}
