//! Sparse rows: merged, or made dense.

use super::{Operator, check};
use crate::{
    ir::{Form, Misfit, Shape, Sig},
    kernel::{Call, KernelError, Real, real},
};
use serde::{Deserialize, Serialize};

pub(super) fn sparse(inputs: &[Sig], slot: usize) -> Result<(&Sig, usize), Misfit> {
    match inputs[slot].form {
        Form::Rows { height } => Ok((&inputs[slot], height)),
        Form::Dense => Err(Misfit::Dense { slot }),
    }
}

/// Each row once, ascending, its values added up in the order they came; what is left over is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeRows;

impl Operator for MergeRows {
    fn name(&self) -> &'static str {
        "merge_rows"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        Ok(vec![sparse(inputs, 0)?.0.clone()])
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        2 * dims[0][0] * size_of::<u64>()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let width = call.dims(0)[1..].iter().product::<usize>();
        let order: &mut [[u64; 2]] = call.workspace();
        real!(call.dtype(0), T => {
            let (rows, values) = call.rows::<T>(0);
            let (out_rows, out) = call.rows_out::<T>(0);
            out_rows.fill(-1);
            out.fill(T::ZERO);
            // Row and place in one key: equal rows stay in the order they came, whatever the sort does. Empty places
            // have the largest key.
            for (place, (key, &row)) in order.iter_mut().zip(rows).enumerate() {
                *key = [row as u64, place as u64];
            }
            order.sort_unstable();
            let (mut at, mut last) = (0, None);
            for &[row, place] in order.iter().take_while(|k| k[0] != u64::MAX) {
                if last != Some(row) {
                    at += usize::from(last.is_some());
                    last = Some(row);
                    out_rows[at] = row as i64;
                }
                let from = &values[place as usize * width..][..width];
                out[at * width..][..width].iter_mut().zip(from).for_each(|(o, &v)| *o += v);
            }
        });
        Ok(())
    }
}

/// All rows, those that are not there zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsToDense;

impl Operator for RowsToDense {
    fn name(&self) -> &'static str {
        "rows_to_dense"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let (x, height) = sparse(inputs, 0)?;
        let mut dims = x.shape.dims().to_vec();
        dims[0] = height.into();
        Ok(vec![Sig::dense(x.dtype, Shape(dims))])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let width = call.dims(0)[1..].iter().product::<usize>();
        real!(call.dtype(0), T => {
            let ((rows, values), out) = (call.rows::<T>(0), call.output::<T>(0));
            out.fill(T::ZERO);
            for (&row, values) in rows.iter().zip(values.chunks_exact(width.max(1))) {
                if let Ok(row) = usize::try_from(row) {
                    out[row * width..][..width].iter_mut().zip(values).for_each(|(o, &v)| *o += v);
                }
            }
        });
        Ok(())
    }
}
