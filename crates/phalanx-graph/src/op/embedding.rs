//! Rows of a table by number, with dense or sparse gradients.

use super::{Operator, check, scatter};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig, Storage},
    kernel::{Call, Float, KernelError, real},
};
use serde::{Deserialize, Serialize};

/// Table `[height, width]` and row numbers; a number of `padding` gives zeros and learns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding {
    pub padding: Option<i64>,
    /// Whether the table's gradient has only the rows that were used.
    pub sparse: bool,
}

fn row(
    input: usize,
    at: usize,
    value: i64,
    height: usize,
    padding: Option<i64>,
) -> Result<Option<usize>, KernelError> {
    if Some(value) == padding {
        return Ok(None);
    }
    match usize::try_from(value) {
        Ok(row) if row < height => Ok(Some(row)),
        _ => Err(KernelError::Index { input, at, value, limit: height }),
    }
}

impl Operator for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (table, ids) = (check::real(inputs, 0)?, check::index(inputs, 1)?);
        check::rank(inputs, 0, 2, "2 ([height, width])")?;
        check::fixed(inputs, 0, 0)?;
        let mut dims = ids.shape.dims().to_vec();
        dims.push(table.shape.dims()[1]);
        Ok(vec![Sig::dense(table.dtype, dims)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (height, width) = (call.dims(0)[0], call.dims(0)[1]);
        let ids = call.input::<i64>(1);
        real!(call.dtype(0), T => {
            let (table, out) = (call.input::<T>(0), call.output::<T>(0));
            for (at, (&id, out)) in ids.iter().zip(out.chunks_exact_mut(width.max(1))).enumerate() {
                match row(1, at, id, height, self.padding)? {
                    Some(r) => out.copy_from_slice(&table[r * width..(r + 1) * width]),
                    None => out.fill(T::ZERO),
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (ids, dy) = (grad.x(1), grad.dy(0));
        let height = grad.sig(grad.x(0)).shape.dims()[0].fixed().expect("infer saw a fixed height");
        let padding = self.padding;
        match self.sparse {
            true => grad.give(0, EmbeddingRows { height, padding }, &[ids, dy]),
            false => grad.give(0, EmbeddingGrad { height, padding }, &[ids, dy]),
        }
    }
}

fn looked_up(inputs: &[Sig]) -> Result<Sig, Misfit> {
    check::count(inputs, 2)?;
    let (ids, d) = (check::index(inputs, 0)?, check::real(inputs, 1)?);
    let (Some((&width, outer)), Some(n)) = (d.shape.dims().split_last(), ids.shape.volume()) else {
        return Err(Misfit::Rank { slot: 1, wanted: "at least 1", got: d.shape.clone() });
    };
    if outer != ids.shape.dims() {
        return Err(Misfit::Pair { a: ids.shape.clone(), b: d.shape.clone() });
    }
    Ok(Sig::dense(d.dtype, [n, width]))
}

/// From row numbers and gradient: the whole table's, added up in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingGrad {
    pub height: usize,
    pub padding: Option<i64>,
}

impl Operator for EmbeddingGrad {
    fn name(&self) -> &'static str {
        "embedding_grad"
    }

    fn workspace(&self, dims: &[&[usize]], _element: usize) -> usize {
        scatter::workspace(self.height, dims[0].iter().product(), dims[1].last().copied().unwrap_or(1))
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let d = looked_up(inputs)?;
        Ok(vec![Sig::dense(d.dtype, Shape(vec![self.height.into(), d.shape.dims()[1]]))])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let width = call.out_dims(0)[1];
        let ids = call.input::<i64>(0);
        let scratch = call.workspace();
        real!(call.dtype(1), T => {
            let (d, out) = (call.input::<T>(1), call.output::<T>(0));
            let to = |at: usize| row(0, at, ids[at], self.height, self.padding);
            scatter::scatter((d, out), [self.height, ids.len(), width], to, scratch)?;
        });
        Ok(())
    }
}

/// From row numbers and gradient: just those rows, as often as they were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingRows {
    pub height: usize,
    pub padding: Option<i64>,
}

impl Operator for EmbeddingRows {
    fn name(&self) -> &'static str {
        "embedding_rows"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        Ok(vec![Sig { form: Storage::Rows { height: self.height }, ..looked_up(inputs)? }])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let ids = call.input::<i64>(0);
        real!(call.dtype(1), T => {
            let d = call.input::<T>(1);
            let (rows, values) = call.rows_out::<T>(0);
            values.copy_from_slice(d);
            for (at, (r, &id)) in rows.iter_mut().zip(ids).enumerate() {
                *r = row(0, at, id, self.height, self.padding)?.map_or(-1, |r| r as i64);
            }
        });
        Ok(())
    }
}
