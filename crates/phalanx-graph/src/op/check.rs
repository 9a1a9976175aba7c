//! Short words for shape rules.

use crate::ir::{Dim, Misfit, Shape, Sig};
use phalanx_core::DType;

pub fn count(inputs: &[Sig], wanted: usize) -> Result<(), Misfit> {
    if inputs.len() == wanted { Ok(()) } else { Err(Misfit::Count { wanted, got: inputs.len() }) }
}

/// Dense and one of the floating-point types that kernels compute in.
pub fn real(inputs: &[Sig], slot: usize) -> Result<&Sig, Misfit> {
    let sig = dense(inputs, slot)?;
    match sig.dtype {
        DType::F32 | DType::F64 => Ok(sig),
        got => Err(Misfit::DType { slot, wanted: "f32 or f64", got }),
    }
}

pub fn dense(inputs: &[Sig], slot: usize) -> Result<&Sig, Misfit> {
    let sig = &inputs[slot];
    if sig.is_dense() { Ok(sig) } else { Err(Misfit::Sparse { slot }) }
}

/// Dense integers that name something.
pub fn index(inputs: &[Sig], slot: usize) -> Result<&Sig, Misfit> {
    let sig = dense(inputs, slot)?;
    if sig.dtype == DType::I64 { Ok(sig) } else { Err(Misfit::DType { slot, wanted: "i64", got: sig.dtype }) }
}

/// The same element type, shape and form as another input.
pub fn like(inputs: &[Sig], slot: usize, of: usize) -> Result<(), Misfit> {
    let (a, b) = (&inputs[of], &inputs[slot]);
    if !b.is_dense() {
        return Err(Misfit::Sparse { slot });
    }
    if a.dtype != b.dtype {
        return Err(Misfit::DType { slot, wanted: a.dtype.name(), got: b.dtype });
    }
    if a.shape != b.shape {
        return Err(Misfit::Pair { a: a.shape.clone(), b: b.shape.clone() });
    }
    Ok(())
}

/// Dense, of this element type and shape.
pub fn shaped(inputs: &[Sig], slot: usize, dtype: DType, shape: &Shape) -> Result<(), Misfit> {
    let got = dense(inputs, slot)?;
    if got.dtype != dtype {
        return Err(Misfit::DType { slot, wanted: dtype.name(), got: got.dtype });
    }
    if got.shape != *shape {
        return Err(Misfit::Pair { a: shape.clone(), b: got.shape.clone() });
    }
    Ok(())
}

/// One element of this type, whatever its rank.
pub fn scalar(inputs: &[Sig], slot: usize, dtype: DType) -> Result<(), Misfit> {
    let got = dense(inputs, slot)?;
    if got.dtype != dtype {
        return Err(Misfit::DType { slot, wanted: dtype.name(), got: got.dtype });
    }
    if got.shape.volume() != Some(Dim::Fixed(1)) {
        return Err(Misfit::Rank { slot, wanted: "no or only trivial", got: got.shape.clone() });
    }
    Ok(())
}

pub fn rank(inputs: &[Sig], slot: usize, n: usize, wanted: &'static str) -> Result<(), Misfit> {
    if inputs[slot].shape.rank() == n {
        Ok(())
    } else {
        Err(Misfit::Rank { slot, wanted, got: inputs[slot].shape.clone() })
    }
}

pub fn axis(axis: usize, rank: usize, name: &'static str) -> Result<(), Misfit> {
    if axis < rank {
        Ok(())
    } else {
        Err(Misfit::Attribute { name, wanted: "an axis of the input", got: axis.to_string() })
    }
}

/// The size of a dimension that must not depend on the batch.
pub fn fixed(inputs: &[Sig], slot: usize, axis: usize) -> Result<usize, Misfit> {
    inputs[slot].shape.dims()[axis].fixed().ok_or(Misfit::Symbolic { slot, axis })
}

/// A tensor seen as `outer x n x inner` around an axis.
pub fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}
