//! Values that go in and come out.

use bytemuck::Pod;
use phalanx_core::{DType, Element};

/// A dense tensor outside of any program.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    /// Whole words, so that elements of every type are aligned.
    words: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TensorError {
    #[error("{dims:?} needs {wanted} elements, got {got}")]
    Length { dims: Vec<usize>, wanted: usize, got: usize },
    #[error("holds {got}, asked for {wanted}")]
    DType { wanted: DType, got: DType },
}

impl Tensor {
    pub fn new<T: Element + Pod>(dims: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        let wanted = dims.iter().product();
        if wanted != data.len() {
            return Err(TensorError::Length { dims: dims.to_vec(), wanted, got: data.len() });
        }
        let mut tensor = Tensor::zeros(T::DTYPE, dims);
        tensor.bytes_mut().copy_from_slice(bytemuck::cast_slice(data));
        Ok(tensor)
    }

    pub fn of_booleans(dims: &[usize], data: &[bool]) -> Result<Tensor, TensorError> {
        let bytes: Vec<u8> = data.iter().map(|&b| u8::from(b)).collect();
        Ok(Tensor { dtype: DType::Bool, ..Tensor::new(dims, &bytes)? })
    }

    pub fn scalar<T: Element + Pod>(value: T) -> Tensor {
        Tensor::new(&[], &[value]).expect("one element is what a scalar has")
    }

    pub fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
        let bytes = dims.iter().product::<usize>() * dtype.size();
        Tensor { dtype, dims: dims.to_vec(), words: vec![0; bytes.div_ceil(8)] }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn n_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.n_bytes()]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.n_bytes();
        &mut bytemuck::cast_slice_mut(&mut self.words)[..n]
    }

    /// Its elements, row after row.
    pub fn data<T: Element + Pod>(&self) -> Result<&[T], TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::DType { wanted: T::DTYPE, got: self.dtype });
        }
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements as wide numbers, whatever their type.
    pub fn to_f64(&self) -> Vec<f64> {
        match self.dtype {
            DType::F32 => {
                bytemuck::cast_slice::<u8, f32>(self.bytes()).iter().map(|&v| f64::from(v)).collect()
            }
            DType::F64 => bytemuck::cast_slice::<u8, f64>(self.bytes()).to_vec(),
            DType::I64 => bytemuck::cast_slice::<u8, i64>(self.bytes()).iter().map(|&v| v as f64).collect(),
            DType::I32 => {
                bytemuck::cast_slice::<u8, i32>(self.bytes()).iter().map(|&v| f64::from(v)).collect()
            }
            _ => self.bytes().iter().map(|&v| f64::from(v)).collect(),
        }
    }

    /// Makes it a tensor of this type and these dimensions; keeps its memory where that suffices.
    pub(crate) fn reform(&mut self, dtype: DType, dims: &[usize]) {
        if self.dtype == dtype && self.dims == dims {
            return;
        }
        *self = Tensor::zeros(dtype, dims);
    }
}
