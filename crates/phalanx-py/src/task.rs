//! The tasks of a cluster for `phalanx.distributed`: converts, calls `phalanx_net::task`, converts.

use crate::{error, gate, tables::of_tables};
use phalanx_collective::Error;
use phalanx_net::{
    World,
    task::{ServerRotation, TaskError, TaskHosts, TaskSpec, job_began},
};
use phalanx_ps::{PsError, ServerCall, Serving};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    os::unix::process::parent_id,
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

/// One task of a cluster.
#[pyclass(frozen)]
#[derive(Debug)]
pub struct Task {
    pub spec: TaskSpec,
}

fn refused(error: &TaskError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl Task {
    #[new]
    #[pyo3(signature = (task_type, index, ps, workers, master = None))]
    fn new(
        task_type: &str,
        index: u32,
        ps: Vec<String>,
        workers: Vec<String>,
        master: Option<String>,
    ) -> PyResult<Task> {
        let task = task_type.parse().map_err(|e| refused(&e))?;
        let spec = TaskSpec::new(task, index, TaskHosts { ps, workers, master }).map_err(|e| refused(&e))?;
        Ok(Task { spec })
    }

    /// The task that the environment describes, if it describes one.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Option<Task>> {
        match TaskSpec::from_vars(&|name| std::env::var(name).ok()) {
            Ok(spec) => Ok(spec.map(|spec| Task { spec })),
            Err(why) => Err(error::raise(py, "InitializationError", &why.to_string(), &[])),
        }
    }

    /// When the job of this process began, in seconds since 1970, if that is known.
    #[staticmethod]
    fn job_began(py: Python<'_>) -> PyResult<Option<f64>> {
        match job_began(&|name| std::env::var(name).ok(), parent_id()) {
            Ok(time) => {
                Ok(time.and_then(|t| t.duration_since(UNIX_EPOCH).as_ref().map(Duration::as_secs_f64).ok()))
            }
            Err(why) => Err(error::raise(py, "InitializationError", &why.to_string(), &[])),
        }
    }

    #[getter]
    fn task_type(&self) -> &'static str {
        self.spec.task_type().name()
    }

    #[getter]
    fn index(&self) -> u32 {
        self.spec.index()
    }

    #[getter]
    fn trial(&self) -> Option<&str> {
        self.spec.trial()
    }

    #[getter]
    fn ps_hosts(&self) -> Vec<String> {
        self.spec.ps_hosts().to_vec()
    }

    #[getter]
    fn worker_hosts(&self) -> Vec<String> {
        self.spec.worker_hosts().to_vec()
    }

    #[getter]
    fn master(&self) -> Option<&str> {
        self.spec.master()
    }

    /// Numbers of parameter servers and of workers, and which part of the data is this one's.
    #[getter]
    fn numbers(&self) -> (u32, u32, u32) {
        (self.spec.n_ps(), self.spec.n_workers(), self.spec.shard_index())
    }

    #[getter]
    fn is_ps(&self) -> bool {
        self.spec.is_ps()
    }

    #[getter]
    fn is_worker(&self) -> bool {
        self.spec.is_worker()
    }

    #[getter]
    fn is_master(&self) -> bool {
        self.spec.is_master()
    }

    #[getter]
    fn is_evaluator(&self) -> bool {
        self.spec.is_evaluator()
    }

    fn without_last_worker(&self) -> PyResult<Task> {
        let spec = self.spec.use_last_worker_as_evaluator().map_err(|e| refused(&e))?;
        Ok(Task { spec })
    }

    #[getter]
    fn target(&self) -> Option<&str> {
        self.spec.target()
    }

    fn rotation(&self) -> Rotation {
        Rotation { placed: Mutex::new(self.spec.device_fn()) }
    }

    fn __str__(&self) -> String {
        self.spec.to_string()
    }

    /// Joins the world as a server, serves the tables that rank 0 offers, and returns when all workers have left it in order.
    fn serve(&self, py: Python<'_>) -> PyResult<()> {
        let spec = self.spec.clone();
        let joined = gate::enter(py, "serve", move || {
            Serving::new(Arc::new(World::from_env_as(Some(&spec), phalanx_collective::BUILD)?))
        })?;
        let mut serving = joined.map_err(|why| match why {
            PsError::Net(why) => error::of_joining(py, &Error::from(why)),
            why => of_tables(py, why),
        })?;
        loop {
            match gate::wait(py, None, |deadline| serving.poll(deadline).transpose()) {
                Ok(Some(Ok(ServerCall::End))) => break,
                Ok(Some(Ok(ServerCall::Open(offer)))) => {
                    let opened = gate::enter(py, "tables", move || {
                        let opened = serving.open(&offer);
                        (serving, opened)
                    })?;
                    serving = opened.0;
                    if let Err(why) = opened.1 {
                        serving.abandon();
                        return Err(of_tables(py, why));
                    }
                }
                Ok(Some(Err(why))) => {
                    serving.abandon();
                    return Err(of_tables(py, why));
                }
                Ok(None) => {}
                Err(why) => {
                    serving.abandon();
                    return Err(why);
                }
            }
        }
        let ended = gate::enter(py, "leave", move || serving.end())?;
        ended.map_err(|why| of_tables(py, why))
    }
}

/// Which server keeps which variable.
#[pyclass(frozen)]
#[derive(Debug)]
pub struct Rotation {
    /// A lock because Python's threads may share it; held only to look up or add a name.
    placed: Mutex<ServerRotation>,
}

#[pymethods]
impl Rotation {
    fn place(&self, variable: &str) -> String {
        let mut placed = self.placed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ServerRotation::device(placed.place(variable))
    }

    fn __str__(&self) -> String {
        self.placed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).to_string()
    }
}
