//! Values that are known while a model is imported: constants, and what is computed from shapes.

use super::error::Fault;
use crate::{
    exec::Tensor,
    ir::{Dim, Shape},
};
use phalanx_core::DType;

/// The most elements that are computed with here. Shapes have few; what is larger is data.
pub const MOST: usize = 1024;

/// A number, or a multiple of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int {
    Fixed(i64),
    Batch(i64),
}

impl Int {
    pub fn of(dim: Dim) -> Int {
        match dim {
            Dim::Fixed(n) => Int::Fixed(n as i64),
            Dim::Batch(n) => Int::Batch(n as i64),
            Dim::BatchPlus(..) => unreachable!("only gradients have it, and they are not imported"),
        }
    }

    /// As a dimension.
    pub fn dim(self) -> Option<Dim> {
        match self {
            Int::Fixed(n) => usize::try_from(n).ok().filter(|&n| n > 0).map(Dim::Fixed),
            Int::Batch(n) => usize::try_from(n).ok().filter(|&n| n > 0).map(Dim::Batch),
        }
    }

    pub fn plus(self, other: Int) -> Option<Int> {
        match (self, other) {
            (Int::Fixed(a), Int::Fixed(b)) => a.checked_add(b).map(Int::Fixed),
            (Int::Batch(a), Int::Batch(b)) => a.checked_add(b).map(Int::Batch),
            (a, Int::Fixed(0)) | (Int::Fixed(0), a) => Some(a),
            _ => None,
        }
    }

    pub fn times(self, other: Int) -> Option<Int> {
        match (self, other) {
            (Int::Fixed(a), Int::Fixed(b)) => a.checked_mul(b).map(Int::Fixed),
            (Int::Batch(a), Int::Fixed(b)) | (Int::Fixed(b), Int::Batch(a)) => {
                a.checked_mul(b).map(Int::Batch)
            }
            _ => None,
        }
    }

    /// Rounded towards zero, as ONNX does; a part of the batch must come out even.
    pub fn over(self, other: Int) -> Option<Int> {
        match (self, other) {
            (Int::Fixed(a), Int::Fixed(b)) => a.checked_div(b).map(Int::Fixed),
            (Int::Batch(a), Int::Fixed(b)) if a.checked_rem(b)? == 0 => a.checked_div(b).map(Int::Batch),
            (Int::Batch(a), Int::Batch(b)) if a.checked_rem(b)? == 0 => a.checked_div(b).map(Int::Fixed),
            _ => None,
        }
    }

    pub fn fixed(self) -> Option<i64> {
        match self {
            Int::Fixed(n) => Some(n),
            Int::Batch(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum ConstantData {
    /// Integers and booleans.
    Ints(Vec<Int>),
    Reals(Vec<f64>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    pub dtype: DType,
    pub dims: Vec<usize>,
    pub data: ConstantData,
}

impl Known {
    /// A list of integers.
    pub fn list(ints: Vec<Int>) -> Known {
        Known { dtype: DType::I64, dims: vec![ints.len()], data: ConstantData::Ints(ints) }
    }

    pub fn reals(dtype: DType, dims: Vec<usize>, data: Vec<f64>) -> Known {
        Known { dtype, dims, data: ConstantData::Reals(data) }
    }

    pub fn len(&self) -> usize {
        match &self.data {
            ConstantData::Ints(all) => all.len(),
            ConstantData::Reals(all) => all.len(),
        }
    }

    pub fn ints(&self) -> Option<&[Int]> {
        match &self.data {
            ConstantData::Ints(all) => Some(all),
            ConstantData::Reals(_) => None,
        }
    }

    /// Integers that do not depend on the batch.
    pub fn fixed(&self) -> Option<Vec<i64>> {
        self.ints()?.iter().map(|i| i.fixed()).collect()
    }

    /// Its elements as wide numbers.
    pub fn wide(&self) -> Option<Vec<f64>> {
        match &self.data {
            ConstantData::Reals(all) => Some(all.clone()),
            ConstantData::Ints(_) => Some(self.fixed()?.into_iter().map(|v| v as f64).collect()),
        }
    }

    /// Its only element.
    pub fn scalar(&self) -> Option<f64> {
        match self.wide()?.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The value that every element has.
    pub fn everywhere(&self) -> Option<f64> {
        let all = self.wide()?;
        let first = *all.first()?;
        all.iter().all(|v| v.to_bits() == first.to_bits()).then_some(first)
    }

    pub fn shape(&self) -> Shape {
        Shape::from(&self.dims[..])
    }

    /// As a tensor for the store.
    pub fn tensor(&self, slot: usize) -> Result<Tensor, Fault> {
        let wide = self.wide().ok_or(Fault::Batch("a list of sizes as data"))?;
        let made = match self.dtype {
            DType::F32 => Tensor::new(&self.dims, &wide.iter().map(|&v| v as f32).collect::<Vec<_>>()),
            DType::F64 => Tensor::new(&self.dims, &wide),
            DType::I64 => Tensor::new(&self.dims, &self.fixed().unwrap_or_default()),
            got => return Err(Fault::dtype(slot, "f32, f64 or i64", got)),
        };
        made.map_err(|_| Fault::Input {
            slot,
            wanted: "as many values as it has places",
            got: self.shape().to_string(),
        })
    }
}
