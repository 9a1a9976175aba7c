//! An executor's hold on a store: which buffer each replica has of each variable.

use super::{accord::Accord, lower::Places};
use crate::{
    exec::{RunError, Store},
    graph::{Graph, Held},
    ir::VarId,
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
        store.admit(&graph.program)?;
        let n = graph.settings.replicas;
        for (id, held, entry) in &mut self.held {
            *entry = store.find(&graph.program.var(*id).name).expect("admitted");
            match held {
                Held::Read => {}
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
                    Held::Once => store.copy(entry, 0),
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

    /// Every process begins with what the first process has: values, and what random numbers come from.
    pub(super) fn begin_alike(
        &mut self,
        graph: &Graph,
        store: &mut Store,
        accord: &mut Accord,
    ) -> Result<(), RunError> {
        let mut origin = [store.seed.to_le_bytes(), store.runs.to_le_bytes()].concat();
        origin.extend(self.held.iter().map(|(.., entry)| u8::from(store.is_set(*entry))));
        accord.broadcast("start", &mut origin)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| origin[at + i]));
        (store.seed, store.runs) = (number(0), number(8));
        for (&(id, ..), is_set) in self.held.iter().zip(&origin[16..]) {
            if *is_set == 1 {
                let name = &graph.program.var(id).name;
                let mut value = store.get(name).expect("admitted");
                accord.broadcast(&format!("value of `{name}`"), value.bytes_mut())?;
                store.set(name, &value)?;
            }
        }
        self.alike = Some(store.state().0);
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
