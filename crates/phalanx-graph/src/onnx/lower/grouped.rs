//! Normalisation of groups of channels, and convolutions that make images larger.

use super::{
    super::{error::Fault, import::Import, node::OnnxNode},
    image,
};
use crate::{
    ir::{Dim, Shape, VarId},
    op::{Arith, Binary, Conv2d, Conv2dInputGrad, Fill, LayerNorm, Reshape},
};

pub fn conv_transpose<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    if node.has("output_shape") {
        return Err(Fault::Attribute { name: "output_shape", wanted: "`pads` instead", got: "sizes".into() });
    }
    let conv = Conv2d {
        stride: node.sizes("strides", [1, 1])?,
        padding: image::padding(node)?,
        dilation: node.sizes("dilations", [1, 1])?,
        groups: image::groups(node)?,
    };
    let extra = node.sizes("output_padding", [0, 0])?;
    let (x, f) = (im.var(node, 0)?, im.var(node, 1)?);
    let (xs, fs) = (im.program.sig(x).shape.clone(), im.program.sig(f).shape.clone());
    let misfit = || Fault::Pair { a: xs.clone(), b: fs.clone() };
    if xs.rank() != 4 || fs.rank() != 4 {
        return Err(misfit());
    }
    let size = |side: usize| {
        let (n, k) = (xs.dims()[2 + side].fixed()?, fs.dims()[2 + side].fixed()?);
        let reach = conv.dilation[side].checked_mul(k.checked_sub(1)?)?.checked_add(1)?;
        let whole = n.checked_sub(1)?.checked_mul(conv.stride[side])?.checked_add(reach)?;
        whole.checked_add(extra[side])?.checked_sub(2 * conv.padding[side]).map(Dim::Fixed)
    };
    let filters = fs.dims()[1].fixed().and_then(|n| n.checked_mul(conv.groups)).ok_or_else(misfit)?;
    let (height, width) = (size(0).ok_or_else(misfit)?, size(1).ok_or_else(misfit)?);
    let op = Conv2dInputGrad { conv, shape: Shape(vec![xs.dims()[0], Dim::Fixed(filters), height, width]) };
    if !im.has(node, 2) {
        return im.give(node, 0, op, &[f, x]).map(drop);
    }
    let y = im.emit(node, op, &[f, x])?;
    let bias = im.var(node, 2)?;
    im.give(node, 0, Binary { op: Arith::Add, axis: 1 }, &[y, bias]).map(drop)
}

pub fn instance<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    let channels = im.program.sig(x).shape.dims().get(1).and_then(|d| d.fixed());
    normalised(im, node, x, channels)
}

pub fn group<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let x = im.var(node, 0)?;
    let groups = usize::try_from(node.int("num_groups", 0)?).ok().filter(|&g| g > 0);
    normalised(im, node, x, groups)
}

/// Each group of channels of each sample by itself; scale and shift are for channels.
fn normalised<'a>(
    im: &mut Import<'a>,
    node: &OnnxNode<'a>,
    x: VarId,
    groups: Option<usize>,
) -> Result<(), Fault> {
    let sig = im.program.sig(x).clone();
    let wrong = || Fault::Input {
        slot: 0,
        wanted: "[n, c, …] with channels that are equal groups",
        got: sig.shape.to_string(),
    };
    let inner = Shape(sig.shape.dims().get(1..).ok_or_else(wrong)?.to_vec());
    let volume = inner.volume().and_then(|d| d.fixed()).ok_or_else(wrong)?;
    let channels = inner.dims().first().and_then(|d| d.fixed()).ok_or_else(wrong)?;
    let groups = groups.filter(|&g| g > 0 && channels % g == 0).ok_or_else(wrong)?;
    let (scale, shift) = (im.var(node, 1)?, im.var(node, 2)?);
    for (slot, var) in [(1, scale), (2, shift)] {
        let shape = im.program.sig(var).shape.clone();
        if shape.dims() != [Dim::Fixed(channels)] {
            let wanted = "a number for each channel (opset 21, where there are groups)";
            return Err(Fault::Input { slot, wanted, got: shape.to_string() });
        }
    }
    let width = Dim::Fixed(volume / groups);
    let rows = Shape(vec![sig.shape.dims()[0], Dim::Fixed(groups), width]);
    let rows = im.emit(node, Reshape { shape: rows }, &[x])?;
    let mut fill = |value| im.emit(node, Fill { dtype: sig.dtype, shape: Shape(vec![width]), value }, &[]);
    let (ones, zeros) = (fill(1.0)?, fill(0.0)?);
    let norm = LayerNorm { axis: 2, epsilon: node.float("epsilon", 1e-5)? };
    let y = im.emit(node, norm, &[rows, ones, zeros])?;
    let y = im.emit(node, Reshape { shape: sig.shape.clone() }, &[y])?;
    let y = im.emit(node, Binary { op: Arith::Mul, axis: 1 }, &[y, scale])?;
    im.give(node, 0, Binary { op: Arith::Add, axis: 1 }, &[y, shift]).map(drop)
}
