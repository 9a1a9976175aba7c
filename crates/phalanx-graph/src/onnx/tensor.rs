//! Tensors of a file: checked, then as values.

use super::{
    constants::{ConstantData, Int, Known, MOST},
    error::TensorFault,
    proto,
};
use crate::exec::{Tensor, TensorError};
use phalanx_core::DType;

/// No tensor of a file has more elements than this, whatever it says.
const MOST_ELEMENTS: usize = 1 << 31;

/// The element type of this number.
pub fn dtype(code: i32) -> Option<DType> {
    match code {
        1 => Some(DType::F32),
        2 => Some(DType::U8),
        6 => Some(DType::I32),
        7 => Some(DType::I64),
        9 => Some(DType::Bool),
        11 => Some(DType::F64),
        _ => None,
    }
}

/// What a tensor of a file is, after everything about it was found to fit together.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked<'a> {
    pub proto: &'a proto::TensorProto,
    pub dtype: DType,
    pub dims: Vec<usize>,
    pub n: usize,
}

impl<'a> Checked<'a> {
    pub fn new(proto: &'a proto::TensorProto) -> Result<Checked<'a>, TensorFault> {
        if proto.location != 0 {
            return Err(TensorFault::External);
        }
        let dtype = dtype(proto.dtype).ok_or(TensorFault::DType(proto.dtype))?;
        let bad = || TensorFault::Dims(proto.dims.iter().copied().take(16).collect());
        let dims: Vec<usize> = proto.dims.iter().filter_map(|&d| usize::try_from(d).ok()).collect();
        let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= MOST_ELEMENTS);
        // A list without elements is a shape; anything else without elements has no use.
        let no_zero = dims.iter().all(|&d| d > 0) || dims == [0];
        let n = n.filter(|_| dims.len() == proto.dims.len() && no_zero).ok_or_else(bad)?;
        let checked = Checked { proto, dtype, dims, n };
        let (wanted, got) = checked.lengths();
        if wanted == got { Ok(checked) } else { Err(TensorFault::Length { wanted, got }) }
    }

    /// How much data there should be and is.
    fn lengths(&self) -> (usize, usize) {
        if let Some(raw) = &self.proto.raw {
            return (self.n * self.dtype.size(), raw.len());
        }
        let got = match self.dtype {
            DType::F32 => self.proto.floats.len(),
            DType::F64 => self.proto.doubles.len(),
            DType::I64 => self.proto.int64s.len(),
            _ => self.proto.int32s.len(),
        };
        (self.n, got)
    }

    pub fn is_real(&self) -> bool {
        matches!(self.dtype, DType::F32 | DType::F64)
    }

    /// As a tensor for the store.
    pub fn tensor(&self) -> Result<Tensor, TensorFault> {
        let length = |e: TensorError| match e {
            TensorError::Length { wanted, got, .. } => TensorFault::Length { wanted, got },
            TensorError::DType { .. } => TensorFault::DType(self.proto.dtype),
        };
        let made = match (self.dtype, self.proto.raw.as_deref()) {
            (dtype @ (DType::F32 | DType::F64), Some(raw)) => Tensor::from_le_bytes(dtype, &self.dims, raw),
            (DType::F32, None) => Tensor::new(&self.dims, &self.proto.floats),
            (DType::F64, None) => Tensor::new(&self.dims, &self.proto.doubles),
            _ => Tensor::new(&self.dims, &self.integers()),
        };
        made.map_err(length)
    }

    /// As a value to compute with here, if it is small.
    pub fn known(&self) -> Option<Known> {
        if self.n > MOST {
            return None;
        }
        let data = match self.is_real() {
            true => ConstantData::Reals(self.tensor().ok()?.to_f64()),
            false => ConstantData::Ints(self.integers().into_iter().map(Int::Fixed).collect()),
        };
        // The operations know one type of integers.
        let dtype = if self.dtype == DType::I32 { DType::I64 } else { self.dtype };
        Some(Known { dtype, dims: self.dims.clone(), data })
    }

    fn integers(&self) -> Vec<i64> {
        let raw = self.proto.raw.as_deref();
        match (self.dtype, raw) {
            (DType::I64, Some(raw)) => elements(raw, i64::from_le_bytes),
            (DType::I64, None) => self.proto.int64s.clone(),
            (DType::I32, Some(raw)) => elements(raw, i32::from_le_bytes).into_iter().map(i64::from).collect(),
            (_, Some(raw)) => raw.iter().map(|&b| i64::from(b)).collect(),
            (_, None) => self.proto.int32s.iter().map(|&v| i64::from(v)).collect(),
        }
    }
}

/// Elements from their bytes, which lie wherever the file put them.
fn elements<T, const N: usize>(raw: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    raw.chunks_exact(N).map(|c| read(c.try_into().expect("chunks have exactly this length"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tensor_says_of_itself_must_be_so() {
        let right =
            proto::TensorProto { dims: vec![2], dtype: 1, raw: Some(vec![0; 8]), ..Default::default() };
        assert_eq!(Checked::new(&right).unwrap().tensor().unwrap().dims(), [2]);
        let fault = |t: proto::TensorProto| Checked::new(&t).unwrap_err();
        assert_eq!(fault(proto::TensorProto { location: 1, ..right.clone() }), TensorFault::External);
        assert_eq!(fault(proto::TensorProto { dtype: 8, ..right.clone() }), TensorFault::DType(8));
        let huge = proto::TensorProto { dims: vec![1 << 40, 1 << 40], ..right.clone() };
        assert!(matches!(fault(huge), TensorFault::Dims(_)), "ONNX-1");
        assert!(matches!(
            fault(proto::TensorProto { dims: vec![-2], ..right.clone() }),
            TensorFault::Dims(_)
        ));
        let long = proto::TensorProto { dims: vec![3], ..right };
        assert_eq!(fault(long), TensorFault::Length { wanted: 12, got: 8 });
    }
}
