//! Convolutions and pools of images.

use super::super::{error::Fault, import::Import, node::OnnxNode};
use crate::{
    ir::{Dim, Shape},
    op::{Arith, Binary, Conv2d, Pool, Pool2d, PoolWindows, Reduce, Reduction, Reshape, WindowRule},
};

pub fn conv<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let groups = groups(node)?;
    if im.shape(node, 0)?.rank() == 3 {
        return conv_of_lines(im, node, groups);
    }
    let op = Conv2d {
        stride: node.sizes("strides", [1, 1])?,
        padding: padding(node)?,
        dilation: node.sizes("dilations", [1, 1])?,
        groups,
    };
    images(&im.shape(node, 0)?)?;
    let (x, filters) = (im.var(node, 0)?, im.var(node, 1)?);
    if !im.has(node, 2) {
        return im.give(node, 0, op, &[x, filters]).map(drop);
    }
    let y = im.emit(node, op, &[x, filters])?;
    let bias = im.var(node, 2)?;
    im.give(node, 0, Binary { op: Arith::Add, axis: 1 }, &[y, bias]).map(drop)
}

pub fn groups(node: &OnnxNode<'_>) -> Result<usize, Fault> {
    let groups = node.int("group", 1)?;
    match usize::try_from(groups).ok().filter(|g| (1..=1 << 20).contains(g)) {
        Some(groups) => Ok(groups),
        None => Err(Fault::Attribute { name: "group", wanted: "at least 1", got: groups.to_string() }),
    }
}

/// Lines `[n, c, w]` are images of height 1.
fn conv_of_lines<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, groups: usize) -> Result<(), Fault> {
    let ([stride], [dilation], [left, right]) =
        (node.sizes("strides", [1])?, node.sizes("dilations", [1])?, node.sizes("pads", [0, 0])?);
    if left != right || !matches!(node.text("auto_pad", "NOTSET")?, "NOTSET" | "" | "VALID") {
        let got = format!("{:?}", [left, right]);
        return Err(Fault::Attribute { name: "pads", wanted: "the same on both sides", got });
    }
    let op = Conv2d { stride: [1, stride], padding: [0, left], dilation: [1, dilation], groups };
    let (x, filters) = (im.var(node, 0)?, im.var(node, 1)?);
    let tall = |im: &mut Import<'a>, var| {
        let mut dims = im.program.sig(var).shape.dims().to_vec();
        if dims.len() != 3 {
            return Err(Fault::Input { slot: 1, wanted: "filters [o, c, k]", got: Shape(dims).to_string() });
        }
        dims.insert(2, Dim::Fixed(1));
        im.emit(node, Reshape { shape: Shape(dims) }, &[var])
    };
    let (x, filters) = (tall(im, x)?, tall(im, filters)?);
    let mut y = im.emit(node, op, &[x, filters])?;
    if im.has(node, 2) {
        let bias = im.var(node, 2)?;
        y = im.emit(node, Binary { op: Arith::Add, axis: 1 }, &[y, bias])?;
    }
    let mut dims = im.program.sig(y).shape.dims().to_vec();
    dims.remove(2);
    im.give(node, 0, Reshape { shape: Shape(dims) }, &[y]).map(drop)
}

pub fn max_pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    im.only(node, 1)?;
    pool(im, node, Pool::Max)
}

pub fn average_pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    pool(im, node, Pool::Mean)
}

fn pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, op: Pool) -> Result<(), Fault> {
    images(&im.shape(node, 0)?)?;
    if node.sizes("dilations", [1, 1])? != [1, 1] {
        return Err(Fault::Attribute { name: "dilations", wanted: "1", got: "more".into() });
    }
    let (kernel, padding) = (node.sizes("kernel_shape", [0, 0])?, padding(node)?);
    let pool = Pool2d { op, kernel, stride: node.sizes("strides", [1, 1])?, padding };
    let counted = op == Pool::Mean && node.flag("count_include_pad", false)? && padding != [0, 0];
    let ceil = node.flag("ceil_mode", false)?;
    let x = im.var(node, 0)?;
    if ceil || counted {
        let rule = WindowRule::Steps { kernel, stride: pool.stride, padding, ceil, counted };
        return im.give(node, 0, PoolWindows { op, rule }, &[x]).map(drop);
    }
    im.give(node, 0, pool, &[x]).map(drop)
}

pub fn global_average_pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    images(&im.shape(node, 0)?)?;
    let x = im.var(node, 0)?;
    im.give(node, 0, Reduce { op: Reduction::Mean, axes: vec![2, 3], keep: true }, &[x]).map(drop)
}

fn images(shape: &Shape) -> Result<(), Fault> {
    if shape.rank() == 4 {
        return Ok(());
    }
    Err(Fault::Input { slot: 0, wanted: "images [n, c, h, w]", got: shape.to_string() })
}

/// Above and left; below and right must be the same.
pub fn padding(node: &OnnxNode<'_>) -> Result<[usize; 2], Fault> {
    match node.text("auto_pad", "NOTSET")? {
        "NOTSET" | "" | "VALID" => {}
        got => {
            let wanted = "NOTSET or VALID, with `pads` given";
            return Err(Fault::Attribute { name: "auto_pad", wanted, got: got.chars().take(32).collect() });
        }
    }
    let [top, left, bottom, right] = node.sizes("pads", [0; 4])?;
    if top == bottom && left == right {
        return Ok([top, left]);
    }
    let got = format!("{:?}", [top, left, bottom, right]);
    Err(Fault::Attribute { name: "pads", wanted: "the same on opposite sides", got })
}
