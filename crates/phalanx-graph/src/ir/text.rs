//! A program as text: one line a variable that is not computed, one line an operation, its bodies below it.

use super::program::{Op, Program, VarId, VarKind};
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self, "", f)
    }
}

fn write(program: &Program, margin: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (_, var) in program.vars() {
        match &var.kind {
            VarKind::Feed => writeln!(f, "{margin}feed {}: {}", var.name, var.sig)?,
            VarKind::Parameter(learn) => {
                writeln!(f, "{margin}param {}: {} = {:?}", var.name, var.sig, learn.init)?;
            }
            VarKind::State(init) => writeln!(f, "{margin}state {}: {} = {init:?}", var.name, var.sig)?,
            VarKind::Temp => {}
        }
    }
    for (_, op) in program.ops() {
        line(program, op, margin, f)?;
        for inside in op.kind.operator().bodies() {
            writeln!(f, "{margin}  {:?}", inside.body)?;
            write(inside.body.program(), &format!("{margin}    "), f)?;
        }
    }
    Ok(())
}

fn line(program: &Program, op: &Op, margin: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let named =
        |ids: &[VarId]| ids.iter().map(|&id| program.var(id).name.as_str()).collect::<Vec<_>>().join(", ");
    let sigs: Vec<String> = op.outputs.iter().map(|&id| program.sig(id).to_string()).collect();
    writeln!(
        f,
        "{margin}{:?}: {} = {}({}) -> {}  # {:?} {}",
        op.role,
        named(&op.outputs),
        op.name(),
        named(&op.inputs),
        sigs.join(", "),
        op.kind,
        op.site
    )
}
