//! Constants, and the same elements under another shape, type or order.

use super::super::{
    constants::{ConstantData, Int, Known, MOST},
    error::Fault,
    fold,
    import::{Import, Value},
    node::OnnxNode,
    shapes, tensor,
};
use crate::{
    ir::{Dim, Shape},
    op::{Cast, Expand, Fill, Reshape, Transpose},
};
use phalanx_core::DType;

pub fn identity<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    im.alias(node, 0)
}

/// How many numbers a constant has that is written as a list.
fn list_length(node: &OnnxNode<'_>) -> Option<usize> {
    node.ints("value_ints").map(|l| l.len()).or_else(|| node.floats("value_floats").map(|l| l.len()))
}

pub fn constant<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    if let Some(tensor) = node.tensor("value")? {
        let value = tensor.known().map_or_else(|| Value::Constant(tensor.clone()), Value::Known);
        return im.bind(node, 0, value);
    }
    let known = if node.has("value_int") {
        let one = Int::Fixed(node.int("value_int", 0)?);
        Known { dtype: DType::I64, dims: vec![], data: ConstantData::Ints(vec![one]) }
    } else if node.has("value_float") {
        Known::reals(DType::F32, vec![], vec![node.float("value_float", 0.0)?])
    } else if let Some(n) = list_length(node).filter(|&n| n > MOST) {
        // Lists are copied wherever shapes are worked out (ONNX-1); data comes as tensors.
        return Err(Fault::Attribute { name: "value", wanted: "at most 1024 numbers", got: n.to_string() });
    } else if let Some(ints) = node.ints("value_ints") {
        Known::list(ints.iter().map(|&i| Int::Fixed(i)).collect())
    } else if let Some(floats) = node.floats("value_floats") {
        Known::reals(DType::F32, vec![floats.len()], floats.iter().map(|&v| f64::from(v)).collect())
    } else {
        return Err(Fault::Attribute { name: "value", wanted: "numbers", got: "none".into() });
    };
    im.bind(node, 0, Value::Known(known))
}

/// One value everywhere, also in a shape that depends on the batch.
pub fn filled<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = target(im, node, 0)?;
    let (dtype, value) = match node.tensor("value")?.map(|t| t.known()) {
        None => (DType::F32, Some(0.0)),
        Some(known) => (known.as_ref().map_or(DType::F32, |k| k.dtype), known.and_then(|k| k.scalar())),
    };
    let Some(value) = value.filter(|v| v.is_finite()) else {
        return Err(Fault::Attribute { name: "value", wanted: "one finite number", got: "another".into() });
    };
    im.give(node, 0, Fill { dtype, shape, value }, &[]).map(drop)
}

/// A shape that is known.
fn target<'a>(im: &Import<'a>, node: &OnnxNode<'a>, slot: usize) -> Result<Shape, Fault> {
    let known = im.setting(node, slot)?;
    let dims: Option<Vec<Dim>> = known.ints().and_then(|all| all.iter().map(|i| i.dim()).collect());
    dims.map(Shape).ok_or_else(|| Fault::Input {
        slot,
        wanted: "sizes of at least 1",
        got: format!("{:?}", known.fixed()),
    })
}

pub fn shape<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    let rank = shape.rank();
    let (start, end) = (node.int("start", 0)?, node.int("end", i64::MAX)?);
    let dims = match shapes::range(start, end, rank) {
        Some((start, end)) => &shape.dims()[start..end],
        None => &[],
    };
    let known = Known::list(dims.iter().map(|&d| Int::of(d)).collect());
    im.bind(node, 0, Value::Known(known))
}

pub fn reshape<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let known = im.setting(node, 1)?;
    let Some(ints) = known.ints() else { return Err(Fault::dtype(1, "integers", known.dtype)) };
    let shape = shapes::reshaped(&im.shape(node, 0)?, ints, node.flag("allowzero", false)?)?;
    to(im, node, shape)
}

fn to<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, shape: Shape) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    im.give(node, 0, Reshape { shape }, &[x]).map(drop)
}

