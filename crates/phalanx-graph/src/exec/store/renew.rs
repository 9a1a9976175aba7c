//! A startup program replaces what the store has under a name in another type or shape.

use super::{Home, Store, memory};
use crate::{
    exec::{error::RunError, first::begin},
    ir::{Init, Learn, Program, VarKind},
};

impl Store {
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
