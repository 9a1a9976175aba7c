//! Losses of classes.

use super::{
    super::{error::Fault, import::Import, node::OnnxNode},
    norm::classes_last,
};
use crate::{
    ir::{Role, Shape, VarId},
    op::{
        Arith, Binary, Cast, Compare, Comparison, Fill, Func, OneHot, Reduce, Reduction, Softmax,
        SoftmaxCrossEntropy, Unary,
    },
};
use phalanx_core::DType;

pub fn cross_entropy<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (scores, labels) = operands(im, node)?;
    let by_class = classes_last(im, node, scores)?;
    let losses = softmax_loss(im, node, by_class, labels)?;
    reduced(im, node, losses, labels)?;
    if node.proto.outputs.get(1).is_some_and(|o| im.read.contains(&o[..])) {
        if by_class != scores {
            return Err(Fault::OutputUsed { slot: 1 });
        }
        im.give(node, 1, Softmax { log: true }, &[scores])?;
    }
    Ok(())
}

pub fn likelihood<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (logs, labels) = operands(im, node)?;
    im.only(node, 1)?;
    let rank = im.program.sig(logs).shape.rank();
    let losses = match im.scores.get(&logs).copied().filter(|_| rank <= 2) {
        // Logarithm and loss in one are exact where the logarithm alone is not.
        Some(scores) => softmax_loss(im, node, scores, labels)?,
        None => picked(im, node, logs, labels)?,
    };
    reduced(im, node, losses, labels)
}

fn operands<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(VarId, VarId), Fault> {
    if im.has(node, 2) {
        return Err(Fault::Input {
            slot: 2,
            wanted: "no weights of classes",
            got: node.proto.inputs[2].clone(),
        });
    }
    let (x, labels) = (im.var(node, 0)?, im.var(node, 1)?);
    if im.program.sig(x).shape.rank() < 2 {
        return Err(Fault::input(0, "[n, classes, ...]", im.program.sig(x)));
    }
    Ok((x, labels))
}

fn ignored(node: &OnnxNode<'_>) -> Result<Option<i64>, Fault> {
    if node.has("ignore_index") { node.int("ignore_index", 0).map(Some) } else { Ok(None) }
}

fn softmax_loss<'a>(
    im: &mut Import<'a>,
    node: &OnnxNode<'a>,
    scores: VarId,
    labels: VarId,
) -> Result<VarId, Fault> {
    im.emit(node, SoftmaxCrossEntropy { ignored: ignored(node)? }, &[scores, labels])
}

/// Minus the logarithm of each label's class.
fn picked<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, logs: VarId, labels: VarId) -> Result<VarId, Fault> {
    let logs = classes_last(im, node, logs)?;
    let sig = im.program.sig(logs).clone();
    let last = sig.shape.rank() - 1;
    let Some(depth) = sig.shape.dims()[last].fixed() else {
        return Err(Fault::input(0, "a fixed number of classes", &sig));
    };
    let hot = im.emit(node, OneHot { depth, dtype: sig.dtype }, &[labels])?;
    let chosen = im.emit(node, Binary::same(Arith::Mul), &[logs, hot])?;
    let sum = im.emit(node, Reduce { op: Reduction::Sum, axes: vec![last], keep: false }, &[chosen])?;
    im.emit(node, Unary(Func::Scale { a: -1.0, b: 0.0 }), &[sum])
}

fn reduced<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, losses: VarId, labels: VarId) -> Result<(), Fault> {
    let all = |op| Reduce { op, axes: Vec::new(), keep: false };
    match (node.text("reduction", "mean")?, ignored(node)?) {
        ("none", _) => im.give(node, 0, Unary(Func::Scale { a: 1.0, b: 0.0 }), &[losses]).map(drop),
        ("sum", _) => im.give(node, 0, all(Reduction::Sum), &[losses]).map(drop),
        ("mean", None) => im.give(node, 0, all(Reduction::Mean), &[losses]).map(drop),
        ("mean", Some(ignored)) => {
            // The mean is over labels that count.
            let dtype = im.program.sig(losses).dtype;
            let fill = Fill { dtype: DType::I64, shape: Shape::scalar(), value: ignored as f64 };
            let name = format!("{}.ignored", super::super::node::name(node.proto));
            let value = im.program.append(fill, &[], &name, Role::Forward, node.site.clone())?[0];
            let skipped = im.emit(node, Compare { op: Comparison::Equal, axis: 0 }, &[labels, value])?;
            let skipped = im.emit(node, Cast { to: dtype }, &[skipped])?;
            let counted = im.emit(node, Unary(Func::Scale { a: -1.0, b: 1.0 }), &[skipped])?;
            let count = im.emit(node, all(Reduction::Sum), &[counted])?;
            let total = im.emit(node, all(Reduction::Sum), &[losses])?;
            im.give(node, 0, Binary::same(Arith::Div), &[total, count]).map(drop)
        }
        (got, _) => {
            let got = got.chars().take(32).collect();
            Err(Fault::Attribute { name: "reduction", wanted: "none, sum or mean", got })
        }
    }
}
