//! Checks the feeds and fetches of a run (PARA-4).

use super::{Feed, Fetch, Merge, ParallelExecutor, RunError, Store, accord::Standing};
use crate::{
    graph::{GradientScale, Graph},
    ir::{Var, VarId, VarKind},
};
use phalanx_core::DType;

/// What the present run is asked for; its vectors are used again.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub sizes: Vec<usize>,
    pub other: Vec<usize>,
    pub fetched: Vec<VarId>,
    pub scales: Vec<f64>,
    /// Samples of processes before this one, and of all.
    pub first: usize,
    pub total: usize,
    /// How many replicas of all processes have samples.
    pub busy: usize,
    /// Whether any feed counts samples.
    pub counts: bool,
}

/// What every run wants to know of a variable, found out once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Whether something gives it a value.
    is_there: bool,
    /// Whether all replicas have the same.
    is_alike: bool,
}

impl Known {
    pub(super) fn all(graph: &Graph) -> Vec<Known> {
        let of = |(id, var): (VarId, &Var)| {
            let (is_there, is_alike) = (var.kind != VarKind::Temp, graph.is_alike(id));
            Known { is_there, is_alike }
        };
        let mut known: Vec<Known> = graph.program.vars().map(of).collect();
        let computed = graph.program.ops.iter().flat_map(|op| &op.outputs);
        computed.for_each(|out| known[out.index()].is_there = true);
        known
    }
}

impl ParallelExecutor {
    pub(super) fn one_sample_each(&self, asked: &mut Asked) {
        let n = self.graph.settings.copies();
        asked.sizes.clear();
        asked.sizes.resize(n, 1);
        (asked.first, asked.total) = (n * self.graph.settings.process, n * self.graph.settings.processes);
    }

