//! The description of what a rank submits under a name, which the ranks compare.

use phalanx_core::{DType, ReduceOp};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// The name under which ranks find each other's tensors.
pub type Name = Arc<str>;

/// What is done with the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    Allreduce,
    Allgather,
    Broadcast,
    Alltoall,
    Reducescatter,
    Barrier,
    /// Makes a process set; runs among all ranks.
    AddSet,
    RemoveSet,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Allreduce => "allreduce",
            Kind::Allgather => "allgather",
            Kind::Broadcast => "broadcast",
            Kind::Alltoall => "alltoall",
            Kind::Reducescatter => "reducescatter",
            Kind::Barrier => "barrier",
            Kind::AddSet => "add_process_set",
            Kind::RemoveSet => "remove_process_set",
        }
    }

    /// Whether ranks may bring different numbers of rows.
    pub const fn is_uneven(self) -> bool {
        matches!(self, Kind::Allgather | Kind::Alltoall)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How contributions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReduceRule {
    Op(ReduceOp),
    /// Adds what is orthogonal, averages what is parallel.
    Adasum,
}

impl fmt::Display for ReduceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceRule::Op(op) => op.fmt(f),
            ReduceRule::Adasum => f.write_str("adasum"),
        }
    }
}

/// One tensor's type and shape. The first dimension is the one that is gathered, split and scattered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Form {
    pub dtype: DType,
    pub shape: Vec<u64>,
}

impl Form {
    pub fn n_elements(&self) -> u64 {
        // More than there can be is more than anybody has.
        self.shape.iter().fold(1, |n: u64, d| n.saturating_mul(*d))
    }

    pub fn n_bytes(&self) -> u64 {
        self.n_elements().saturating_mul(self.dtype.size() as u64)
    }

    /// Rows of the first dimension; a scalar is one row.
    pub fn n_rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements of one row.
    pub fn row_elements(&self) -> u64 {
        self.shape.iter().skip(1).fold(1, |n: u64, d| n.saturating_mul(*d))
    }
}

/// A submission as other ranks see it. Several forms are a group: all of it runs, or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub kind: Kind,
    pub forms: Vec<Form>,
    pub reduce: ReduceRule,
    pub prescale: f64,
    pub postscale: f64,
    /// A place in the process set.
    pub root: u32,
    /// The type in which elements travel, if it is another one.
    pub wire: Option<DType>,
    /// -1 is the CPU.
    pub device: i32,
    /// Alltoall: rows for each rank. Reducescatter: the same, if they are not equal shares. Process sets: their ranks.
    pub splits: Vec<u64>,
    /// What the operation is a part of, in the program's words; ranks must say the same.
    pub note: Arc<str>,
    /// Whether MPI reduces it.
    pub by_mpi: bool,
    /// Allreduce: how far its result may be from a baseline, relative and, unless negative, absolute; ranks compare afterwards, all of them or
    /// none.
    pub check: Option<[f64; 2]>,
}

impl Spec {
    pub fn new(kind: Kind, forms: Vec<Form>) -> Spec {
        Spec {
            kind,
            forms,
            reduce: ReduceRule::Op(ReduceOp::Sum),
            prescale: 1.0,
            postscale: 1.0,
            root: 0,
            wire: None,
            device: -1,
            splits: Vec::new(),
            note: Arc::default(),
            by_mpi: false,
            check: None,
        }
    }

    pub fn n_bytes(&self) -> u64 {
        self.forms.iter().fold(0, |n: u64, f| n.saturating_add(f.n_bytes()))
    }

    /// What this rank alone knows of an uneven operation: rows of each tensor, or rows for each rank.
    pub fn row(&self) -> Vec<u64> {
        match self.kind {
            Kind::Allgather => self.forms.iter().map(Form::n_rows).collect(),
            Kind::Alltoall => self.splits.clone(),
            _ => Vec::new(),
        }
    }
}
