//! Checks whether two ranks' submissions under one name agree, and describes the difference.
//!
//! - AGREE-1: of several disagreements the first in the order of `CHECKS` is reported, the same one to every rank.

use crate::engine::spec::{Form, Kind, Spec};
use phalanx_core::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Two ranks submitted different things under one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SpecConflict {
    /// Which check found it.
    pub check: u8,
    pub a: Rank,
    pub b: Rank,
    pub a_value: String,
    pub b_value: String,
}

impl SpecConflict {
    /// What they disagree about.
    pub fn what(&self) -> &'static str {
        CHECKS.get(usize::from(self.check)).map_or("submissions", |c| c.what)
    }
}

impl fmt::Display for SpecConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpecConflict { a, a_value, b, b_value, .. } = self;
        write!(f, "Mismatched {}: rank {a} has {a_value}, but rank {b} has {b_value}", self.what())
    }
}

struct Check {
    what: &'static str,
    /// What of a submission must be equal; `None` where the check has no meaning.
    value: fn(&Spec) -> Option<String>,
}

const CHECKS: &[Check] = &[
    // First: if wholes differ, differences of their parts are only what follows from it.
    Check {
        what: "program parts",
        value: |s| Some(if s.note.is_empty() { "one operation alone".into() } else { s.note.to_string() }),
    },
    Check { what: "data types", value: |s| Some(list(s, |f| f.dtype.to_string())) },
    Check { what: "operations", value: |s| Some(s.kind.to_string()) },
    Check { what: "numbers of tensors in a group", value: |s| Some(s.forms.len().to_string()) },
    Check {
        what: "tensor shapes",
        value: |s| (!s.kind.is_uneven()).then(|| list(s, |f| format!("{:?}", f.shape))),
    },
    Check {
        what: "prescale and/or postscale factors",
        value: |s| Some(format!("prescale {} and postscale {}", s.prescale, s.postscale)),
    },
    Check {
        what: "reduction operations",
        value: |s| matches!(s.kind, Kind::Allreduce | Kind::Reducescatter).then(|| s.reduce.to_string()),
    },
    Check {
        what: "tensor shapes beyond the first dimension",
        value: |s| s.kind.is_uneven().then(|| list(s, |f| format!("[rows, {}", tail(f)))),
    },
    Check { what: "root ranks", value: |s| (s.kind == Kind::Broadcast).then(|| format!("root {}", s.root)) },
    Check { what: "compression", value: |s| Some(s.wire.map_or("none".into(), |w| w.to_string())) },
    Check {
        what: "CPU/GPU device selection",
        value: |s| Some(if s.device < 0 { "CPU".into() } else { "GPU".into() }),
    },
    Check { what: "means", value: |s| Some(if s.by_mpi { "MPI".into() } else { "no MPI".into() }) },
    Check {
        what: "checks",
        value: |s| Some(s.check.map_or("no check".into(), |[rtol, _]| format!("check {rtol}"))),
    },
    Check {
        what: "process sets",
        value: |s| matches!(s.kind, Kind::AddSet | Kind::RemoveSet).then(|| format!("ranks {:?}", s.splits)),
    },
    Check {
        what: "rows for each rank",
        value: |s| (s.kind == Kind::Reducescatter).then(|| format!("rows {:?}", s.splits)),
    },
];

/// The first thing about which two submissions disagree.
pub fn conflict(a: (Rank, &Spec), b: (Rank, &Spec)) -> Option<SpecConflict> {
    if common(a.1) == common(b.1) {
        return None;
    }
    // A rank with the lower number speaks first, so that all reports read the same.
    let (a, b) = if a.0 <= b.0 { (a, b) } else { (b, a) };
    CHECKS.iter().enumerate().find_map(|(check, c)| {
        let (a_value, b_value) = ((c.value)(a.1)?, (c.value)(b.1)?);
        (a_value != b_value).then_some(SpecConflict { check: check as u8, a: a.0, b: b.0, a_value, b_value })
    })
}

/// The cheap form of all checks at once.
fn common(spec: &Spec) -> impl PartialEq + '_ {
    let uneven = spec.kind.is_uneven();
    let shapes: Vec<_> = spec
        .forms
        .iter()
        .map(|f| (f.dtype, &f.shape[usize::from(uneven && !f.shape.is_empty())..]))
        .collect();
    let splits: &[u64] = if spec.kind == Kind::Alltoall { &[] } else { &spec.splits };
    let root = if spec.kind == Kind::Broadcast { spec.root } else { 0 };
    let ranks = spec.forms.iter().map(|f| f.shape.len()).collect::<Vec<_>>();
    let scales = (spec.prescale.to_bits(), spec.postscale.to_bits());
    let check = spec.check.map(|pair| pair.map(f64::to_bits));
    let rest = (scales, spec.reduce, spec.wire, spec.device < 0, &spec.note, spec.by_mpi, check);
    (spec.kind, shapes, ranks, splits, root, rest)
}

