//! An executor's hold on a store: which buffer each replica has of each variable.

use super::{accord::Accord, lower::Places};
use crate::{
    exec::{RunError, Store, Tensor},
    graph::{Graph, Held},
    ir::{Sig, VarId},
};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Binding {
    /// The variables of the store, and where the store has them.
    held: Vec<(VarId, Held, usize)>,
    places: Places,
    seen: Option<(Arc<()>, u64)>,
    /// The store that all processes have begun alike.
    alike: Option<Arc<()>>,
    /// Writes from outside that all processes have had alike.
    pub(super) writes: u64,
}

impl Binding {
    pub(super) fn new(graph: &Graph) -> Binding {
        let mut held: Vec<(VarId, Held, usize)> = Vec::new();
        for (id, _) in graph.program.vars() {
            held.extend(graph.parts.held[id.index()].map(|h| (id, h, 0)));
        }
        // By name, so that all processes have the same order.
        held.sort_by_key(|(id, ..)| &graph.program.var(*id).name);
        Binding { held, places: Vec::new(), seen: None, alike: None, writes: 0 }
    }

    /// What the store keeps, in the same order in all processes.
    pub(super) fn held(&self) -> &[(VarId, Held, usize)] {
        &self.held
    }

    /// Whatever was written until now, all processes have alike.
    pub(super) fn saw_writes(&mut self, store: &Store) {
        self.writes = store.writes();
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Takes hold of a store, if it is another than before, or others have moved its variables; true if so.
    pub(super) fn bind(&mut self, graph: &Graph, store: &mut Store) -> Result<bool, RunError> {
        if store.is_state(&self.seen) {
            return Ok(false);
        }
        self.seen = None;
        let is_elsewhere = |id: VarId| matches!(graph.parts.held[id.index()], Some(Held::Elsewhere(_)));
        store.admit_but(&graph.program, is_elsewhere)?;
        let n = graph.settings.replicas;
        for (id, held, entry) in &mut self.held {
            *entry = store.find(&graph.program.var(*id).name).expect("admitted");
            match held {
                Held::Read | Held::Elsewhere(_) => {}
                Held::Once => store.claim(*entry, 1, false)?,
                Held::Alike => store.claim(*entry, n, false)?,
                Held::Apart => store.claim(*entry, n, true)?,
            }
        }
        self.places = vec![vec![0; graph.program.vars.len()]; n];
        for &(id, held, entry) in &self.held {
            for (replica, places) in self.places.iter_mut().enumerate() {
                places[id.index()] = match held {
                    Held::Read => store.view(entry),
                    Held::Once | Held::Elsewhere(_) => store.copy(entry, 0),
                    Held::Alike | Held::Apart => store.copy(entry, replica),
                };
            }
        }
        self.seen = Some(store.state());
        Ok(true)
    }

    /// Whether this store has not begun with the other processes yet.
    pub(super) fn is_new(&self, store: &Store) -> bool {
        !self.alike.as_ref().is_some_and(|token| Arc::ptr_eq(token, &store.state().0))
    }

    /// After a run that failed while parameters travelled: the next one begins with the parameters that process 0 has, and with the
    /// states that owners have.
    pub(super) fn begin_again(&mut self) {
        self.alike = None;
    }

    /// Every process begins with what the first process has: values, and what random numbers come from. What the first process
    /// has left to an owner comes from there.
    pub(super) fn begin_alike(
        &mut self,
        graph: &Graph,
        store: &mut Store,
        accord: &mut Accord,
    ) -> Result<(), RunError> {
        let mut origin = [store.seed.to_le_bytes(), store.runs.to_le_bytes()].concat();
        // Nobody has a value, or the first process, or which other one.
        let word = |entry: usize| match (store.is_set(entry), store.keeper(entry)) {
            (false, _) => 0,
            (true, None) => 1,
            (true, Some(process)) => 1 + process as u64,
        };
        origin.extend(self.held.iter().flat_map(|(.., entry)| word(*entry).to_le_bytes()));
        accord.broadcast("start", 0, &mut origin)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| origin[8 * at + i]));
        (store.seed, store.runs) = (number(0), number(1));
        let roots: Vec<Option<usize>> =
            (0..self.held.len()).map(|at| (number(2 + at) as usize).checked_sub(1)).collect();
        self.ask_owners(graph, store, accord, &roots)?;
        for (&(id, held, entry), root) in self.held.iter().zip(roots) {
            let Some(root) = root else { continue };
            let var = graph.program.var(id);
            let mut value = store.get(&var.name).unwrap_or_else(|| blank(&var.sig));
            accord.broadcast(&format!("value of `{}`", var.name), root, value.bytes_mut())?;
            if !matches!(held, Held::Elsewhere(_)) || store.keeper(entry).is_none() {
                store.put(&var.name, &value)?;
            }
        }
        self.alike = Some(store.state().0);
        // What had moved out may have come back.
        self.seen = self.seen.take().map(|_| store.state());
        Ok(())
    }

    /// Whether those have their values who should; fails alike in all processes if not.
    fn ask_owners(
        &self,
        graph: &Graph,
        store: &Store,
        accord: &mut Accord,
        roots: &[Option<usize>],
    ) -> Result<(), RunError> {
        if roots.iter().flatten().all(|&root| root == 0) {
            return Ok(());
        }
        let has = |&(_, _, entry): &(VarId, Held, usize)| i64::from(store.keeper(entry).is_none());
        let all = accord.join("owners", self.held.iter().map(has).collect())?;
        for (at, (id, ..)) in self.held.iter().enumerate() {
            let Some(process) = roots[at] else { continue };
            if all.get(process * self.held.len() + at) != Some(&1) {
                return Err(RunError::KeptElsewhere { var: graph.program.var(*id).name.clone(), process });
            }
        }
        Ok(())
    }

    /// Leaves to owners what is theirs.
    pub(super) fn leave(&mut self, store: &mut Store) {
        for &(_, held, entry) in &self.held {
            if let Held::Elsewhere(process) = held
                && store.keeper(entry).is_none()
            {
                store.leave_to(entry, process);
            }
        }
        self.seen = Some(store.state());
    }

    /// Every process gets what owners have.
    pub(super) fn gather(
        &mut self,
        graph: &Graph,
        store: &mut Store,
        accord: &mut Accord,
    ) -> Result<(), RunError> {
        for &(id, held, entry) in &self.held {
            let Some(owner) = graph.parts.owners.of_var(id) else { continue };
            let var = graph.program.var(id);
            let mut value = match held {
                Held::Elsewhere(_) => blank(&var.sig),
                _ => store.get(&var.name).expect("its owner has it"),
            };
            accord.broadcast(&format!("state `{}`", var.name), owner, value.bytes_mut())?;
            if matches!(held, Held::Elsewhere(_)) {
                store.receive(entry, &value)?;
            }
        }
        self.seen = Some(store.state());
        Ok(())
    }

    /// After an update that did not end, replicas have alike again what they have alike.
    pub(super) fn level(&self, store: &mut Store) {
        for &(_, _, entry) in self.held.iter().filter(|(_, held, _)| *held == Held::Alike) {
            store.level(entry);
        }
    }

    /// Everything has a value; what others have apart is merged anew.
    pub(super) fn check(&self, graph: &Graph, store: &mut Store) -> Result<(), RunError> {
        for &(id, held, entry) in &self.held {
            if !store.is_set(entry) {
                let var = graph.program.var(id);
                let (wanted, site) = (var.sig.clone(), var.site.clone());
                return Err(RunError::Uninitialised { var: var.name.clone(), wanted, site });
            }
            if held == Held::Read && store.is_apart(entry) {
                store.view(entry);
            }
        }
        Ok(())
    }
}

/// Room for a value of another process.
fn blank(sig: &Sig) -> Tensor {
    Tensor::zeros(sig.dtype, &sig.shape.at(0))
}