pub fn flatten<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    // One more than the last axis is allowed here.
    let axis = match node.int("axis", 1)? {
        axis if axis == shape.rank() as i64 => shape.rank(),
        axis => shapes::axis(axis, shape.rank(), "axis")?,
    };
    let (head, tail) = shape.dims().split_at(axis);
    let volume = |dims: &[Dim]| Shape(dims.to_vec()).volume().ok_or(Fault::Batch("a flattened shape"));
    let shape = Shape(vec![volume(head)?, volume(tail)?]);
    to(im, node, shape)
}

/// Axes from the second input, or in older versions from an attribute.
fn listed<'a>(im: &Import<'a>, node: &OnnxNode<'a>) -> Result<Option<Vec<i64>>, Fault> {
    match im.has(node, 1) {
        true => im.integers(node, 1).map(Some),
        false => Ok(node.ints("axes").map(<[i64]>::to_vec)),
    }
}

pub fn squeeze<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    let one = Dim::Fixed(1);
    let gone: Vec<usize> = match listed(im, node)? {
        Some(axes) => shapes::axes(&axes, shape.rank(), "axes")?,
        None => (0..shape.rank()).filter(|&i| shape.dims()[i] == one).collect(),
    };
    if gone.iter().any(|&i| shape.dims()[i] != one) {
        return Err(Fault::Input { slot: 0, wanted: "size 1 where it is squeezed", got: shape.to_string() });
    }
    let kept = shape.dims().iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, &d)| d);
    let shape = Shape(kept.collect());
    to(im, node, shape)
}

pub fn unsqueeze<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    let axes = listed(im, node)?.ok_or(Fault::Missing { slot: 1 })?;
    let new = shapes::axes(&axes, shape.rank() + axes.len().min(crate::ir::MAX_RANK), "axes")?;
    let mut dims = shape.0;
    // Ascending, so that each stands where it will stay.
    for axis in new {
        dims.insert(axis.min(dims.len()), Dim::Fixed(1));
    }
    to(im, node, Shape(dims))
}

pub fn transpose<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let rank = im.shape(node, 0)?.rank();
    let order: Vec<usize> = match node.ints("perm") {
        None => (0..rank).rev().collect(),
        Some(perm) => {
            let sorted = shapes::axes(perm, rank, "perm")?;
            if sorted.len() != rank {
                let got = format!("{perm:?}");
                return Err(Fault::Attribute { name: "perm", wanted: "every axis of the input once", got });
            }
            perm.iter().map(|&p| shapes::axis(p, rank, "perm")).collect::<Result<_, _>>()?
        }
    };
    let x = im.var(node, 0)?;
    im.give(node, 0, Transpose { order }, &[x]).map(drop)
}

pub fn expand<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (own, wanted) = (im.shape(node, 0)?, target(im, node, 1)?);
    let Some(dims) = shapes::stretched(own.dims(), wanted.dims()) else {
        return Err(Fault::Pair { a: own, b: wanted });
    };
    let axis = dims.len() - own.rank();
    let x = im.var(node, 0)?;
    im.give(node, 0, Expand { shape: Shape(dims), axis }, &[x]).map(drop)
}

pub fn cast<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let code = node.int("to", 0)?;
    let to = match i32::try_from(code).ok().and_then(tensor::dtype) {
        // The operations know one type of integers.
        Some(DType::I32) => DType::I64,
        Some(to) => to,
        None => {
            let wanted = "f32, f64, i64, i32, u8 or bool";
            return Err(Fault::Attribute { name: "to", wanted, got: code.to_string() });
        }
    };
    convert(im, node, to)
}

/// As the type of another input.
pub fn cast_like<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let to = im.dtype(node, 1)?;
    match im.known(node, 0).and_then(|known| fold::converted(&known, to)) {
        Some(known) => im.bind(node, 0, Value::Known(known)),
        None => convert(im, node, to),
    }
}

fn convert<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, to: DType) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    if im.program.sig(x).dtype == to {
        return im.alias(node, 0);
    }
    im.give(node, 0, Cast { to }, &[x]).map(drop)
}
