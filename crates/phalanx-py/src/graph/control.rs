//! Loops and branches: operations that Python has appended one after another become bodies.

use phalanx_graph::{
    GraphError, Program, VarId,
    ir::Site,
    layers::{append_branch, append_loop},
};

/// A loop as Python has written it: from operation `begin` on stand those of a round.
pub struct Loop {
    pub begin: usize,
    pub most: u64,
    /// Condition and carried values before the first round.
    pub first: Vec<VarId>,
    /// What stood for them in the round.
    pub given: Vec<VarId>,
    /// The next ones.
    pub gives: Vec<VarId>,
}

impl Loop {
    pub fn append(&self, program: &mut Program, site: Site) -> Result<Vec<VarId>, GraphError> {
        let round = program.cut(self.begin, &self.given, &self.gives, &site)?;
        append_loop(program, self.most, &self.first, &round, site)
    }
}

/// A branch as Python has written it: from `begin` to `middle` one side, from there the other.
pub struct Branch {
    pub begin: usize,
    pub middle: usize,
    pub condition: VarId,
    pub then: Vec<VarId>,
    pub other: Vec<VarId>,
}

impl Branch {
    pub fn append(&self, program: &mut Program, site: Site) -> Result<Vec<VarId>, GraphError> {
        let other = program.cut(self.middle, &[], &self.other, &site)?;
        let then = program.cut(self.begin, &[], &self.then, &site)?;
        append_branch(program, self.condition, [&then, &other], site)
    }
}
