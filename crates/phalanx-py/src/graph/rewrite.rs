//! What Rust does to a program is placed where Python asked for it.

use super::{error, form};
use phalanx_graph::{GraphError, Program, ir::Site};
use pyo3::prelude::*;

/// Gives what Rust has added to a program the place in Python that asked for it (PYGRAPH-2).
pub fn place(program: &mut Program, at: &form::SourceLine) {
    program.place(|site| site.file().ends_with(".rs"), &form::site(at.clone()));
}

/// The program for feeds of other sizes.
pub fn refit(py: Python<'_>, program: &Program, feeds: &[(String, Vec<usize>)]) -> PyResult<Program> {
    let known = feeds.iter().filter_map(|(name, dims)| Some((program.find(name)?, dims.clone())));
    program.refit(&known.collect::<Vec<_>>()).map_err(|why| error::of_program(py, &why))
}

/// Gives an error that Rust has placed in itself the place in Python (PYGRAPH-2).
pub fn place_error(mut error: GraphError, at: &Site) -> GraphError {
    use GraphError as E;
    match &mut error {
        E::Misfit { site, .. }
        | E::Layer { site, .. }
        | E::Outputs { site, .. }
        | E::Output { site, .. }
        | E::Duplicate { site, .. }
        | E::Unknown { site, .. }
        | E::Dangling { site, .. }
        | E::Unwritten { site, .. }
        | E::Rewritten { site, .. }
        | E::FeedWritten { site, .. }
        | E::Uncountable { site, .. }
        | E::BatchInStore { site, .. }
        | E::NotScalar { site, .. }
        | E::NoGradient { site, .. }
        | E::NothingToLearn { site, .. }
        | E::BackwardTwice { site, .. }
        | E::Stale { site, .. }
        | E::Again { site, .. }
        | E::NotUpdated { site, .. }
        | E::Checkpoint { site, .. }
        | E::Accumulate { site, .. }
        | E::SparseGradient { site, .. }
        | E::NotInBody { site, .. }
        | E::StoredInBody { site, .. }
        | E::NotGiven { site, .. } => {
            if site.file().ends_with(".rs") {
                *site = at.clone();
            }
        }
    }
    error
}
