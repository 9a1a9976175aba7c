//! A program as text: one line a variable that is not computed, one line an operation.

use super::program::{Op, Program, VarId, VarKind};
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, var) in self.vars() {
            match &var.kind {
                VarKind::Feed => writeln!(f, "feed {}: {}", var.name, var.sig)?,
                VarKind::Parameter(learn) => {
                    writeln!(f, "param {}: {} = {:?}", var.name, var.sig, learn.init)?;
                }
                VarKind::State(init) => writeln!(f, "state {}: {} = {init:?}", var.name, var.sig)?,
                VarKind::Temp => {}
            }
        }
        for (_, op) in self.ops() {
            line(self, op, f)?;
        }
        Ok(())
    }
}

fn line(program: &Program, op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let named =
        |ids: &[VarId]| ids.iter().map(|&id| program.var(id).name.as_str()).collect::<Vec<_>>().join(", ");
    let sigs: Vec<String> = op.outputs.iter().map(|&id| program.sig(id).to_string()).collect();
    writeln!(
        f,
        "{:?}: {} = {}({}) -> {}  # {:?} {}",
        op.role,
        named(&op.outputs),
        op.name(),
        named(&op.inputs),
        sigs.join(", "),
        op.kind,
        op.site
    )
}
