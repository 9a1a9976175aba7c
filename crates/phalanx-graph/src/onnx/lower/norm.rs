//! Normalisation, softmax, dropout.

use super::super::{
    error::Fault,
    import::{Import, Norms, Value},
    node::OnnxNode,
    shapes,
};
use crate::{
    ir::{Role, Shape, VarId, VarKind},
    op::{BatchNorm, BatchNormFixed, Dropout, Fill, LayerNorm, Samples, Softmax, Transpose},
};

pub fn batch<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (epsilon, momentum) = (node.float("epsilon", 1e-5)?, node.float("momentum", 0.9)?);
    let training = node.flag("training_mode", false)?;
    let (x, scale, shift) = (im.var(node, 0)?, im.var(node, 1)?, im.var(node, 2)?);
    if !training {
        match im.options.norms {
            Norms::Strict => return Err(Fault::FixedNorm),
            Norms::AsWritten => {
                im.only(node, 1)?;
                // They may be anything: nothing is written to them.
                let mean = im.statistics(node, 3).or_else(|_| im.var(node, 3))?;
                let var = im.statistics(node, 4).or_else(|_| im.var(node, 4))?;
                let op = BatchNormFixed { epsilon };
                return im.give(node, 0, op, &[x, scale, shift, mean, var]).map(drop);
            }
            Norms::Learn => {}
        }
    }
    let (mean, var) = (im.statistics(node, 3)?, im.statistics(node, 4)?);
    let name = node.proto.outputs.first().filter(|o| !o.is_empty()).ok_or(Fault::NoOutput)?.clone();
    let (sig, each) = (im.program.sig(x).clone(), im.program.sig(scale).clone());
    let mut temp = |name: &str, sig| {
        let name = im.program.fresh(name);
        im.program.declare(&name, sig, VarKind::Temp, node.site.clone())
    };
    let y = temp(&name, sig)?;
    let batch_mean = temp(&format!("{name}.batch_mean"), each.clone())?;
    let batch_inv = temp(&format!("{name}.batch_inv"), each)?;
    let (inputs, outputs) = ([x, scale, shift, mean, var], [y, mean, var, batch_mean, batch_inv]);
    let op = BatchNorm { epsilon, momentum };
    im.program.append_to(op, &inputs, &outputs, Role::Forward, node.site.clone())?;
    im.only(node, 3)?;
    for (slot, var) in [y, mean, var].into_iter().enumerate() {
        if node.proto.outputs.get(slot).is_some_and(|o| !o.is_empty()) {
            im.bind(node, slot, Value::Var(var))?;
        }
    }
    Ok(())
}

pub fn layer<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    im.only(node, 1)?;
    let (x, scale) = (im.var(node, 0)?, im.var(node, 1)?);
    let axis = shapes::axis(node.int("axis", -1)?, im.program.sig(x).shape.rank(), "axis")?;
    let shift = match im.has(node, 2) {
        true => im.var(node, 2)?,
        false => {
            let sig = im.program.sig(scale).clone();
            im.emit(node, Fill { dtype: sig.dtype, shape: sig.shape, value: 0.0 }, &[])?
        }
    };
    let op = LayerNorm { axis, epsilon: node.float("epsilon", 1e-5)? };
    im.give(node, 0, op, &[x, scale, shift]).map(drop)
}

pub fn softmax<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    along(im, node, x, false).map(drop)
}

pub fn log_softmax<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    let (y, is_last) = along(im, node, x, true)?;
    if is_last {
        im.scores.insert(y, x);
    }
    Ok(())
}

/// Softmax along the axis of the node, and whether that is the last one.
fn along<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, x: VarId, log: bool) -> Result<(VarId, bool), Fault> {
    let rank = im.program.sig(x).shape.rank();
    let axis = shapes::axis(node.int("axis", -1)?, rank, "axis")?;
    if axis + 1 == rank {
        return Ok((im.give(node, 0, Softmax { log }, &[x])?, true));
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(axis, rank - 1);
    let last = im.emit(node, Transpose { order: order.clone() }, &[x])?;
    let y = im.emit(node, Softmax { log }, &[last])?;
    Ok((im.give(node, 0, Transpose { order }, &[y])?, false))
}

pub fn dropout<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    im.only(node, 1)?;
    let number = |slot, default| match im.has(node, slot) {
        false => Ok(default),
        true => im.setting(node, slot)?.scalar().ok_or(Fault::NotConstant { slot }),
    };
    let (probability, training) = (number(1, 0.5)?, number(2, 0.0)?);
    if training == 0.0 || probability == 0.0 {
        return im.alias(node, 0);
    }
    let x = im.var(node, 0)?;
    let stream = im.program.n_streams;
    im.program.n_streams += 1;
    let samples = Samples::of(&im.program.sig(x).shape);
    im.give(node, 0, Dropout { probability, stream, samples }, &[x]).map(drop)
}

/// Brings axis 1, where ONNX has classes, to the end.
pub fn classes_last<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, x: VarId) -> Result<VarId, Fault> {
    let rank = Shape::rank(&im.program.sig(x).shape);
    if rank <= 2 {
        return Ok(x);
    }
    let mut order: Vec<usize> = (0..rank).filter(|&i| i != 1).collect();
    order.push(1);
    im.emit(node, Transpose { order }, &[x])
}
