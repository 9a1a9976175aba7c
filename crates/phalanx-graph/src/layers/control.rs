//! Loops and branches, written as closures. A closure may use any variable of the program; what it uses is captured.

use super::{Builder, Made};
use crate::{
    ir::{GraphError, Misfit, Program, Region, Role, Site, VarId, captures},
    op::{Cond, Increment, Logical, While},
};

type AllMade = Result<Vec<VarId>, GraphError>;

/// Adds a loop whose round was cut out of the program: it takes condition and carried values, and gives the next ones.
/// Gives the carried values after the last round.
pub fn append_loop(program: &mut Program, most: u64, first: &[VarId], round: &Region, site: Site) -> AllMade {
    let captured = captures(&[round]);
    let body = round.body(program, &captured)?;
    let n_carried = first.len().saturating_sub(1);
    let op = While { body, most, n_carried, keeps: true, stream: stream(program) };
    let inputs: Vec<VarId> = first.iter().chain(&captured).copied().collect();
    let mut made = program.append(op, &inputs, "while.tmp", Role::Forward, site)?;
    made.truncate(n_carried);
    Ok(made)
}

/// Adds a branch whose two sides were cut out of the program; gives what the one that is taken gives.
pub fn append_branch(program: &mut Program, condition: VarId, sides: [&Region; 2], site: Site) -> AllMade {
    let captured = captures(&sides);
    let [then, other] = [sides[0].body(program, &captured)?, sides[1].body(program, &captured)?];
    let op = Cond { then, other, stream: stream(program) };
    let mut inputs = vec![condition];
    inputs.extend(captured);
    program.append(op, &inputs, "cond.tmp", Role::Forward, site)
}

fn stream(program: &mut Program) -> u32 {
    program.n_streams += 1;
    program.n_streams - 1
}

impl Builder {
    /// Repeats `body`, which makes the next values from those that are carried, as long as `condition` says so of them;
    /// gives the last ones. If that takes more than `most` rounds the run fails.
    #[track_caller]
    pub fn while_loop(
        &mut self,
        most: u64,
        first: &[VarId],
        mut condition: impl FnMut(&mut Builder, &[VarId]) -> Made,
        body: impl FnOnce(&mut Builder, &[VarId]) -> AllMade,
    ) -> AllMade {
        let site = Site::here();
        self.or_as_before(|b| {
            let mut carried = vec![condition(b, first)?];
            carried.extend(first);
            let begin = b.program.ops.len();
            let mut given = Vec::with_capacity(carried.len());
            for &id in &carried {
                let unknown =
                    || GraphError::Unknown { var: format!("number {}", id.index()), site: site.clone() };
                let sig = b.program.vars.get(id.index()).ok_or_else(unknown)?.sig.clone();
                given.push(b.program.placeholder(sig, site.clone())?);
            }
            let next = body(b, &given[1..])?;
            if next.len() != first.len() {
                // Before the condition is asked, which may reach for what is missing.
                let why = Misfit::GivesCount { what: "body", wanted: first.len(), got: next.len() };
                return Err(GraphError::Misfit { op: "while", site, inputs: String::new(), why });
            }
            let mut gives = vec![condition(b, &next)?];
            gives.extend(next);
            let round = b.program.cut(begin, &given, &gives, &site)?;
            append_loop(&mut b.program, most, &carried, &round, site)
        })
    }

    /// What `then` gives if the condition holds, else what `other` gives; only that one runs.
    #[track_caller]
    pub fn cond(
        &mut self,
        condition: VarId,
        then: impl FnOnce(&mut Builder) -> AllMade,
        other: impl FnOnce(&mut Builder) -> AllMade,
    ) -> AllMade {
        let site = Site::here();
        self.or_as_before(|b| {
            let begin = b.program.ops.len();
            let gives = then(b)?;
            let then = b.program.cut(begin, &[], &gives, &site)?;
            let gives = other(b)?;
            let other = b.program.cut(begin, &[], &gives, &site)?;
            append_branch(&mut b.program, condition, [&then, &other], site)
        })
    }

    /// The program stays as it was if something in it is wrong.
    fn or_as_before(&mut self, change: impl FnOnce(&mut Builder) -> AllMade) -> AllMade {
        let before = self.program.clone();
        let made = change(self);
        if made.is_err() {
            self.program = before;
        }
        made
    }

    /// A number after a counter's.
    #[track_caller]
    pub fn increment(&mut self, x: VarId, by: i64) -> Made {
        self.op1(Increment { by }, &[x])
    }

    #[track_caller]
    pub fn logical_and(&mut self, x: VarId, y: VarId) -> Made {
        self.op1(Logical::And, &[x, y])
    }

    #[track_caller]
    pub fn logical_or(&mut self, x: VarId, y: VarId) -> Made {
        self.op1(Logical::Or, &[x, y])
    }

    #[track_caller]
    pub fn logical_not(&mut self, x: VarId) -> Made {
        self.op1(Logical::Not, &[x])
    }
}
