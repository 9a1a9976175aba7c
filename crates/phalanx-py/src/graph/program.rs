//! A program, as Python sees it: variables have names, operations are written down.

use super::{
    control::{Branch, Loop},
    error, form,
    form::SourceLine,
    function,
    optimizer::OptimizerSpec,
    rewrite,
};
use crate::lent::dtype;
use phalanx_graph::{
    Chosen, GraphError, Program, Role, Sig, VarId, VarKind, accumulate, append_backward_of,
    ir::Site,
    op::{Foreign, ForeignBackward, OpKind},
    recompute,
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Element type, shape, kind, place, whether it is dense.
type VarForm = (u8, Vec<i64>, &'static str, String, bool);
/// Name, kind, role, inputs, outputs, place.
type OpForm = (&'static str, &'static str, String, Vec<String>, Vec<String>, String);

/// A program that is being written, or was read.
#[derive(Debug)]
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct GraphProgram {
    /// A lock because threads may write it at the same time; held for moments.
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    program: Program,
    /// Grows with every change.
    version: u64,
}

impl Written {
    /// Changes a copy, which takes the program's place if that went well (PYGRAPH-4); gives the names of what it made.
    fn replace(
        &mut self,
        py: Python<'_>,
        change: impl FnOnce(&mut Program) -> Result<Vec<VarId>, GraphError>,
    ) -> PyResult<Vec<String>> {
        let mut program = self.program.clone();
        let made = change(&mut program).map_err(|why| error::of_program(py, &why))?;
        self.program = program;
        self.version += 1;
        Ok(names(&self.program, &made))
    }
}

impl GraphProgram {
    pub fn of(program: Program) -> GraphProgram {
        GraphProgram { written: Mutex::new(Written { program, version: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of it as it is now.
    pub fn snapshot(&self) -> Program {
        self.lock().program.clone()
    }

    /// Changes a copy, which takes the program's place if that went well (PYGRAPH-4).
    fn rewrite<T>(
        &self,
        py: Python<'_>,
        at: &SourceLine,
        change: impl FnOnce(&mut Program) -> Result<T, GraphError>,
    ) -> PyResult<T> {
        let mut written = self.lock();
        let mut program = written.program.clone();
        let given = change(&mut program);
        let given = given
            .map_err(|why| error::of_program(py, &rewrite::place_error(why, &form::site(at.clone()))))?;
        rewrite::place(&mut program, at);
        written.program = program;
        written.version += 1;
        Ok(given)
    }
}

/// A loss, the parameters it is for if they were named, and what gets no gradient.
type Asked = (VarId, Option<Vec<VarId>>, Vec<VarId>);

impl GraphProgram {
    fn chosen(
        &self,
        py: Python<'_>,
        loss: &str,
        only: Option<Vec<String>>,
        without: &[String],
        at: &SourceLine,
    ) -> PyResult<Asked> {
        let (written, site) = (self.lock(), form::site(at.clone()));
        let only = only.map(|names| find_all(py, &written.program, &names, &site)).transpose()?;
        let without = find_all(py, &written.program, without, &site)?;
        Ok((find(py, &written.program, loss, &site)?, only, without))
    }
}

fn find(py: Python<'_>, program: &Program, name: &str, site: &Site) -> PyResult<VarId> {
    let unknown = || GraphError::Unknown { var: name.to_string(), site: site.clone() };
    program.find(name).ok_or_else(|| error::of_program(py, &unknown()))
}

fn find_all(py: Python<'_>, program: &Program, names: &[String], site: &Site) -> PyResult<Vec<VarId>> {
    names.iter().map(|name| find(py, program, name, site)).collect()
}

fn names(program: &Program, ids: &[VarId]) -> Vec<String> {
    ids.iter().map(|&id| program.var(id).name.clone()).collect()
}

fn pairs(program: &Program, pairs: &[(VarId, VarId)]) -> Vec<(String, String)> {
    let name = |id| program.var(id).name.clone();
    pairs.iter().map(|&(p, g)| (name(p), name(g))).collect()
}

fn kind(kind: &VarKind) -> &'static str {
    match kind {
        VarKind::Feed => "feed",
        VarKind::Parameter(_) => "parameter",
        VarKind::State(_) => "state",
        VarKind::Temp => "temp",
    }
}

#[pymethods]
impl GraphProgram {
    #[new]
    fn new() -> GraphProgram {
        GraphProgram::of(Program::new())
    }

    /// Reads what `to_json` has written, and verifies it.
    #[staticmethod]
    fn from_json(bytes: &[u8]) -> PyResult<GraphProgram> {
        let program: Program = serde_json::from_slice(bytes)
            .map_err(|why| PyValueError::new_err(format!("this is not a program: {why}")))?;
        Ok(GraphProgram::of(program))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let written = self.lock();
        if let Some(title) = written.program.foreign() {
            return Err(function::unwritten(title));
        }
        let bytes = serde_json::to_vec(&written.program);
        Ok(PyBytes::new(py, &bytes.map_err(|why| PyValueError::new_err(why.to_string()))?))
    }

    fn __str__(&self) -> String {
        self.lock().program.to_string()
    }

    #[getter]
    fn version(&self) -> u64 {
        self.lock().version
    }

    fn copy(&self) -> GraphProgram {
        GraphProgram::of(self.snapshot())
    }

    fn clone_for_test(&self) -> GraphProgram {
        GraphProgram::of(self.lock().program.clone_for_test())
    }

    /// Only what these variables need.
    fn pruned(&self, py: Python<'_>, wanted: Vec<String>) -> PyResult<GraphProgram> {
        let program = self.snapshot();
        let targets = find_all(py, &program, &wanted, &Site::here())?;
        Ok(GraphProgram::of(program.pruned(&targets)))
    }

    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        self.lock().program.verify().map_err(|why| error::of_program(py, &why))
    }

    /// The program for feeds of other sizes.
    fn refit(&self, py: Python<'_>, feeds: Vec<(String, Vec<usize>)>) -> PyResult<GraphProgram> {
        Ok(GraphProgram::of(rewrite::refit(py, &self.snapshot(), &feeds)?))
    }

    /// A name like this one that no variable has yet.
    fn fresh(&self, base: &str) -> String {
        self.lock().program.fresh(base)
    }

    /// What is known of a variable, if there is one.
    fn var(&self, name: &str) -> Option<VarForm> {
        let written = self.lock();
        let var = written.program.var(written.program.find(name)?);
        let (sig, site) = (&var.sig, var.site.to_string());
        Some((sig.dtype as u8, form::dims(&sig.shape), kind(&var.kind), site, sig.is_dense()))
    }

    /// Names and kinds of all variables, in the order of their declaration.
    fn vars(&self) -> Vec<(String, &'static str)> {
        self.lock().program.vars().map(|(_, v)| (v.name.clone(), kind(&v.kind))).collect()
    }

    fn ops(&self) -> Vec<OpForm> {
        let program = &self.lock().program;
        let form = |op: &phalanx_graph::ir::Op| {
            let (inputs, outputs) = (names(program, &op.inputs), names(program, &op.outputs));
            (op.name(), op.kind.kind(), format!("{:?}", op.role), inputs, outputs, op.site.to_string())
        };
        program.ops().map(|(_, op)| form(op)).collect()
    }

    /// Declares a variable; its name must be new.
    fn declare(
        &self,
        py: Python<'_>,
        name: &str,
        code: u8,
        shape: Vec<i64>,
        kind: &str,
        at: SourceLine,
    ) -> PyResult<()> {
        let (sig, kind) =
            (Sig::dense(dtype(code)?, form::shape(&shape)?), form::read("kind of variable", kind)?);
        let mut written = self.lock();
        let declared = written.program.declare(name, sig, kind, form::site(at));
        declared.map_err(|why| error::of_program(py, &why))?;
        written.version += 1;
        Ok(())
    }

    /// Declares what lives in the store of another program here too.
    fn adopt(&self, py: Python<'_>, other: &GraphProgram) -> PyResult<()> {
        let theirs = other.snapshot();
        let mut written = self.lock();
        for (_, var) in theirs.vars().filter(|(_, v)| v.is_persistable()) {
            let known = written.program.find(&var.name).map(|id| written.program.sig(id));
            if known != Some(&var.sig) {
                let made =
                    written.program.declare(&var.name, var.sig.clone(), var.kind.clone(), var.site.clone());
                made.map_err(|why| error::of_program(py, &why))?;
                written.version += 1;
            }
        }
        Ok(())
    }

    /// Appends an operation whose outputs are new variables, named after `name`.
    fn append(
        &self,
        py: Python<'_>,
        op: &str,
        inputs: Vec<String>,
        name: &str,
        at: SourceLine,
    ) -> PyResult<Vec<String>> {
        let (op, site): (OpKind, _) = (form::read("operation", op)?, form::site(at));
        let mut written = self.lock();
        let inputs = find_all(py, &written.program, &inputs, &site)?;
        let made = written.program.append(op, &inputs, name, Role::Forward, site);
        let made = made.map_err(|why| error::of_program(py, &why))?;
        written.version += 1;
        Ok(names(&written.program, &made))
    }

    /// Appends an operation that writes these variables.
    fn append_to(
        &self,
        py: Python<'_>,
        op: &str,
        inputs: Vec<String>,
        outputs: Vec<String>,
        at: SourceLine,
    ) -> PyResult<()> {
        let (op, site): (OpKind, _) = (form::read("operation", op)?, form::site(at));
        let mut written = self.lock();
        let inputs = find_all(py, &written.program, &inputs, &site)?;
        let outputs = find_all(py, &written.program, &outputs, &site)?;
        let appended = written.program.append_to(op, &inputs, &outputs, Role::Forward, site);
        appended.map_err(|why| error::of_program(py, &why))?;
        written.version += 1;
        Ok(())
    }

    /// Appends a call of a Python function, which writes these variables.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (title, inputs, outputs, call, backward, at))]
    fn append_function(
        &self,
        py: Python<'_>,
        title: String,
        inputs: Vec<String>,
        outputs: Vec<String>,
        call: Py<PyAny>,
        backward: Option<(Vec<bool>, Vec<bool>, Py<PyAny>)>,
        at: SourceLine,
    ) -> PyResult<()> {
        let site = form::site(at);
        let mut written = self.lock();
        let inputs = find_all(py, &written.program, &inputs, &site)?;
        let outputs = find_all(py, &written.program, &outputs, &site)?;
        let gives = outputs.iter().map(|&id| written.program.sig(id).clone()).collect();
        let backward = backward.map(|(inputs, outputs, call)| ForeignBackward {
            inputs,
            outputs,
            function: function::of(call),
        });
        let op = Foreign { title, gives, backward, function: function::of(call) };
        let appended = written.program.append_to(op, &inputs, &outputs, Role::Forward, site);
        appended.map_err(|why| error::of_program(py, &why))?;
        written.version += 1;
        Ok(())
    }

    /// Makes the operations from `begin` on part of the update: programs for testing do not have them.
    fn make_update(&self, begin: usize) {
        let mut written = self.lock();
        written.program.make_update(begin);
        written.version += 1;
    }

    #[getter]
    fn n_ops(&self) -> usize {
        self.lock().program.ops().count()
    }

    /// Becomes what a copy of it is: undoes what was done since.
    fn restore(&self, copy: &GraphProgram) {
        let program = copy.snapshot();
        let mut written = self.lock();
        written.program = program;
        written.version += 1;
    }

    /// Variables that stand for what a body will be given: each is like one of these.
    fn placeholders(&self, py: Python<'_>, like: Vec<String>, at: SourceLine) -> PyResult<Vec<String>> {
        let site = form::site(at);
        let mut written = self.lock();
        let like = find_all(py, &written.program, &like, &site)?;
        let mut made = Vec::with_capacity(like.len());
        for id in like {
            let sig = written.program.sig(id).clone();
            let id = written.program.placeholder(sig, site.clone());
            made.push(id.map_err(|why| error::of_program(py, &why))?);
        }
        written.version += 1;
        Ok(names(&written.program, &made))
    }

    /// Makes a loop of the operations from `begin` on; gives what it carries in the end.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn append_loop(
        &self,
        py: Python<'_>,
        begin: usize,
        most: u64,
        first: Vec<String>,
        given: Vec<String>,
        gives: Vec<String>,
        at: SourceLine,
    ) -> PyResult<Vec<String>> {
        let site = form::site(at);
        let mut written = self.lock();
        let find = |names: &[String]| find_all(py, &written.program, names, &site);
        let (first, given, gives) = (find(&first)?, find(&given)?, find(&gives)?);
        let change = Loop { begin, most, first, given, gives };
        written.replace(py, |program| change.append(program, site))
    }

    /// Makes a branch of the operations from `begin` to `middle`, and from there on; gives what it gives.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn append_branch(
        &self,
        py: Python<'_>,
        begin: usize,
        middle: usize,
        condition: &str,
        then: Vec<String>,
        other: Vec<String>,
        at: SourceLine,
    ) -> PyResult<Vec<String>> {
        let site = form::site(at);
        let mut written = self.lock();
        let condition = find(py, &written.program, condition, &site)?;
        let (then, other) =
            (find_all(py, &written.program, &then, &site)?, find_all(py, &written.program, &other, &site)?);
        let change = Branch { begin, middle, condition, then, other };
        written.replace(py, |program| change.append(program, site))
    }

    /// Appends the gradients of a loss to these parameters, or all; gives each parameter with its gradient.
    #[pyo3(signature = (loss, only, without, at))]
    fn append_backward(
        &self,
        py: Python<'_>,
        loss: &str,
        only: Option<Vec<String>>,
        without: Vec<String>,
        at: SourceLine,
    ) -> PyResult<Vec<(String, String)>> {
        let (loss, only, without) = self.chosen(py, loss, only, &without, &at)?;
        let chosen = Chosen { only: only.as_deref(), without: &without };
        let made = self.rewrite(py, &at, |program| append_backward_of(program, loss, chosen))?;
        Ok(pairs(&self.lock().program, &made))
    }

    /// Has what lies between checkpoints computed again for the backward part; gives how many operations that are.
    fn recompute(&self, py: Python<'_>, checkpoints: Vec<String>, at: SourceLine) -> PyResult<usize> {
        let site = form::site(at.clone());
        let checkpoints = find_all(py, &self.lock().program, &checkpoints, &site)?;
        self.rewrite(py, &at, |program| recompute(program, &checkpoints))
    }

    /// Has updates act in every `runs`-th run only, on the mean of the gradients since then.
    fn accumulate(&self, py: Python<'_>, runs: usize, at: SourceLine) -> PyResult<()> {
        self.rewrite(py, &at, |program| accumulate(program, runs))
    }

    /// Appends gradients and updates; gives each parameter with its gradient.
    #[pyo3(signature = (loss, only, without, optimizer, at))]
    fn minimize(
        &self,
        py: Python<'_>,
        loss: &str,
        only: Option<Vec<String>>,
        without: Vec<String>,
        optimizer: OptimizerSpec,
        at: SourceLine,
    ) -> PyResult<Vec<(String, String)>> {
        let optimizer = optimizer.optimizer()?;
        let (loss, only, without) = self.chosen(py, loss, only, &without, &at)?;
        let chosen = Chosen { only: only.as_deref(), without: &without };
        let made = self.rewrite(py, &at, |program| optimizer.minimize_of(program, loss, chosen))?;
        Ok(pairs(&self.lock().program, &made))
    }

    /// Appends updates of parameters by gradients that are there.
    fn apply_gradients(
        &self,
        py: Python<'_>,
        given: Vec<(String, String)>,
        optimizer: OptimizerSpec,
        at: SourceLine,
    ) -> PyResult<()> {
        let (optimizer, site) = (optimizer.optimizer()?, form::site(at.clone()));
        let (parameters, grads): (Vec<String>, Vec<String>) = given.into_iter().unzip();
        let found = {
            let written = self.lock();
            let parameters = find_all(py, &written.program, &parameters, &site)?;
            let grads = find_all(py, &written.program, &grads, &site)?;
            parameters.into_iter().zip(grads).collect::<Vec<_>>()
        };
        self.rewrite(py, &at, |program| optimizer.apply(program, &found))
    }

    /// Whether gradients end at a variable, where that was said.
    fn stops(&self, py: Python<'_>, name: &str) -> PyResult<Option<bool>> {
        let written = self.lock();
        let id = find(py, &written.program, name, &Site::here())?;
        Ok(written.program.var(id).stops)
    }

    fn stop_gradient(&self, py: Python<'_>, name: &str, stops: bool) -> PyResult<()> {
        let mut written = self.lock();
        let id = find(py, &written.program, name, &Site::here())?;
        written.program.stop_gradient(id, stops);
        written.version += 1;
        Ok(())
    }

    fn set_trainable(&self, py: Python<'_>, name: &str, trainable: bool) -> PyResult<()> {
        let mut written = self.lock();
        let id = find(py, &written.program, name, &Site::here())?;
        written.program.set_trainable(id, trainable);
        written.version += 1;
        Ok(())
    }

    /// What a variable is for, how it begins and is learned, as programs have it written.
    fn kind(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let written = self.lock();
        let id = find(py, &written.program, name, &Site::here())?;
        let text = serde_json::to_string(&written.program.var(id).kind);
        text.map_err(|why| PyValueError::new_err(why.to_string()))
    }

    /// Whether a variable has a gradient already.
    fn has_gradient(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let written = self.lock();
        let id = find(py, &written.program, name, &Site::here())?;
        Ok(written.program.grad(id).is_some())
    }
}
