//! Functions of one element and arithmetic of two.

use super::super::{error::Fault, import::Import, node::OnnxNode, shapes};
use crate::{
    ir::{Shape, VarId},
    op::{Arith, Binary, Expand, Func, Unary},
};

pub fn map<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let func = match node.op() {
        "Abs" => Func::Abs,
        "Ceil" => Func::Ceil,
        "Cos" => Func::Cos,
        "Elu" => Func::Elu { alpha: node.float("alpha", 1.0)? },
        "Erf" => Func::Erf,
        "Exp" => Func::Exp,
        "Floor" => Func::Floor,
        "HardSigmoid" => hard_sigmoid(node)?,
        "LeakyRelu" => Func::LeakyRelu { slope: node.float("alpha", 0.01)? },
        "Log" => Func::Log,
        "Neg" => Func::Scale { a: -1.0, b: 0.0 },
        "Reciprocal" => Func::Reciprocal,
        "Relu" => Func::Relu,
        "Sigmoid" => Func::Sigmoid,
        "Sign" => Func::Sign,
        "Sin" => Func::Sin,
        "Softplus" => Func::Softplus,
        "Softsign" => Func::Softsign,
        "Sqrt" => Func::Sqrt,
        _ => Func::Tanh,
    };
    let x = im.var(node, 0)?;
    im.give(node, 0, Unary(func), &[x]).map(drop)
}

fn hard_sigmoid(node: &OnnxNode<'_>) -> Result<Func, Fault> {
    let (alpha, beta) = (node.float("alpha", 0.2)?, node.float("beta", 0.5)?);
    if (alpha - 0.2).abs() < 1e-6 && beta == 0.5 {
        return Ok(Func::HardSigmoid);
    }
    Err(Fault::Attribute { name: "alpha", wanted: "0.2, and `beta` 0.5", got: format!("{alpha}, {beta}") })
}

pub fn gelu<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    match node.text("approximate", "none")? {
        "none" => im.give(node, 0, Unary(Func::Gelu), &[x]).map(drop),
        "tanh" => {
            // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
            let mul = Binary::same(Arith::Mul);
            let square = im.emit(node, Unary(Func::Square), &[x])?;
            let k = libm::sqrt(std::f64::consts::FRAC_2_PI);
            let factor = im.emit(node, Unary(Func::Scale { a: k * 0.044715, b: k }), &[square])?;
            let inner = im.emit(node, mul, &[factor, x])?;
            let bent = im.emit(node, Unary(Func::Tanh), &[inner])?;
            let half = im.emit(node, Unary(Func::Scale { a: 0.5, b: 0.5 }), &[bent])?;
            im.give(node, 0, mul, &[half, x]).map(drop)
        }
        got => Err(Fault::Attribute { name: "approximate", wanted: "none or tanh", got: got.into() }),
    }
}

pub fn clip<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let bound = |slot, default| match im.has(node, slot) {
        false => Ok(default),
        true => im.setting(node, slot)?.scalar().ok_or(Fault::NotConstant { slot }),
    };
    let (low, high) = (bound(1, f64::MIN)?, bound(2, f64::MAX)?);
    let x = im.var(node, 0)?;
    im.give(node, 0, Unary(Func::Clip { low, high }), &[x]).map(drop)
}

pub fn pow<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let by = im.setting(node, 1)?.scalar().ok_or(Fault::NotConstant { slot: 1 })?;
    let func = match by {
        2.0 => Func::Square,
        0.5 => Func::Sqrt,
        by => Func::Pow { by },
    };
    let x = im.var(node, 0)?;
    im.give(node, 0, Unary(func), &[x]).map(drop)
}

pub fn add<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    fold(im, node, Arith::Add)
}

pub fn mul<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    fold(im, node, Arith::Mul)
}

pub fn max<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    fold(im, node, Arith::Max)
}

pub fn min<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    fold(im, node, Arith::Min)
}

pub fn sub<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    two(im, node, Arith::Sub)
}

pub fn div<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    two(im, node, Arith::Div)
}

/// Any number of operands, from the left.
fn fold<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, op: Arith) -> Result<(), Fault> {
    match node.proto.inputs.len() {
        0 => Err(Fault::Missing { slot: 0 }),
        1 => im.alias(node, 0),
        2 => two(im, node, op),
        n => {
            let mut all = im.var(node, 0)?;
            for slot in 1..n - 1 {
                let next = im.var(node, slot)?;
                let (a, b, axis) = fitted(im, node, all, next)?;
                all = im.emit(node, Binary { op, axis }, &[a, b])?;
            }
            let last = im.var(node, n - 1)?;
            finish(im, node, op, all, last)
        }
    }
}

fn two<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, op: Arith) -> Result<(), Fault> {
    // One number for all elements needs no operand.
    let number = |slot: usize, other: usize| {
        let known = im.known(node, slot).filter(|k| k.dtype.is_float())?;
        let is_small = known.dims.len() <= im.shape(node, other).ok()?.rank();
        known.scalar().filter(|_| is_small)
    };
    let scale = |a, b| Some(Func::Scale { a, b });
    let func = match (op, number(0, 1), number(1, 0)) {
        (Arith::Add, _, Some(b)) => scale(1.0, b).map(|f| (0, f)),
        (Arith::Add, Some(a), _) => scale(1.0, a).map(|f| (1, f)),
        (Arith::Sub, _, Some(b)) => scale(1.0, -b).map(|f| (0, f)),
        (Arith::Sub, Some(a), _) => scale(-1.0, a).map(|f| (1, f)),
        (Arith::Mul, _, Some(b)) => scale(b, 0.0).map(|f| (0, f)),
        (Arith::Mul, Some(a), _) => scale(a, 0.0).map(|f| (1, f)),
        (Arith::Div, _, Some(b)) if b != 0.0 => scale(1.0 / b, 0.0).map(|f| (0, f)),
        _ => None,
    };
    if let Some((slot, func)) = func {
        let x = im.var(node, slot)?;
        return im.give(node, 0, Unary(func), &[x]).map(drop);
    }
    let (a, b) = (im.var(node, 0)?, im.var(node, 1)?);
    finish(im, node, op, a, b)
}

fn finish<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, op: Arith, a: VarId, b: VarId) -> Result<(), Fault> {
    let commutes = !matches!(op, Arith::Sub | Arith::Div);
    let rank = |im: &Import<'_>, v| im.program.sig(v).shape.rank();
    // The second operand is the one that is stretched: the larger one goes first where that is allowed.
    let (a, b) = if commutes && rank(im, b) > rank(im, a) { (b, a) } else { (a, b) };
    let (a, b, axis) = fitted(im, node, a, b)?;
    im.give(node, 0, Binary { op, axis }, &[a, b]).map(drop)
}

/// Both operands so that the second can be stretched over the first, and at which axis it begins.
pub fn fitted<'a>(
    im: &mut Import<'a>,
    node: &OnnxNode<'a>,
    a: VarId,
    b: VarId,
) -> Result<(VarId, VarId, usize), Fault> {
    let (sa, sb) = (im.program.sig(a).shape.clone(), im.program.sig(b).shape.clone());
    let Some(dims) = shapes::stretched(sa.dims(), sb.dims()) else {
        return Err(Fault::Pair { a: sa, b: sb });
    };
    let (rank, shape) = (dims.len(), Shape(dims));
    let axis = rank - sb.rank();
    if shape == sa {
        return Ok((a, b, axis));
    }
    let wide = im.emit(node, Expand { shape, axis: rank - sa.rank() }, &[a])?;
    Ok((wide, b, axis))
}
