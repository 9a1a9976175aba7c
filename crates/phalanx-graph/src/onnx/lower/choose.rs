//! Comparisons, choices, running sums, and functions of one element that are made of several.

use super::{
    super::{error::Fault, import::Import, node::OnnxNode, shapes},
    arith,
};
use crate::{
    ir::{Dim, Shape, VarId},
    op::{Arith, Binary, Compare, Comparison, CumSum, Expand, Fill, Func, Logical, Unary, Where},
};
use phalanx_core::DType;

pub fn compare<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let op = match node.op() {
        "Equal" => Comparison::Equal,
        "Greater" => Comparison::Greater,
        "GreaterOrEqual" => Comparison::GreaterEqual,
        "Less" => Comparison::Less,
        _ => Comparison::LessEqual,
    };
    let (a, b) = (im.var(node, 0)?, im.var(node, 1)?);
    let (a, b, axis) = arith::fitted(im, node, a, b)?;
    im.give(node, 0, Compare { op, axis }, &[a, b]).map(drop)
}

pub fn select<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let given = [im.var(node, 0)?, im.var(node, 1)?, im.var(node, 2)?];
    let mut dims = Vec::new();
    for var in given {
        let shape = im.program.sig(var).shape.clone();
        dims = shapes::stretched(&dims, shape.dims())
            .ok_or_else(|| Fault::Pair { a: Shape(dims.clone()), b: shape.clone() })?;
    }
    let shape = Shape(dims);
    let mut wide: Vec<VarId> = Vec::with_capacity(given.len());
    for var in given {
        let own = im.program.sig(var).shape.clone();
        let axis = shape.rank() - own.rank();
        let expand = Expand { shape: shape.clone(), axis };
        wide.push(if own == shape { var } else { im.emit(node, expand, &[var])? });
    }
    im.give(node, 0, Where, &wide).map(drop)
}

pub fn running_sum<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let axis = im.setting(node, 1)?.scalar().ok_or(Fault::NotConstant { slot: 1 })?;
    let x = im.var(node, 0)?;
    let axis = shapes::axis(axis as i64, im.program.sig(x).shape.rank(), "axis")?;
    let (exclusive, reverse) = (node.flag("exclusive", false)?, node.flag("reverse", false)?);
    im.give(node, 0, CumSum { axis, exclusive, reverse }, &[x]).map(drop)
}

/// The upper or the lower triangle of the last two axes; zeros, or false, elsewhere.
pub fn triangle<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let upper = node.flag("upper", true)?;
    let k = match im.has(node, 1) {
        true => im.setting(node, 1)?.scalar().ok_or(Fault::NotConstant { slot: 1 })?,
        false => 0.0,
    };
    let x = im.var(node, 0)?;
    let sig = im.program.sig(x).clone();
    let [.., Dim::Fixed(rows), Dim::Fixed(columns)] = sig.shape.dims()[..] else {
        let got = sig.shape.to_string();
        return Err(Fault::Input { slot: 0, wanted: "two last axes of fixed sizes", got });
    };
    let square = Shape::from([rows, columns]);
    let ones = im.emit(node, Fill { dtype: DType::F64, shape: square, value: 1.0 }, &[])?;
    let mut numbers = |axis| im.emit(node, CumSum { axis, exclusive: true, reverse: false }, &[ones]);
    let (row, column) = (numbers(0)?, numbers(1)?);
    let edge = im.emit(node, Unary(Func::Scale { a: 1.0, b: k }), &[row])?;
    let op = if upper { Comparison::GreaterEqual } else { Comparison::LessEqual };
    let mut inside = im.emit(node, Compare { op, axis: 0 }, &[column, edge])?;
    if sig.shape.rank() > 2 {
        let axis = sig.shape.rank() - 2;
        inside = im.emit(node, Expand { shape: sig.shape.clone(), axis }, &[inside])?;
    }
    match sig.dtype {
        DType::Bool => im.give(node, 0, Logical::And, &[x, inside]).map(drop),
        DType::F32 | DType::F64 => {
            let zeros = im.emit(node, Fill { dtype: sig.dtype, shape: sig.shape, value: 0.0 }, &[])?;
            im.give(node, 0, Where, &[inside, x, zeros]).map(drop)
        }
        got => Err(Fault::dtype(0, "f32, f64 or bool", got)),
    }
}

pub fn prelu<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (x, slope) = (im.var(node, 0)?, im.var(node, 1)?);
    let above = im.emit(node, Unary(Func::Relu), &[x])?;
    let minus = im.emit(node, Unary(Func::Scale { a: -1.0, b: 0.0 }), &[x])?;
    let below = im.emit(node, Unary(Func::Relu), &[minus])?;
    let (below, slope, axis) = arith::fitted(im, node, below, slope)?;
    let bent = im.emit(node, Binary { op: Arith::Mul, axis }, &[below, slope])?;
    im.give(node, 0, Binary::same(Arith::Sub), &[above, bent]).map(drop)
}

pub fn hard_swish<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    let line = im.emit(node, Unary(Func::Scale { a: 1.0 / 6.0, b: 0.5 }), &[x])?;
    let part = im.emit(node, Unary(Func::Clip { low: 0.0, high: 1.0 }), &[line])?;
    im.give(node, 0, Binary::same(Arith::Mul), &[x, part]).map(drop)
}
