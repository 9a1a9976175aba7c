//! Matrix products.

use super::super::{error::Fault, import::Import, node::OnnxNode, shapes};
use crate::{
    ir::{Dim, Shape, VarId},
    op::{Arith, Binary, Expand, Func, MatMul, Unary},
};

/// `alpha a b + beta c`
pub fn gemm<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let op = MatMul { trans_a: node.flag("transA", false)?, trans_b: node.flag("transB", false)? };
    let (alpha, beta) = (node.float("alpha", 1.0)?, node.float("beta", 1.0)?);
    let operands = [im.var(node, 0)?, im.var(node, 1)?];
    let has_c = im.has(node, 2) && beta != 0.0;
    if !has_c && alpha == 1.0 {
        return im.give(node, 0, op, &operands).map(drop);
    }
    let product = im.emit(node, op, &operands)?;
    let scale = |factor| Unary(Func::Scale { a: factor, b: 0.0 });
    if !has_c {
        return im.give(node, 0, scale(alpha), &[product]).map(drop);
    }
    let product = if alpha == 1.0 { product } else { im.emit(node, scale(alpha), &[product])? };
    let c = im.var(node, 2)?;
    let c = if beta == 1.0 { c } else { im.emit(node, scale(beta), &[c])? };
    let axis = 2usize.saturating_sub(im.program.sig(c).shape.rank());
    im.give(node, 0, Binary { op: Arith::Add, axis }, &[product, c]).map(drop)
}

pub fn matmul<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (a, b) = (im.var(node, 0)?, im.var(node, 1)?);
    let (sa, sb) = (im.program.sig(a).shape.clone(), im.program.sig(b).shape.clone());
    for (slot, var, shape) in [(0, a, &sa), (1, b, &sb)] {
        if shape.rank() < 2 {
            return Err(Fault::input(slot, "at least two dimensions", im.program.sig(var)));
        }
    }
    let (outer_a, outer_b) = (&sa.dims()[..sa.rank() - 2], &sb.dims()[..sb.rank() - 2]);
    let (mut left, mut right) = (a, b);
    if !outer_b.is_empty() {
        let outer =
            shapes::stretched(outer_a, outer_b).ok_or(Fault::Pair { a: sa.clone(), b: sb.clone() })?;
        left = widened(im, node, a, &outer)?;
        right = widened(im, node, b, &outer)?;
    }
    im.give(node, 0, MatMul { trans_a: false, trans_b: false }, &[left, right]).map(drop)
}

/// A stack of matrices, repeated where the other operand has more of them.
fn widened<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, x: VarId, outer: &[Dim]) -> Result<VarId, Fault> {
    let own = im.program.sig(x).shape.clone();
    let (head, tail) = own.dims().split_at(own.rank() - 2);
    if head == outer {
        return Ok(x);
    }
    let shape = Shape([outer, tail].concat());
    let axis = shape.rank() - own.rank();
    im.emit(node, Expand { shape, axis }, &[x])
}