fn list(spec: &Spec, show: impl Fn(&Form) -> String) -> String {
    spec.forms.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn tail(form: &Form) -> String {
    match form.shape.split_first() {
        None => "no dimension]".into(),
        Some((_, rest)) => rest.iter().map(|d| format!("{d}, ")).collect::<String>() + "]",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spec::ReduceRule;
    use phalanx_core::{DType, ReduceOp};

    fn spec(kind: Kind, dtype: DType, shape: &[u64]) -> Spec {
        Spec::new(kind, vec![Form { dtype, shape: shape.to_vec() }])
    }

    fn what(a: &Spec, b: &Spec) -> Option<&'static str> {
        let there = conflict((Rank(0), a), (Rank(1), b));
        let back = conflict((Rank(1), b), (Rank(0), a));
        assert_eq!(there, back, "AGREE-1");
        there.map(|c| c.what())
    }

    #[test]
    fn each_difference_is_found_and_the_first_one_named() {
        let base = spec(Kind::Allreduce, DType::F32, &[2, 3]);
        assert_eq!(what(&base, &base), None);
        assert_eq!(what(&base, &spec(Kind::Allgather, DType::F64, &[2, 3])), Some("data types"), "AGREE-1");
        assert_eq!(what(&base, &spec(Kind::Broadcast, DType::F32, &[2, 3])), Some("operations"));
        assert_eq!(what(&base, &spec(Kind::Allreduce, DType::F32, &[3, 2])), Some("tensor shapes"));
        let scaled = Spec { prescale: 2.0, ..base.clone() };
        assert_eq!(what(&base, &scaled), Some("prescale and/or postscale factors"));
        let other = Spec { reduce: ReduceRule::Op(ReduceOp::Max), ..base.clone() };
        assert_eq!(what(&base, &other), Some("reduction operations"));
        let scattered = |splits| Spec { splits, ..spec(Kind::Reducescatter, DType::F32, &[2, 3]) };
        assert_eq!(what(&scattered(vec![1, 1]), &scattered(vec![2, 0])), Some("rows for each rank"));
        assert_eq!(what(&base, &Spec { device: 0, ..base.clone() }), Some("CPU/GPU device selection"));
        let rooted = spec(Kind::Broadcast, DType::F32, &[2]);
        assert_eq!(what(&rooted, &Spec { root: 1, ..rooted.clone() }), Some("root ranks"));
        let wire = Spec { wire: Some(DType::F16), ..base.clone() };
        assert_eq!(what(&base, &wire), Some("compression"));
        let part = |note: &str, shape| Spec { note: note.into(), ..spec(Kind::Allreduce, DType::F32, shape) };
        assert_eq!(
            what(&part("2 gradients", &[1]), &part("3 gradients", &[2])),
            Some("program parts"),
            "AGREE-1"
        );
        assert_eq!(what(&part("2 gradients", &[1]), &part("2 gradients", &[1])), None);
        assert_eq!(what(&base, &Spec { by_mpi: true, ..base.clone() }), Some("means"));
        let checked = Spec { check: Some([0.1, -1.0]), ..base.clone() };
        assert_eq!(what(&base, &checked), Some("checks"));
        assert_eq!(what(&checked, &Spec { check: Some([0.2, -1.0]), ..base.clone() }), Some("checks"));
        let text = conflict((Rank(0), &checked), (Rank(1), &base)).unwrap().to_string();
        assert_eq!(text, "Mismatched checks: rank 0 has check 0.1, but rank 1 has no check");
    }

    #[test]
    fn gathered_rows_may_differ_but_nothing_else() {
        let base = spec(Kind::Allgather, DType::F32, &[2, 3]);
        assert_eq!(what(&base, &spec(Kind::Allgather, DType::F32, &[9, 3])), None);
        let odd = "tensor shapes beyond the first dimension";
        assert_eq!(what(&base, &spec(Kind::Allgather, DType::F32, &[2, 4])), Some(odd));
        assert_eq!(what(&base, &spec(Kind::Allgather, DType::F32, &[2, 3, 1])), Some(odd));
        assert_eq!(what(&base, &spec(Kind::Allgather, DType::F32, &[])), Some(odd));
        let text = conflict((Rank(4), &base), (Rank(2), &spec(Kind::Allgather, DType::F32, &[7, 5])));
        let text = text.unwrap().to_string();
        assert_eq!(
            text,
            "Mismatched tensor shapes beyond the first dimension: rank 2 has [rows, 5, ], but rank 4 has [rows, 3, ]"
        );
    }
}
