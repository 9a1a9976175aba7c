//! Sparse allreduce of rows and their indices. The rows of all ranks are gathered, then rows of the same index are added in rank order.

use super::{
    Engine, EngineError, EngineTensor, Handle, Request,
    error::Invalid,
    spec::{Form, Kind},
};
use phalanx_core::{DType, ReduceOp, kernel::ReduceKernel};

/// Rows of a larger tensor: `values[i]` belongs to row `indices[i]`.
#[derive(Debug)]
pub struct Sparse {
    /// i64, one dimension.
    pub indices: EngineTensor,
    /// As many rows as there are indices.
    pub values: EngineTensor,
}

/// A submitted sparse allreduce.
#[derive(Debug)]
pub struct SparseHandle {
    name: String,
    gathered: Handle,
    average_over: Option<u32>,
}

impl Engine {
    /// Sums or averages rows by index; the result has every index once, in ascending order.
    pub fn sparse_allreduce(
        &self,
        name: &str,
        sparse: Sparse,
        op: ReduceOp,
        set: u32,
    ) -> Result<SparseHandle, EngineError> {
        let invalid = |why| Err(EngineError::Invalid { name: name.to_string(), why });
        if !matches!(op, ReduceOp::Sum | ReduceOp::Average) {
            return invalid(Invalid::Sparse { op });
        }
        op.check(sparse.values.dtype(), 1.0, 1.0)?;
        let (indices, rows) = (sparse.indices.form().n_elements(), sparse.values.form().n_rows());
        if indices != rows || sparse.indices.dtype() != DType::I64 || sparse.values.shape().is_empty() {
            return invalid(Invalid::Indices { indices, rows });
        }
        let n = self.set(set)?.members.len() as u32;
        // One group: indices never come without their values.
        let request = Request::grouped_allgather(vec![sparse.indices, sparse.values]).name(name).set(set);
        debug_assert_eq!(request.kind, Kind::Allgather);
        let gathered = self.submit(request)?;
        let average_over = (op == ReduceOp::Average).then_some(n);
        Ok(SparseHandle { name: name.to_string(), gathered, average_over })
    }
}

impl SparseHandle {
    pub fn poll(&self) -> bool {
        self.gathered.poll()
    }

    pub fn wait(self) -> Result<Sparse, EngineError> {
        let mut tensors = self.gathered.wait()?.tensors.into_iter();
        let (Some(indices), Some(values)) = (tensors.next(), tensors.next()) else {
            return Err(EngineError::DuplicateName { name: self.name });
        };
        merge(&indices, &values, self.average_over)
    }
}

/// Adds rows with the same index, in the order in which they come.
fn merge(
    indices: &EngineTensor,
    values: &EngineTensor,
    average_over: Option<u32>,
) -> Result<Sparse, EngineError> {
    let list = indices.as_slice::<i64>().unwrap_or_default();
    let mut order: Vec<usize> = (0..list.len()).collect();
    order.sort_by_key(|i| list[*i]); // Stable: equal indices stay in rank order.
    let dtype = values.dtype();
    let row = values.form().row_elements() as usize * dtype.size();
    let mut unique: Vec<i64> = Vec::new();
    for &i in &order {
        if unique.last() != Some(&list[i]) {
            unique.push(list[i]);
        }
    }
    let shape = [&[unique.len() as u64], &values.shape()[1..]].concat();
    let mut merged = EngineTensor::zeros(dtype, shape);
    let sum = ReduceKernel::new(dtype, ReduceOp::Sum, 1.0, 1.0, 1)?;
    let divide = ReduceKernel::new(dtype, ReduceOp::Average, 1.0, 1.0, average_over.unwrap_or(1))?;
    let mut at = 0;
    let mut sources: Vec<&[u8]> = Vec::new();
    for (k, &i) in order.iter().enumerate() {
        sources.push(&values.bytes()[i * row..(i + 1) * row]);
        if order.get(k + 1).is_none_or(|next| list[*next] != list[i]) {
            let reduction = if average_over.is_some() { &divide } else { &sum };
            reduction.apply(&mut merged.bytes_mut()[at..at + row], &sources);
            at += row;
            sources.clear();
        }
    }
    let indices = EngineTensor::new(unique);
    debug_assert_eq!(*indices.form(), Form { dtype: DType::I64, shape: vec![indices.form().n_elements()] });
    Ok(Sparse { indices, values: merged })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_index_become_one_row() {
        let indices = EngineTensor::new(vec![7i64, 2, 7, 0]);
        let values =
            EngineTensor::shaped(vec![1.0f32, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5], vec![4, 2]).unwrap();
        let merged = merge(&indices, &values, None).unwrap();
        assert_eq!(merged.indices.into_vec::<i64>().unwrap(), [0, 2, 7]);
        assert_eq!(merged.values.shape(), [3, 2]);
        assert_eq!(merged.values.into_vec::<f32>().unwrap(), [4.0, 4.5, 2.0, 2.5, 4.0, 5.0]);
        let halved = merge(&indices, &values, Some(2)).unwrap();
        assert_eq!(halved.values.into_vec::<f32>().unwrap(), [2.0, 2.25, 1.0, 1.25, 2.0, 2.5]);
    }
}
