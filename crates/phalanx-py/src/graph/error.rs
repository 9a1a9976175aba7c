//! Errors of programs and runs as exceptions. Their classes are written in Python, in `phalanx/graph/errors.py`.

use phalanx_graph::{BuildError, CollectiveError, GraphError, RunError, onnx::OnnxError, saved::SavedError};
use pyo3::{prelude::*, types::PyDict};

/// Who and what it was, as far as that is known.
#[derive(Default)]
struct Details {
    var: Option<String>,
    op: Option<String>,
    site: Option<String>,
    wanted: Option<String>,
    got: Option<String>,
    replica: Option<usize>,
}

impl Details {
    fn var(name: &str) -> Details {
        Details { var: Some(name.to_string()), ..Details::default() }
    }

    fn op(name: &str) -> Details {
        Details { op: Some(name.to_string()), ..Details::default() }
    }

    fn at(self, site: &impl ToString) -> Details {
        Details { site: Some(site.to_string()), ..self }
    }

    fn with(self, wanted: &impl ToString, got: &impl ToString) -> Details {
        Details { wanted: Some(wanted.to_string()), got: Some(got.to_string()), ..self }
    }
}

fn raise(py: Python<'_>, class: &str, message: String, details: Details) -> PyErr {
    let make = || {
        let class = py.import("phalanx.graph.errors")?.getattr(class)?;
        let named = PyDict::new(py);
        named.set_item("var", details.var)?;
        named.set_item("op", details.op)?;
        named.set_item("site", details.site)?;
        named.set_item("wanted", details.wanted)?;
        named.set_item("got", details.got)?;
        named.set_item("replica", details.replica)?;
        class.call((message,), Some(&named))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// A program, or a part of one, that makes no sense.
pub fn of_program(py: Python<'_>, error: &GraphError) -> PyErr {
    use GraphError as E;
    let details = match error {
        E::Misfit { op, site, .. }
        | E::Layer { op, site, .. }
        | E::Outputs { op, site, .. }
        | E::Dangling { op, site, .. }
        | E::NotInBody { op, site, .. } => Details::op(op).at(site),
        E::Output { op, site, var, wanted, got } => {
            Details { op: Some(op.to_string()), ..Details::var(var).at(site).with(wanted, got) }
        }
        E::Unwritten { op, site, var }
        | E::Rewritten { op, site, var, .. }
        | E::FeedWritten { op, site, var }
        | E::NoGradient { op, site, var, .. } => {
            Details { op: Some(op.to_string()), ..Details::var(var).at(site) }
        }
        E::Duplicate { var, site }
        | E::Unknown { var, site }
        | E::Uncountable { var, site, .. }
        | E::BatchInStore { var, site, .. }
        | E::SparseGradient { var, site, .. }
        | E::Checkpoint { var, site }
        | E::StoredInBody { var, site }
        | E::NotGiven { var, site }
        | E::NothingToLearn { loss: var, site } => Details::var(var).at(site),
        E::NotScalar { var, site, got } => Details::var(var).at(site).with(&"one floating-point number", got),
        E::BackwardTwice { var, site, .. } | E::Stale { var, site, .. } | E::NotUpdated { var, site, .. } => {
            Details::var(var).at(site)
        }
        E::Again { site, .. } | E::Accumulate { site, .. } => Details::default().at(site),
    };
    let class = match error {
        E::NotScalar { .. } | E::NothingToLearn { .. } => "LossError",
        E::NotInBody { .. } => "ControlFlowError",
        _ => "ProgramError",
    };
    raise(py, class, error.to_string(), details)
}

/// A layer that cannot be made of its inputs.
pub fn of_layer(py: Python<'_>, op: &str, var: Option<&String>, text: String) -> PyErr {
    raise(py, "ProgramError", text, Details { var: var.cloned(), ..Details::op(op) })
}

/// A program and strategies from which no executor can be made.
pub fn of_build(py: Python<'_>, error: &BuildError) -> PyErr {
    use BuildError as E;
    let text = error.to_string();
    match error {
        E::Program(why) => of_program(py, why),
        E::Conflicts(_) | E::UnknownPass { .. } | E::Asynchronous | E::ScaledLosses { .. } => {
            raise(py, "StrategyError", text, Details::default())
        }
        E::LossNotNamed { of } => raise(py, "LossError", text, Details::var(of)),
        E::UnknownLoss { loss } | E::NoUpdate { loss } => raise(py, "LossError", text, Details::var(loss)),
        E::OtherLoss { loss, of, site } => {
            raise(py, "LossError", text, Details::var(loss).at(site).with(of, loss))
        }
        E::LossNotScalar { loss, got, site } => {
            raise(py, "LossError", text, Details::var(loss).at(site).with(&"one number", got))
        }
        E::EarlyUpdate { op, site, .. } => raise(py, "ProgramError", text, Details::op(op).at(site)),
        E::Unreduced { op, site, var } => {
            let details = Details { op: Some(op.to_string()), ..Details::var(var).at(site) };
            raise(py, "ProgramError", text, details)
        }
        E::TwoWriters { var } => raise(py, "StrategyError", text, Details::var(var)),
        E::FixedRows { var, site, .. } => raise(py, "ProgramError", text, Details::var(var).at(site)),
        _ => raise(py, "ProgramError", text, Details::default()),
    }
}

/// Something that cannot be saved.
pub fn of_saving(py: Python<'_>, error: &SavedError) -> PyErr {
    let text = error.to_string();
    match error {
        SavedError::UnknownFetch { var } => raise(py, "FetchError", text, Details::var(var)),
        SavedError::Needed { var } | SavedError::NotNeeded { var } => {
            raise(py, "FeedError", text, Details::var(var))
        }
        SavedError::NotStored { var } => raise(py, "UninitialisedError", text, Details::var(var)),
        SavedError::KeptElsewhere { var, .. } | SavedError::OnServers { var } => {
            raise(py, "StateError", text, Details::var(var))
        }
        SavedError::Misfit { var, wanted, got } => {
            let text = format!("the scope has `{var}` as {got}, the program wants {wanted}");
            raise(py, "StateError", text, Details::var(var).with(wanted, got))
        }
        SavedError::Graph(why) => of_program(py, why),
        _ => raise(py, "GraphError", text, Details::default()),
    }
}

/// A file that cannot be loaded.
pub fn of_loading(py: Python<'_>, path: &str, error: &SavedError) -> PyErr {
    let details = match error {
        SavedError::Unfit { faults } => faults.first().map_or(Details::default(), |fault| {
            Details::var(&fault.var).with(&fault.wanted, &fault.got.as_deref().unwrap_or("nothing"))
        }),
        SavedError::Misfit { var, wanted, got } => Details::var(var).with(wanted, got),
        SavedError::Version { wanted, got } => Details::default().with(wanted, got),
        SavedError::Damaged { wanted, got, .. } => Details::default().with(wanted, got),
        _ => Details::default(),
    };
    raise(py, "SavedError", format!("{path}: {error}"), details)
}

/// A model that cannot be imported or written.
pub fn of_model(py: Python<'_>, path: &str, error: &OnnxError) -> PyErr {
    raise(py, "SavedError", format!("{path}: {error}"), Details::default())
}

/// Somebody wants the scope of a run that may be waiting for its batch.
pub fn of_reader(py: Python<'_>) -> PyErr {
    let text = "the scope is used by a run in async_mode: use it between runs, not while \
                batches are read";
    raise(py, "StateError", text.to_string(), Details::default())
}

/// A run that did not begin, or did not end well.
pub fn of_run(py: Python<'_>, error: &RunError) -> PyErr {
    let (class, details) = explain(error);
    let text = match error {
        // Processes are ranks here.
        RunError::Elsewhere { process, why } => {
            format!("rank {process} could not run: {why}; nothing has changed here")
        }
        RunError::Collective(CollectiveError::Aborted { process, why }) => {
            format!(
                "rank {process} failed in this run: {why}; no parameter has changed, and all ranks can continue"
            )
        }
        RunError::Collective(CollectiveError::Ended { process }) => {
            format!(
                "rank {process} has no more batches, so the epoch ends on all ranks: call reset() and start()"
            )
        }
        _ => error.to_string(),
    };
    raise(py, class, text, details)
}

fn explain(error: &RunError) -> (&'static str, Details) {
    use RunError as E;
    match error {
        E::Replica { replica, error } => {
            let (class, details) = explain(error);
            (class, Details { replica: Some(*replica), ..details })
        }
        E::Missing { var, wanted, site } => {
            ("FeedError", Details::var(var).at(site).with(wanted, &"nothing"))
        }
        E::FeedMisfit { var, wanted, site, got_dtype, got } => {
            ("FeedError", Details::var(var).at(site).with(wanted, &format!("{got_dtype}{got:?}")))
        }
        E::UnknownFeed { var } | E::FedTwice { var } | E::NotPerReplica { var } => {
            ("FeedError", Details::var(var))
        }
        E::Samples { b, a_samples, b_samples, .. } => {
            ("FeedError", Details::var(b).with(a_samples, b_samples))
        }
        E::FeedReplicas { var, wanted, got } | E::Scales { var, wanted, got } => {
            ("FeedError", Details::var(var).with(wanted, got))
        }
        E::Shares { var, replica, wanted, got, .. } => {
            ("FeedError", Details { replica: Some(*replica), ..Details::var(var).with(wanted, got) })
        }
        E::NoSamples => ("FeedError", Details::default()),
        E::UnknownFetch { var }
        | E::SparseFetch { var }
        | E::Unplanned { var }
        | E::Unlike { var, .. }
        | E::FetchOwned { var, .. }
        | E::NotReal { var, .. } => ("FetchError", Details::var(var)),
        E::Uninitialised { var, wanted, site } => {
            ("UninitialisedError", Details::var(var).at(site).with(wanted, &"nothing"))
        }
        E::UnknownState { var }
        | E::StateRange { var, .. }
        | E::KeptElsewhere { var, .. }
        | E::OnServers { var } => ("StateError", Details::var(var)),
        E::StateMisfit { var, wanted, got } => ("StateError", Details::var(var).with(wanted, got)),
        E::Failed { op, site, .. } | E::Panicked { op, site, .. } => ("OpError", Details::op(op).at(site)),
        E::NotFinite { op, site, var, value, .. } => {
            let details = Details { op: Some(op.to_string()), ..Details::var(var).at(site) };
            ("NotFiniteError", details.with(&"a finite number", value))
        }
        // Ranks that read by loaders end the epoch with the first one that has none left.
        E::Collective(CollectiveError::Ended { .. }) => ("EOFException", Details::default()),
        E::Collective(CollectiveError::Values { var, .. }) => ("ProcessError", Details::var(var)),
        E::Collective(_) | E::Collectively { .. } | E::Elsewhere { .. } => {
            ("ProcessError", Details::default())
        }
        E::Reader { .. } | E::ReaderPanicked { .. } => ("FeedError", Details::default()),
        E::Places { .. } | E::Broken { .. } | E::Memory { .. } => ("GraphError", Details::default()),
    }
}
