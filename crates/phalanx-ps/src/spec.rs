//! What a table is: its rows, how they begin, how gradients change them, and how its partitions are spread.

use crate::error::PsError;
use phalanx_core::{
    DType,
    kernel::update::{Adagrad, Adam, Momentum, RmsProp},
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Writes the first values of a row.
pub type FirstValues = Arc<dyn Fn(u64, &mut [u8]) + Send + Sync>;

/// A table of parameters that lives on servers.
#[derive(Clone)]
pub struct TableSpec {
    pub name: String,
    /// How many rows it has.
    pub height: u64,
    /// Elements of a row.
    pub width: usize,
    /// `f32` or `f64`.
    pub dtype: DType,
    pub first: FirstValues,
    pub rule: TableRule,
    pub reduction: RowReduction,
    /// Rows travel between hosts in this type: `f16` or `bf16` for a table of `f32`.
    pub wire: Option<DType>,
    pub partitions: u32,
    pub spread: Spread,
    /// Rows that one worker touches several times in a step travel several times, and servers add them up: what the other way saves. A step
    /// that touches more rows than the table has is merged all the same.
    pub raw: bool,
}

/// How the rows of all workers become one gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowReduction {
    Sum,
    /// Divided by the number of workers, whether they touched the row or not.
    Mean,
    /// Divided by the number of workers that touched the row.
    ByTouch,
}

/// Which partition has which row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spread {
    /// Row r is in partition r mod P: frequent rows that are neighbours are spread.
    Mod,
    /// Partitions are ranges of rows.
    Range,
}

/// What a server does with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableRule {
    pub update: TableUpdate,
    /// What states begin with.
    pub first_state: f64,
    /// This times the row is added to its gradient.
    pub decay: f64,
    pub clip: TableClip,
}

/// The formula; the rate comes with every push.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TableUpdate {
    Sgd,
    Momentum(Momentum),
    Adagrad(Adagrad),
    Adam(Adam),
    RmsProp(RmsProp),
}

/// Whether a gradient is cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TableClip {
    No,
    /// To this norm of the table's own gradient.
    Norm(f64),
    /// By a factor that workers compute from the norms of everything: the update waits for it.
    Given,
}

impl TableRule {
    /// No decay, no clipping, states that begin with zeros.
    pub fn new(update: TableUpdate) -> TableRule {
        TableRule { update, first_state: 0.0, decay: 0.0, clip: TableClip::No }
    }

    /// How many states of the parameter's form it keeps.
    pub fn n_states(&self) -> usize {
        match self.update {
            TableUpdate::Sgd => 0,
            TableUpdate::Momentum(_) | TableUpdate::Adagrad(_) => 1,
            TableUpdate::Adam(_) | TableUpdate::RmsProp(_) => 2,
        }
    }
}

impl TableSpec {
    pub fn row_bytes(&self) -> usize {
        self.width * self.dtype.size()
    }

    /// The type in which rows travel between hosts.
    pub fn wire_dtype(&self) -> DType {
        self.wire.unwrap_or(self.dtype)
    }

    /// Bytes of the rows and their states.
    pub fn bytes(&self) -> u64 {
        self.height * self.row_bytes() as u64 * (1 + self.rule.n_states() as u64)
    }

    /// Whether such a table can be served.
    pub fn check(&self) -> Result<(), PsError> {
        let bad = |why: String| Err(PsError::Spec { table: self.name.clone(), why });
        if self.name.is_empty() {
            return bad("a table needs a name".into());
        }
        if self.height == 0 || self.height > u64::from(u32::MAX) {
            return bad(format!("a table has 1 to {} rows, not {}", u32::MAX, self.height));
        }
        if self.width == 0 {
            return bad("a row has at least one element".into());
        }
        if !matches!(self.dtype, DType::F32 | DType::F64) {
            return bad(format!(
                "a table is of f32 or f64, not {}; rows may travel as f16 or bf16 (wire)",
                self.dtype
            ));
        }
        match (self.wire, self.dtype) {
            (None, _) | (Some(DType::F16 | DType::BF16), DType::F32) => {}
            (Some(wire), own) if wire == own => {}
            (Some(wire), own) => {
                return bad(format!("rows of {own} cannot travel as {wire}; f32 may travel as f16 or bf16"));
            }
        }
        if self.partitions == 0 || u64::from(self.partitions) > self.height {
            return bad(format!(
                "{} rows are cut into 1 to {} partitions, not {}",
                self.height, self.height, self.partitions
            ));
        }
        if let TableClip::Norm(limit) = self.rule.clip
            && !(limit > 0.0 && limit.is_finite())
        {
            return bad(format!("gradients are clipped to a positive norm, not {limit}"));
        }
        if self.rule.clip == TableClip::Given && self.reduction == RowReduction::ByTouch {
            // Their norms would depend on who touched what, which no serial run knows.
            return bad("a global norm needs sum or mean, not by-touch".into());
        }
        Ok(())
    }
}

impl fmt::Debug for TableSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableSpec { name, height, width, dtype, .. } = self;
        write!(f, "{name} ({height} x {width} {dtype})")
    }
}
