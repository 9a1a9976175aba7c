//! The errors of a graph, before anything runs.

use super::{serve::Unserved, strategy::Conflicts};
use crate::ir::{Dim, GraphError, Site};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Conflicts(#[from] Conflicts),
    #[error(transparent)]
    Program(#[from] GraphError),
    #[error("the program has no operations")]
    Empty,
    #[error(
        "the program has gradients of `{of}`, but no loss is named, so replicas would train alone; name the loss"
    )]
    LossNotNamed { of: String },
    #[error("`{loss}` is named as the loss, but the program has no variable of that name")]
    UnknownLoss { loss: String },
    #[error("`{loss}` is named as the loss, but the program has the gradients of `{of}` ({site})")]
    OtherLoss { loss: String, of: String, site: Site },
    #[error(
        "`{op}` at {site} computes a gradient with what the update at {update} has changed, but replicas update once, at the end of a step; write what follows that update as a program of its own with the same parameters, and run it after this one"
    )]
    EarlyUpdate { op: &'static str, site: Site, update: Site },
    #[error(
        "gradient_scale is Customized, but the program learns from {n} losses; it can be fed for one only"
    )]
    ScaledLosses { n: usize },
    #[error("`{op}` at {site} reads `{var}` to update parameters, but replicas have different values of it")]
    Unreduced { op: &'static str, site: Site, var: String },
    #[error(
        "`{var}` is written by the network and by the update; with shared parameters (Reduce) replicas would race for it. Use AllReduce"
    )]
    TwoWriters { var: String },
    #[error(
        "the sparse gradient `{var}` ({site}) has {rows} rows, which are not a multiple of the batch; put its table on servers, or make it dense with `rows_to_dense`"
    )]
    FixedRows { var: String, rows: Dim, site: Site },
    #[error("`{var}` cannot be on servers: {why}")]
    Unserved { var: String, why: Unserved },
    #[error(
        "`{var}` is to be on servers (`BuildStrategy::served`), but no servers are given; set `Setup::served`"
    )]
    NoServers { var: String },
    #[error(
        "parameters on servers are the same for all replicas, but with NoReduce replicas learn alone; use AllReduce or Reduce"
    )]
    ServedAlone,
    #[error("there is no pass `{name}`; known passes: {known}")]
    UnknownPass { name: String, known: String },
    #[error("after the pass `{pass}`: {fault}")]
    Fault { pass: String, fault: GraphFault },
    #[error("`{loss}` is named as the loss, but it is {got}, not one number ({site})")]
    LossNotScalar { loss: String, got: String, site: Site },
    #[error("async_mode needs `Hogwild`; this executor runs every step on all replicas")]
    Asynchronous,
    #[error("the program has gradients of `{loss}` but no updates; call `minimize` first")]
    NoUpdate { loss: String },
    #[error("cannot start {n} threads: {why}")]
    Threads { n: usize, why: String },
    #[error("cannot write {path}: {why}")]
    Dump { path: String, why: String },
}

/// What a pass has broken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphFault {
    #[error("node {node} ({what}) reads {buffer}, which nothing has written yet")]
    Unwritten { node: usize, what: String, buffer: String },
    #[error("node {node} ({what}) writes {buffer}, which node {first} has written")]
    Rewritten { node: usize, what: String, buffer: String, first: usize },
    #[error("node {node} waits for node {after}, which comes later")]
    Cycle { node: usize, after: usize },
    #[error("node {node} ({what}) writes {buffer} before node {later}, against the order of the program")]
    Order { node: usize, what: String, buffer: String, later: usize },
    #[error(
        "node {node} exchanges with other processes without waiting for node {before}: their order could differ"
    )]
    Loose { node: usize, before: usize },
    #[error("operation {op} runs {n} times in {place}")]
    Times { op: usize, n: usize, place: String },
}
