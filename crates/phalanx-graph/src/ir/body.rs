//! A program within an operation: one round of a loop, or a branch.
//! - BODY-1: a body computes what it gives from what it takes and nothing else: it has no variables in the store,
//!   updates nothing, and is as its operation says it is. This is known before anything runs.
//! - BODY-2: bodies are nested at most `MOST_NESTED` deep, also in programs that are read from files.

use super::{
    error::{GraphError, Misfit},
    nested::{MOST_NESTED, nested},
    program::{Op, Program, Role, VarId, VarKind},
    sig::Sig,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Takes its feeds, in the order of their declaration, and gives some of what it computes.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Body {
    #[serde(deserialize_with = "nested")]
    program: Box<Program>,
    gives: Vec<VarId>,
}

impl Body {
    pub fn new(program: Program, gives: Vec<VarId>) -> Body {
        Body { program: Box::new(program), gives }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn gives(&self) -> &[VarId] {
        &self.gives
    }

    pub fn takes(&self) -> impl Iterator<Item = VarId> {
        self.program.vars().filter(|(_, v)| v.kind == VarKind::Feed).map(|(id, _)| id)
    }

    /// What each feed is.
    pub fn wants(&self) -> Vec<Sig> {
        self.takes().map(|id| self.program.sig(id).clone()).collect()
    }

    /// What it gives for these inputs of its operation, which has `before` others (BODY-1).
    pub fn infer(&self, what: &'static str, given: &[Sig], before: usize) -> Result<Vec<Sig>, Misfit> {
        if self.depth() > MOST_NESTED {
            let got = format!("{}", self.depth());
            return Err(Misfit::Attribute { name: what, wanted: "at most 8 within one another", got });
        }
        self.check().map_err(|error| Misfit::Body { what, error: Box::new(error) })?;
        let wants = self.wants();
        if wants.len() != given.len() {
            return Err(Misfit::Count { wanted: before + wants.len(), got: before + given.len() });
        }
        for (slot, (wanted, got)) in wants.iter().zip(given).enumerate() {
            if wanted != got {
                let (wanted, got) = (Box::new(wanted.clone()), Box::new(got.clone()));
                return Err(Misfit::Takes { what, slot: before + slot, wanted, got });
            }
        }
        Ok(self.gives.iter().map(|&id| self.program.sig(id).clone()).collect())
    }

    /// How many bodies lie within one another here, with this one.
    fn depth(&self) -> usize {
        let deepest = self.program.ops.iter().flat_map(|op| op.kind.operator().bodies());
        1 + deepest.map(|inside| inside.body.depth()).max().unwrap_or(0)
    }

    fn check(&self) -> Result<(), GraphError> {
        self.program.verify()?;
        for (_, var) in self.program.vars() {
            if var.is_persistable() {
                return Err(GraphError::StoredInBody { var: var.name.clone(), site: var.site.clone() });
            }
            if !var.sig.is_dense() && var.kind == VarKind::Feed {
                let (what, var, site) = ("a body", var.name.clone(), var.site.clone());
                return Err(GraphError::SparseGradient { what, var, site });
            }
        }
        self.program.ops.iter().try_for_each(|op| only_computes(&self.program, op))?;
        for &id in &self.gives {
            let Some(var) = self.program.vars.get(id.index()) else {
                let (var, site) = (format!("number {}", id.index()), super::Site::here());
                return Err(GraphError::Unknown { var, site });
            };
            let is_written = self.program.ops.iter().any(|op| op.outputs.contains(&id));
            if !is_written || !var.sig.is_dense() {
                return Err(GraphError::NotGiven { var: var.name.clone(), site: var.site.clone() });
            }
        }
        Ok(())
    }

    /// The same in a test program.
    pub fn for_test(&self) -> Body {
        let program = self.program.clone_for_test();
        let place = |id: &VarId| program.find(&self.program.var(*id).name);
        // What gives gradients has no other form for tests.
        let gives: Option<Vec<VarId>> = self.gives.iter().map(place).collect();
        gives.map_or_else(|| self.clone(), |gives| Body::new(program, gives))
    }
}

/// Whether an operation may stand in a body: it belongs to the network and leaves the store alone.
pub(super) fn only_computes(program: &Program, op: &Op) -> Result<(), GraphError> {
    let refused = |why| Err(GraphError::NotInBody { op: op.name(), site: op.site.clone(), why });
    match op.role {
        Role::Forward | Role::Backward => {}
        Role::Optimize | Role::LrSched => return refused("updates what is learned"),
        Role::Loss => return refused("begins the gradients of a loss"),
    }
    match op.outputs.iter().any(|&id| program.var(id).is_persistable()) {
        true => refused("writes to the store"),
        false => Ok(()),
    }
}

/// Short, because the text of a program has the whole of it below.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gives: Vec<&str> = self
            .gives
            .iter()
            .filter_map(|id| self.program.vars.get(id.index()))
            .map(|v| v.name.as_str())
            .collect();
        write!(f, "Body({} operations -> {})", self.program.ops.len(), gives.join(", "))
    }
}
