//! The errors of a program. Each names the operation, the variable and the place in the user's code.

use super::{program::Site, shape::Dim, shape::MAX_RANK, shape::Shape, sig::Sig};
use phalanx_core::DType;

/// Why inputs do not fit an operation. Slots count its inputs from 0.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Misfit {
    #[error("takes {wanted} inputs, got {got}")]
    Count { wanted: usize, got: usize },
    #[error("input {slot}: wants {wanted} dimensions, got {got}")]
    Rank { slot: usize, wanted: &'static str, got: Shape },
    #[error("input {slot}: wants {wanted}, got {got}")]
    DType { slot: usize, wanted: &'static str, got: DType },
    #[error("input {slot}, dimension {axis}: wants {wanted}, got {got}")]
    Dim { slot: usize, axis: usize, wanted: Dim, got: Dim },
    #[error("{a} and {b} do not fit together")]
    Pair { a: Shape, b: Shape },
    #[error("input {slot} has sparse rows, which this operation does not take")]
    Sparse { slot: usize },
    #[error("input {slot} is dense; this operation takes sparse rows")]
    Dense { slot: usize },
    #[error("attribute `{name}`: wants {wanted}, got {got}")]
    Attribute { name: &'static str, wanted: &'static str, got: String },
    #[error("input {slot}, dimension {axis} depends on the batch; this operation needs a fixed size there")]
    Symbolic { slot: usize, axis: usize },
    #[error("in its {what}: {error}")]
    Body { what: &'static str, error: Box<GraphError> },
    #[error("input {slot}: its {what} takes {wanted}, got {got}")]
    Takes { what: &'static str, slot: usize, wanted: Box<Sig>, got: Box<Sig> },
    #[error("gives {got} values; an operation gives at most {most}: split it into several")]
    Many { most: usize, got: usize },
    #[error("its {what} gives {got} values, wants {wanted}")]
    GivesCount { what: &'static str, wanted: usize, got: usize },
    #[error("value {slot} that its {what} gives: wants {wanted}, got {got}")]
    Gives { what: &'static str, slot: usize, wanted: Box<Sig>, got: Box<Sig> },
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    #[error("`{op}` at {site}: {why} (inputs: {inputs})")]
    Misfit { op: &'static str, site: Site, inputs: String, why: Misfit },
    #[error("{text} ({site})")]
    Layer { op: &'static str, text: String, site: Site },
    #[error("`{op}` at {site} gives {got} outputs, {wanted} were named")]
    Outputs { op: &'static str, site: Site, wanted: usize, got: usize },
    #[error("`{op}` at {site} writes `{var}`, which was declared as {wanted}; it gives {got}")]
    Output { op: &'static str, site: Site, var: String, wanted: Box<Sig>, got: Box<Sig> },
    #[error("`{var}` at {site} is declared twice; give one of them another name")]
    Duplicate { var: String, site: Site },
    #[error("no variable `{var}` in the program ({site})")]
    Unknown { var: String, site: Site },
    #[error("`{op}` at {site} names variable number {index}, but the program has {n_vars}")]
    Dangling { op: &'static str, site: Site, index: usize, n_vars: usize },
    #[error("`{op}` at {site} reads `{var}` before anything has written it")]
    Unwritten { op: &'static str, site: Site, var: String },
    #[error("`{op}` at {site} writes `{var}`, which `{first}` at {first_site} has already written")]
    Rewritten { op: &'static str, site: Site, var: String, first: &'static str, first_site: Site },
    #[error("`{op}` at {site} writes `{var}`, which is fed")]
    FeedWritten { op: &'static str, site: Site, var: String },
    #[error(
        "`{var}` at {site} has shape {shape}: it cannot be counted, is not a multiple of the batch, or has more than {MAX_RANK} dimensions"
    )]
    Uncountable { var: String, site: Site, shape: Shape },
    #[error("`{var}` at {site} is in the store and cannot depend on the batch: {shape}")]
    BatchInStore { var: String, site: Site, shape: Shape },
    #[error("the loss `{var}` at {site} must be one floating-point number, got {got}")]
    NotScalar { var: String, site: Site, got: Sig },
    #[error("`{op}` at {site} has no gradient, but the loss `{loss}` depends on `{var}` through it")]
    NoGradient { op: &'static str, site: Site, var: String, loss: String },
    #[error("the loss `{loss}` does not depend on any trainable parameter ({site})")]
    NothingToLearn { loss: String, site: Site },
    #[error(
        "`{var}` already has a gradient of `{loss}`, and {site} would add it twice; minimize a loss once, or give each optimizer its own parameters"
    )]
    BackwardTwice { loss: String, var: String, site: Site },
    #[error(
        "the loss `{loss}` ({site}) was computed with `{var}` as it was before and after the update at {update}, so it has no gradient of either; write all of the loss before that update, or all of it after it"
    )]
    Stale { loss: String, var: String, update: Site, site: Site },
    #[error(
        "nothing can be computed again ({site}) after the update at {update}, because parameters have changed; write what follows as a program of its own"
    )]
    Again { update: Site, site: Site },
    #[error("`{var}` ({site}) cannot be updated: {why}")]
    NotUpdated { var: String, why: &'static str, site: Site },
    #[error("`{var}` cannot be a checkpoint ({site}): no forward operation computes it")]
    Checkpoint { var: String, site: Site },
    #[error("gradients of the program cannot be accumulated ({site}): {why}")]
    Accumulate { why: &'static str, site: Site },
    #[error("`{what}` cannot take the sparse gradient of `{var}` ({site})")]
    SparseGradient { what: &'static str, var: String, site: Site },
    #[error(
        "`{op}` at {site} {why}, which is not allowed inside a loop or a branch; put it outside, after them"
    )]
    NotInBody { op: &'static str, site: Site, why: &'static str },
    #[error("`{var}` at {site} is in the store, but a body cannot have variables there; pass it to the body")]
    StoredInBody { var: String, site: Site },
    #[error("`{var}` at {site} is named as a result of a body, but no operation of the body computes it")]
    NotGiven { var: String, site: Site },
}
