//! Passes in a list that the user can change. After each, the graph is checked.

use super::{BuildError, Graph, passes};
use std::fmt;

/// A change of the graph.
pub trait Pass: Send {
    fn name(&self) -> &str;
    fn apply(&self, graph: &mut Graph) -> Result<(), BuildError>;
}

type Apply = fn(&mut Graph) -> Result<(), BuildError>;

/// A pass that is a function.
struct FunctionPass {
    name: &'static str,
    apply: Apply,
}

impl Pass for FunctionPass {
    fn name(&self) -> &str {
        self.name
    }

    fn apply(&self, graph: &mut Graph) -> Result<(), BuildError> {
        (self.apply)(graph)
    }
}

/// What makes a graph of a program, in order.
pub struct PassList {
    passes: Vec<Box<dyn Pass>>,
}

impl fmt::Debug for PassList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Default for PassList {
    fn default() -> PassList {
        PassList::standard()
    }
}

impl PassList {
    /// All passes. Those for something that the strategy does not ask for do nothing.
    pub fn standard() -> PassList {
        let steps: [(&'static str, Apply); 9] = [
            ("serve_tables", passes::serve_tables),
            ("sync_batch_norm", passes::sync_batch_norm),
            ("split_norms", passes::split_norms),
            ("fuse_elewise_add_act", passes::fuse_elewise_add_act),
            ("replicate", passes::replicate),
            ("collectives", passes::collectives),
            ("fuse_all_reduce", passes::fuse_all_reduce),
            ("fuse_optimizer", passes::fuse_optimizer),
            ("sequential", passes::sequential),
        ];
        let boxed = |(name, apply)| -> Box<dyn Pass> { Box::new(FunctionPass { name, apply }) };
        PassList { passes: steps.into_iter().map(boxed).collect() }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.passes.iter().map(|p| p.name())
    }

    pub fn append(&mut self, pass: Box<dyn Pass>) {
        self.passes.push(pass);
    }

    /// Puts a pass before the one of this name.
    pub fn insert(&mut self, before: &str, pass: Box<dyn Pass>) -> Result<(), BuildError> {
        let at = self.find(before)?;
        self.passes.insert(at, pass);
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> Result<Box<dyn Pass>, BuildError> {
        let at = self.find(name)?;
        Ok(self.passes.remove(at))
    }

    fn find(&self, name: &str) -> Result<usize, BuildError> {
        self.passes.iter().position(|p| p.name() == name).ok_or_else(|| {
            let known = self.names().collect::<Vec<_>>().join(", ");
            BuildError::UnknownPass { name: name.to_string(), known }
        })
    }

    /// Applies all passes, checks after each, and shows each result to `see`.
    pub fn apply(
        &self,
        graph: &mut Graph,
        mut see: impl FnMut(&str, &Graph) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        for pass in &self.passes {
            pass.apply(graph)?;
            graph.check().map_err(|fault| BuildError::Fault { pass: pass.name().to_string(), fault })?;
            see(pass.name(), graph)?;
        }
        // Where the pass that makes sums was taken out, somebody will miss them.
        graph.has_sums = true;
        graph.check().map_err(|fault| BuildError::Fault { pass: "that is the last".to_string(), fault })
    }
}
