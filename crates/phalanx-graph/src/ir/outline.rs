//! Operations that were written one after another become a body: they are cut out of the program, and what they read
//! of it is what the body takes. Parameters that were declared on the way stay outside.

use super::{
    body::{Body, only_computes},
    error::GraphError,
    program::{Op, Program, Role, Site, VarId, VarKind},
    sig::Sig,
};
use crate::op::Assign;
use std::collections::{BTreeMap, BTreeSet};

/// Operations that were cut out.
#[derive(Clone, Debug)]
pub struct Region {
    ops: Vec<Op>,
    /// What stood for the values that each round, or each call, is given.
    takes: Vec<VarId>,
    gives: Vec<VarId>,
}

impl Program {
    /// A variable that stands for what a body will be given.
    pub fn placeholder(&mut self, sig: Sig, site: Site) -> Result<VarId, GraphError> {
        let name = self.fresh("given.tmp");
        self.declare(&name, sig, VarKind::Temp, site)
    }

    /// Cuts out all operations from number `first` on, which give these variables. Afterwards nothing computes their
    /// variables here any more.
    pub fn cut(
        &mut self,
        first: usize,
        takes: &[VarId],
        gives: &[VarId],
        site: &Site,
    ) -> Result<Region, GraphError> {
        let first = first.min(self.ops.len());
        let cut = &self.ops[first..];
        // An update is the better name for what is wrong than the gradients that it needs.
        let update = cut.iter().find(|op| op.role == Role::Optimize);
        update.into_iter().chain(cut).try_for_each(|op| only_computes(self, op))?;
        let mut given = Vec::with_capacity(gives.len());
        for &id in gives {
            let is_own = self.ops[first..].iter().any(|op| op.outputs.contains(&id)) && !given.contains(&id);
            given.push(match is_own {
                true => id,
                false => self.append(Assign, &[id], "given.tmp", Role::Forward, site.clone())?[0],
            });
        }
        Ok(Region { ops: self.ops.split_off(first), takes: takes.to_vec(), gives: given })
    }
}

/// What these operations read of the program they were cut from, in the order in which they do.
pub fn captures(regions: &[&Region]) -> Vec<VarId> {
    let mut found = Vec::new();
    for region in regions {
        let mut known: BTreeSet<VarId> = region.takes.iter().copied().collect();
        for op in &region.ops {
            let fresh = |id: &&VarId| !known.contains(*id);
            for &id in op.inputs.iter().filter(fresh) {
                if !found.contains(&id) {
                    found.push(id);
                }
            }
            known.extend(&op.outputs);
        }
    }
    found
}

impl Region {
    pub fn gives(&self) -> &[VarId] {
        &self.gives
    }

    /// The body that takes what the region was given and, after it, these captured variables.
    pub fn body(&self, program: &Program, captured: &[VarId]) -> Result<Body, GraphError> {
        let mut body = Program::new();
        body.n_streams = program.n_streams;
        let mut place = BTreeMap::new();
        let mut declare = |body: &mut Program, id: VarId, kind: VarKind| {
            let var = program.var(id);
            let new = body.declare(&var.name, var.sig.clone(), kind, var.site.clone())?;
            body.vars[new.index()].stops = var.stops;
            place.insert(id, new);
            Ok::<VarId, GraphError>(new)
        };
        for &id in self.takes.iter().chain(captured) {
            declare(&mut body, id, VarKind::Feed)?;
        }
        for &id in self.ops.iter().flat_map(|op| &op.outputs) {
            declare(&mut body, id, VarKind::Temp)?;
        }
        for op in &self.ops {
            let at = |ids: &[VarId]| -> Vec<VarId> { ids.iter().map(|id| place[id]).collect() };
            let (inputs, outputs) = (at(&op.inputs), at(&op.outputs));
            body.append_to(op.kind.clone(), &inputs, &outputs, op.role, op.site.clone())?;
        }
        let gives = self.gives.iter().map(|id| place[id]).collect();
        Ok(Body::new(body, gives))
    }
}