    pub(super) fn check_fetches(&self, fetch: &[Fetch<'_>], asked: &mut Asked) -> Result<(), RunError> {
        let program = &self.graph.program;
        asked.fetched.clear();
        for f in fetch {
            let Some(id) = program.find(f.name) else {
                return Err(RunError::UnknownFetch { var: f.name.to_string() });
            };
            if !program.sig(id).is_dense() {
                return Err(RunError::SparseFetch { var: f.name.to_string() });
            }
            if !self.known[id.index()].is_there {
                return Err(RunError::Unplanned { var: f.name.to_string() });
            }
            if let Some(process) = self.graph.parts.owners.of_var(id) {
                return Err(RunError::FetchOwned { var: f.name.to_string(), process });
            }
            asked.fetched.push(id);
        }
        Ok(())
    }

    /// Whether what replicas have can become one.
    pub(super) fn check_merges(&self, fetch: &[Fetch<'_>], asked: &Asked) -> Result<(), RunError> {
        for (f, &id) in fetch.iter().zip(&asked.fetched) {
            let sig = self.graph.program.sig(id);
            if !matches!(f.merge, Merge::Mean | Merge::Sum) || self.known[id.index()].is_alike {
                continue;
            }
            let var = || f.name.to_string();
            if !matches!(sig.dtype, DType::F32 | DType::F64) {
                return Err(RunError::NotReal { var: var(), dtype: sig.dtype });
            }
            let mut sizes = asked.sizes.iter().filter(|&&n| n > 0);
            if sig.shape.has_batch()
                && let Some(a) = sizes.next()
                && let Some(b) = sizes.find(|b| *b != a)
            {
                let (a, b) = (sig.shape.at(*a), sig.shape.at(*b));
                return Err(RunError::Unlike { var: var(), a, b });
            }
        }
        Ok(())
    }

    pub(super) fn check_feeds(&self, feeds: &[(&str, Feed<'_>)], asked: &mut Asked) -> Result<(), RunError> {
        let (program, n) = (&self.graph.program, self.graph.settings.copies());
        asked.sizes.clear();
        asked.sizes.resize(n, 1);
        asked.other.clear();
        asked.other.resize(n, 1);
        asked.counts = false;
        asked.scales.clear();
        let mut sized_by = ("", None);
        for (i, (name, feed)) in feeds.iter().enumerate() {
            if feeds[..i].iter().any(|(other, _)| other == name) {
                return Err(RunError::FedTwice { var: name.to_string() });
            }
            if self.is_scale(name) {
                scales(name, feed, n, &mut asked.scales)?;
                continue;
            }
            let known = |id: &VarId| program.var(*id).kind != VarKind::Temp;
            let Some(id) = program.find(name).filter(known) else {
                return Err(RunError::UnknownFeed { var: name.to_string() });
            };
            let to = if asked.counts { &mut asked.other } else { &mut asked.sizes };
            if !feed.sizes(program, id, to)? {
                if matches!(feed, Feed::PerReplica(_)) && program.var(id).is_persistable() {
                    return Err(RunError::NotPerReplica { var: name.to_string() });
                }
                continue;
            }
            let whole = feed.whole(program, id);
            if !asked.counts {
                (asked.counts, sized_by) = (true, (*name, whole));
                continue;
            }
            if let Some(replica) = (0..n).find(|&r| asked.sizes[r] != asked.other[r]) {
                let (var, other) = (name.to_string(), sized_by.0.to_string());
                // Who fed whole batches knows nothing of shares.
                if let (Some(a_samples), Some(b_samples)) = (sized_by.1, whole) {
                    return Err(RunError::Samples { a: other, a_samples, b: var, b_samples });
                }
                let (wanted, got) = (asked.sizes[replica], asked.other[replica]);
                return Err(RunError::Shares { var, other, replica, wanted, got });
            }
        }
        self.check_missing(feeds, asked)
    }

    pub(super) fn check_missing(&self, feeds: &[(&str, Feed<'_>)], asked: &Asked) -> Result<(), RunError> {
        let program = &self.graph.program;
        let missing = |id: VarId, name: &str| {
            let var = program.var(id);
            let (wanted, site) = (var.sig.clone(), var.site.clone());
            Err(RunError::Missing { var: name.to_string(), wanted, site })
        };
        for &id in &self.feeds {
            let name = &program.var(id).name;
            if !feeds.iter().any(|(fed, _)| fed == name) {
                return missing(id, name);
            }
        }
        let custom = self.graph.settings.build.gradient_scale == GradientScale::Customized;
        if let Some(loss) = self.loss.filter(|_| custom && asked.scales.is_empty()) {
            return missing(loss, &format!("{}@GRAD", program.var(loss).name));
        }
        Ok(())
    }

    /// Whether this is the gradient of the loss, which is fed where the strategy says so.
    pub(super) fn is_scale(&self, name: &str) -> bool {
        let custom = self.graph.settings.build.gradient_scale == GradientScale::Customized;
        let loss = self.loss.filter(|_| custom).map(|id| self.graph.program.var(id).name.as_str());
        loss.is_some_and(|loss| name.strip_suffix("@GRAD") == Some(loss))
    }

    /// How this process stands before a run.
    pub(super) fn standing(&self, store: &Store, asked: &Asked) -> Standing {
        Standing {
            samples: asked.sizes.iter().sum(),
            busy: asked.sizes.iter().filter(|&&n| n > 0).count(),
            is_new: self.binding.is_new(store),
            runs: true,
            gathers: false,
            digest: self.digest,
            written: 0,
        }
    }

    /// How many samples there are, here and elsewhere.
    pub(super) fn count(&self, asked: &mut Asked, all: &[Standing]) -> Result<(), RunError> {
        let before = &all[..self.run.accord.collective.index()];
        asked.first = before.iter().map(|s| s.samples).sum();
        asked.total = all.iter().map(|s| s.samples).sum();
        asked.busy = all.iter().map(|s| s.busy).sum();
        if asked.total == 0 && self.learns { Err(RunError::NoSamples) } else { Ok(()) }
    }
}

/// The numbers that the gradient of the loss begins with, one for each replica.
fn scales(name: &str, feed: &Feed<'_>, n: usize, scales: &mut Vec<f64>) -> Result<(), RunError> {
    match feed {
        Feed::Split(value) | Feed::Replicate(value) => scales.extend(value.to_f64()),
        Feed::PerReplica(values) => values.iter().for_each(|v| scales.extend(v.to_f64())),
    }
    match scales.len() {
        1 => scales.resize(n, scales[0]),
        got if got != n => return Err(RunError::Scales { var: name.to_string(), wanted: n, got }),
        _ => {}
    }
    Ok(())
}
