//! How an executor begins and ends runs together with other processes.

use super::{
    Asked, Feed, ParallelExecutor, Refusal, RunError, Store,
    accord::{Standing, digest},
};
use crate::{
    graph::{Graph, NodeKind},
    ir::VarId,
};
use std::sync::Arc;

impl ParallelExecutor {
    /// Puts the program's parameters and states into the store, as the first run would.
    pub fn prepare(&mut self, store: &mut Store) -> Result<(), RunError> {
        let bound = self.bind(store);
        if self.run.accord.is_alone() {
            return bound;
        }
        if let Err(error) = bound {
            return self.refused(error);
        }
        let written = self.written(store, &[]);
        let own = Standing { runs: false, written, ..self.standing(store, &Asked::default()) };
        self.agree(store, &own, &[]).map(drop)
    }

    /// Puts into this process's store what owners in other processes have: states of the optimizer, with Reduce across processes.
    /// All processes must call it, and can read or save everything then, until the next run. Elsewhere everything is there
    /// already.
    pub fn gather(&mut self, store: &mut Store) -> Result<(), RunError> {
        let bound = self.bind(store);
        if self.run.accord.is_alone() || !self.graph.settings.has_owners() {
            return bound;
        }
        if let Err(error) = bound {
            return self.refused(error);
        }
        let written = self.written(store, &[]);
        let own = Standing { runs: false, gathers: true, written, ..self.standing(store, &Asked::default()) };
        self.agree(store, &own, &[])?;
        let run = Arc::get_mut(&mut self.run).expect("POOL-1: workers let go of runs");
        self.binding.gather(&self.graph, store, &mut run.accord)
    }

    pub(super) fn bind(&mut self, store: &mut Store) -> Result<(), RunError> {
        if self.binding.bind(&self.graph, store)? {
            self.plans.clear();
        }
        Ok(())
    }

    /// All processes say how they stand; stores that are new begin alike, others are alike (OUTSIDE-1).
    pub(super) fn agree(
        &mut self,
        store: &mut Store,
        own: &Standing,
        feeds: &[(&str, Feed<'_>)],
    ) -> Result<Vec<Standing>, RunError> {
        let accord = &mut self.run_mut().accord;
        let all = accord.agree(own)?;
        if all.iter().any(|standing| standing.is_new) {
            let run = Arc::get_mut(&mut self.run).expect("POOL-1: workers let go of runs");
            self.binding.begin_alike(&self.graph, store, &mut run.accord)?;
        }
        if all.iter().any(|standing| standing.written != all[0].written) {
            self.compare_values(store, feeds)?;
        }
        self.binding.saw_writes(store);
        Ok(all)
    }

    pub(super) fn refused(&mut self, error: RunError) -> Result<(), RunError> {
        self.refuse(&Refusal::Wrong(error.to_string()));
        Err(error)
    }

    /// Tells other processes, which may be waiting in their next run already, that this one does not run, and why. Their
    /// run fails, and all can go on.
    pub fn refuse(&mut self, why: &Refusal) {
        if !self.run.accord.is_alone() {
            self.run_mut().accord.refuse(why);
        }
    }

    /// A run that all processes have begun failed here. Who learns alone is not missed.
    pub(super) fn give_up(&mut self, error: RunError) -> RunError {
        if self.run.accord.is_alone() || !self.graph.settings.is_reduced() {
            // What was pushed may wait for a factor that does not come any more, and the next step would wait for it.
            let waits = self.graph.nodes.iter().any(|node| matches!(node.kind, NodeKind::Serve { .. }));
            if let Some(served) = self.run.served.as_ref().filter(|_| waits && self.run.places.is_past_gate())
            {
                served.abort(&error.to_string());
            }
            return error;
        }
        // Owners may have updated what others do not have yet.
        if self.graph.settings.has_owners() && self.run.places.is_past_gate() {
            self.binding.begin_again();
        }
        // As long as others cannot have pushed, servers know nothing of this step, and it can be run again. They can when they wait for
        // no exchange of this process any more, whether it has come to its own gate or not. An exchange that did not fit stops all.
        let is_known = self.run.places.is_misfit();
        let others_push = self.run.accord.has_brought_all() && !is_known;
        if let Some(served) = &self.run.served
            && (self.run.places.is_past_gate() || others_push)
        {
            served.abort(&error.to_string());
        }
        let run = self.run_mut();
        run.accord.fail(error, is_known)
    }
}

/// How many calls to servers there are in each pass.
pub(super) fn desks(graph: &Graph) -> usize {
    let calls = |kind: &NodeKind| {
        matches!(kind, NodeKind::Pull { .. } | NodeKind::Push { .. } | NodeKind::Serve { .. })
    };
    graph.nodes.iter().filter(|node| calls(&node.kind)).count()
}

/// What is exchanged between processes in each pass, in order.
pub(super) fn exchanges(graph: &Graph) -> Vec<String> {
    let named = |var: VarId| format!("{} {}", graph.program.var(var).name, graph.program.sig(var));
    let mut all = Vec::new();
    for node in graph.nodes.iter().filter(|_| graph.settings.processes > 1) {
        match &node.kind {
            NodeKind::Exchange { vars } => all.push(vars.iter().map(|s| named(s.whole)).collect()),
            NodeKind::Gather { var } => all.push(named(*var)),
            NodeKind::Share { vars } => {
                all.push(
                    vars.iter().map(|&(var, owner)| format!("{owner} {}", graph.program.sig(var))).collect(),
                );
            }
            _ => {}
        }
    }
    all
}

/// One number for all that processes must have alike.
pub(super) fn digest_of(graph: &Graph) -> u64 {
    digest(program_of(graph).iter().chain(&exchanges(graph)).map(String::as_bytes))
}

/// The same without what strategies decide: one number for equal programs.
pub(super) fn digest_of_program(graph: &Graph) -> u64 {
    digest(program_of(graph).iter().map(String::as_bytes))
}

fn program_of(graph: &Graph) -> Vec<String> {
    [kept(graph), updates(graph)].concat()
}

/// How gradients become values: the operations of the update with their attributes, and what of the store they use.
/// Names of temporary variables do not count: they depend on what else a process has built.
fn updates(graph: &Graph) -> Vec<String> {
    let program = &graph.program;
    let named = |ids: &[VarId]| -> Vec<&str> {
        let kept = ids.iter().filter(|id| program.var(**id).is_persistable());
        kept.map(|&id| program.var(id).name.as_str()).collect()
    };
    let tail = graph.parts.tail.iter().map(|&id| &program.ops[id.index()]);
    tail.map(|op| format!("{:?} {:?} {:?}", op.kind, named(&op.inputs), named(&op.outputs))).collect()
}

/// What the store keeps, which all processes begin alike.
fn kept(graph: &Graph) -> Vec<String> {
    let held = graph.program.vars().filter(|(id, _)| graph.parts.held[id.index()].is_some());
    let mut all: Vec<String> = held.map(|(_, var)| format!("{} {}", var.name, var.sig)).collect();
    all.sort_unstable();
    all.push(graph.settings.exec.num_iteration_per_run.to_string());
    all
}
