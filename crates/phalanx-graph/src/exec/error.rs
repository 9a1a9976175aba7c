//! The errors of a run: before it, with variable and both sides; within it, with operation and place.

use super::parallel::CollectiveError;
use crate::{
    ir::{Sig, Site},
    kernel::KernelError,
};
use phalanx_core::DType;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    #[error("`{var}` is not fed; it is {wanted}, declared at {site}")]
    Missing { var: String, wanted: Sig, site: Site },
    #[error("`{var}` is fed, but the program has no feed of that name")]
    UnknownFeed { var: String },
    #[error("`{var}` is fed twice")]
    FedTwice { var: String },
    #[error("`{var}` wants {wanted} (declared at {site}), got {got_dtype}{got:?}")]
    FeedMisfit { var: String, wanted: Sig, site: Site, got_dtype: DType, got: Vec<usize> },
    #[error("`{a}` is fed with {a_samples} samples and `{b}` with {b_samples}")]
    Samples { a: String, a_samples: usize, b: String, b_samples: usize },
    #[error("`{var}` is fetched, but the program has no variable of that name")]
    UnknownFetch { var: String },
    #[error("`{var}` has sparse rows and cannot be fetched; make it dense with `rows_to_dense`")]
    SparseFetch { var: String },
    #[error("`{var}` is fetched, but nothing computes it")]
    Unplanned { var: String },
    #[error("{n} places were given for fetched values, but {wanted} variables are fetched")]
    Places { wanted: usize, n: usize },
    #[error("`{var}` must be set in the store before the first run; it is {wanted}, declared at {site}")]
    Uninitialised { var: String, wanted: Sig, site: Site },
    #[error("the store has no `{var}`; run or prepare the program on it first")]
    UnknownState { var: String },
    #[error("the store has `{var}` as {wanted}, got {got}")]
    StateMisfit { var: String, wanted: Box<Sig>, got: Box<Sig> },
    #[error("the store's `{var}` ends before byte {at} and those behind it")]
    StateRange { var: String, at: usize },
    #[error(
        "`{var}` is not in this process: process {process} owns it (Reduce across processes); call `gather` of the \
         executor in all processes first"
    )]
    KeptElsewhere { var: String, process: usize },
    #[error(
        "`{var}` is on servers while it is trained: set it before, fetch it in a step, or read it when the training is closed"
    )]
    OnServers { var: String },
    #[error(
        "`{var}` is fetched, but process {process} alone has it (Reduce across processes); use AllReduce, or for a state \
         call `gather` of the executor in all processes and read it from the store"
    )]
    FetchOwned { var: String, process: usize },
    #[error("`{op}` at {site} failed: {why} (inputs: {inputs})")]
    Failed { op: &'static str, site: Site, inputs: String, why: KernelError },
    #[error("`{op}` at {site} panicked: {why} (inputs: {inputs})")]
    Panicked { op: &'static str, site: Site, inputs: String, why: String },
    #[error("`{op}` at {site} computed {value} in `{var}`, element {at}")]
    NotFinite { op: &'static str, site: Site, var: String, at: usize, value: f64 },
    #[error("in replica {replica}: {error}")]
    Replica { replica: usize, error: Box<RunError> },
    #[error("between processes: {0}")]
    Collective(#[from] CollectiveError),
    #[error("{what} over replicas failed: {why}")]
    Collectively { what: String, why: String },
    #[error("`{var}` is fed for {got} replicas, but there are {wanted}")]
    FeedReplicas { var: String, wanted: usize, got: usize },
    #[error("`{var}` gives replica {replica} {got} samples, and `{other}` gives it {wanted}")]
    Shares { var: String, other: String, replica: usize, wanted: usize, got: usize },
    #[error("`{var}` does not depend on the batch and cannot be fed to replicas one by one; replicate it")]
    NotPerReplica { var: String },
    #[error("the batch has no samples; feed at least one")]
    NoSamples,
    #[error("`{var}` must be fed for each replica, or once for all: {wanted} or 1 numbers, got {got}")]
    Scales { var: String, wanted: usize, got: usize },
    #[error("replicas have `{var}` in different shapes, {a:?} and {b:?}; fetch it unmerged")]
    Unlike { var: String, a: Vec<usize>, b: Vec<usize> },
    #[error("`{var}` is {dtype}; only f32 and f64 have a mean or a sum")]
    NotReal { var: String, dtype: DType },
    #[error("process {process} could not run: {why}; nothing has changed here")]
    Elsewhere { process: usize, why: String },
    #[error(
        "cannot allocate {bytes} bytes for {what}; feed fewer samples at once, or make the program smaller"
    )]
    Memory { what: String, bytes: usize },
    #[error("the reader failed at batch {batch}: {why}")]
    Reader { batch: u64, why: String },
    #[error("the reader panicked at batch {batch}: {why}")]
    ReaderPanicked { batch: u64, why: String },
    #[error("a worker of the executor was lost: {why}")]
    Broken { why: String },
}

impl RunError {
    /// What an operation says that could not do its work. A number that is not finite is told of the operation within it
    /// that gave it.
    pub(super) fn of_kernel(op: &'static str, site: Site, inputs: String, why: KernelError) -> RunError {
        if let KernelError::Within(within) = &why
            && let KernelError::NotFinite { var, at, value } = &within.why
        {
            let (op, site, var) = (within.op, within.site.clone(), var.clone());
            return RunError::NotFinite { op, site, var, at: *at, value: *value };
        }
        RunError::Failed { op, site, inputs, why }
    }
}
