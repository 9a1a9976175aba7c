//! Parameters that live on servers: what stands in a program in the place of a table's lookup, and of a parameter's update. Only a
//! [`crate::ParallelExecutor`] with servers runs them; it never calls their kernels.

use super::{Operator, check};
use crate::{
    ir::{Dim, Misfit, Shape, Sig, Storage},
    kernel::{Call, KernelError},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// From row numbers: the rows of a table on servers. A number of `padding` gives zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRows {
    pub table: String,
    pub height: usize,
    pub width: usize,
    pub dtype: DType,
    pub padding: Option<i64>,
}

impl PullRows {
    /// Whether a number is that of a row, not of padding.
    pub(crate) fn is_row(&self, at: usize, id: i64) -> Result<bool, KernelError> {
        if Some(id) == self.padding {
            return Ok(false);
        }
        match usize::try_from(id) {
            Ok(row) if row < self.height => Ok(true),
            _ => Err(KernelError::Index { input: 0, at, value: id, limit: self.height }),
        }
    }
}

impl Operator for PullRows {
    fn name(&self) -> &'static str {
        "pull_rows"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let mut dims = check::index(inputs, 0)?.shape.dims().to_vec();
        dims.push(self.width.into());
        Ok(vec![Sig::dense(self.dtype, dims)])
    }

    fn run(&self, _: &mut Call<'_>) -> Result<(), KernelError> {
        Err(KernelError::Served { table: self.table.clone() })
    }
}

/// From a gradient and the rate: the update of a parameter on servers. Rows just go there; of a gradient that is dense, the new parameter
/// comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushRows {
    pub table: String,
    /// Elements of a row. A dense parameter is cut into rows; what is missing in the last one is zero.
    pub width: usize,
    /// The rate is multiplied with this.
    pub scale: f64,
    /// Whether the gradient waits on the servers for a factor ([`ReleaseRows`]); nothing comes back then.
    pub waits: bool,
}

impl Operator for PushRows {
    fn name(&self) -> &'static str {
        "push_rows"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let g = &inputs[0];
        check::scalar(inputs, 1, g.dtype)?;
        match g.form {
            Storage::Rows { .. } => Ok(Vec::new()),
            Storage::Dense if self.waits => check::real(inputs, 0).map(|_| Vec::new()),
            Storage::Dense => Ok(vec![check::real(inputs, 0)?.clone()]),
        }
    }

    fn run(&self, _: &mut Call<'_>) -> Result<(), KernelError> {
        Err(KernelError::Served { table: self.table.clone() })
    }
}

/// The squares of all gradients that wait on servers in these tables, added up, as f64. The processes' gradients are merged before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedSquares {
    pub tables: Vec<String>,
}

impl Operator for ServedSquares {
    fn name(&self) -> &'static str {
        "served_squares"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 0)?;
        Ok(vec![Sig::dense(DType::F64, Shape::scalar())])
    }

    fn run(&self, _: &mut Call<'_>) -> Result<(), KernelError> {
        Err(KernelError::Served { table: self.tables.first().cloned().unwrap_or_default() })
    }
}

/// From a factor: the gradient that waits on servers is multiplied with it, and the parameter is updated. One with dense gradients comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRows {
    pub table: String,
    /// Rows that come back, and the dimensions of what they are.
    pub height: usize,
    pub dims: Vec<usize>,
}

impl Operator for ReleaseRows {
    fn name(&self) -> &'static str {
        "release_rows"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let dtype = check::real(inputs, 0)?.dtype;
        check::scalar(inputs, 0, dtype)?;
        let dims: Vec<Dim> = self.dims.iter().map(|&dim| dim.into()).collect();
        Ok(if self.height == 0 { Vec::new() } else { vec![Sig::dense(dtype, dims)] })
    }

    fn run(&self, _: &mut Call<'_>) -> Result<(), KernelError> {
        Err(KernelError::Served { table: self.table.clone() })
    }
}
