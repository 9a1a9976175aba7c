//! Sparse rows: merged, or made dense.

use super::{Operator, check};
use crate::{
    ir::{Misfit, Shape, Sig, Storage},
    kernel::{Call, Float, KernelError, Real, columns, fast, real},
};
use serde::{Deserialize, Serialize};

pub(super) fn sparse(inputs: &[Sig], slot: usize) -> Result<(&Sig, usize), Misfit> {
    match inputs[slot].form {
        Storage::Rows { height } => Ok((&inputs[slot], height)),
        Storage::Dense => Err(Misfit::Dense { slot }),
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
            let mut used = 0;
            merge(rows, (values, width), order, |at, row, sum| {
                out_rows[at] = row as i64;
                sum(&mut out[at * width..][..width]);
                used = at + 1;
            });
            out_rows[used..].fill(-1);
            out[used * width..].fill(T::ZERO);
        });
        Ok(())
    }
}

/// Shows each row that there is, ascending, with its place among them and who adds up its values, in the order they came.
fn merge<T: Real>(
    rows: &[i64],
    (values, width): (&[T], usize),
    order: &mut [[u64; 2]],
    mut see: impl FnMut(usize, usize, &dyn Fn(&mut [T])),
) {
    // Row and place in one key: equal rows stay in the order they came, whatever the sort does. Empty places have the
    // largest key.
    for (place, (key, &row)) in order.iter_mut().zip(rows).enumerate() {
        *key = [row as u64, place as u64];
    }
    order.sort_unstable();
    let used = order.iter().take_while(|k| k[0] != u64::MAX).count();
    for (at, same) in order[..used].chunk_by(|a, b| a[0] == b[0]).enumerate() {
        let place = |i: usize| same[i][1] as usize * width;
        see(at, same[0][0] as usize, &|out: &mut [T]| match same.len() {
            1 => out.copy_from_slice(&values[place(0)..][..width]),
            n => fast(
                #[inline(always)]
                || columns(values, n, place, out),
            ),
        });
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

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        2 * dims[0][0] * size_of::<u64>()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let width = call.dims(0)[1..].iter().product::<usize>();
        let order: &mut [[u64; 2]] = call.workspace();
        real!(call.dtype(0), T => {
            let ((rows, values), out) = (call.rows::<T>(0), call.output::<T>(0));
            out.fill(T::ZERO);
            merge(rows, (values, width), order, |_, row, sum| sum(&mut out[row * width..][..width]));
        });
        Ok(())
    }
}
