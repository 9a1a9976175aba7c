//! A startup program replaces what the store has under a name in another type or shape.

use super::{Home, Store, memory};
use crate::{
    exec::{error::RunError, first::begin},
    ir::{Init, Learn, Program, Sig, VarKind},
};

impl Store {
    /// Makes room for the program's variables, for a caller who sets them: what another process keeps stays there until then.
    pub fn admit_to_set(&mut self, program: &Program) -> Result<(), RunError> {
        let kept: Vec<bool> = program.vars().map(|(_, var)| self.kept_by(&var.name).is_some()).collect();
        self.admit_but(program, |id| kept[id.index()])
    }

    /// Type and shape of a variable, also of one that another process keeps.
    pub fn sig(&self, name: &str) -> Option<&Sig> {
        self.find(name).map(|entry| &self.entries[entry].sig)
    }

    /// Gives variables of the program its types and shapes where the store has others, with their first values. Programs that
    /// name the old ones are refused from now on. What servers train stays as it is.
    pub fn renew(&mut self, program: &Program) -> Result<(), RunError> {
        let is_other = |store: &Store, name: &str| match store.find(name) {
            Some(entry) => program.find(name).is_some_and(|id| *program.sig(id) != store.entries[entry].sig),
            None => false,
        };
        let others: Vec<_> = program.vars().filter(|(_, var)| is_other(self, &var.name)).collect();
        if let Some((_, served)) = others.iter().find(|(_, var)| self.is_served(&var.name)) {
            return Err(RunError::OnServers { var: served.name.clone() });
        }
        for (_, var) in others {
            let (VarKind::State(init) | VarKind::Parameter(Learn { init, .. })) = var.kind else { continue };
            let mut buffer = memory(&var.name, var.sig.bytes(0))?;
            begin(&var.name, &var.sig, init, self.seed, &mut buffer);
            let entry = self.known(&var.name)?;
            self.give_back(entry);
            let at = self.entries[entry].copies[0];
            self.buffers_mut()[at] = buffer;
            self.writes += 1;
            let has = &mut self.entries[entry];
            (has.sig, has.is_set, has.written) = (var.sig.clone(), init != Init::Given, self.writes);
            (has.kept_by, has.home) = (None, Home::Here);
        }
        Ok(())
    }
}
