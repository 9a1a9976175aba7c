//! Convolutions and pools of images.

use super::super::{error::Fault, import::Import, node::OnnxNode};
use crate::{
    ir::Shape,
    op::{Arith, Binary, Conv2d, Pool, Pool2d, Reduce, Reduction},
};

pub fn conv<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let groups = node.int("group", 1)?;
    let Some(groups) = usize::try_from(groups).ok().filter(|g| (1..=1 << 20).contains(g)) else {
        return Err(Fault::Attribute { name: "group", wanted: "at least 1", got: groups.to_string() });
    };
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

pub fn max_pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    im.only(node, 1)?;
    pool(im, node, Pool::Max)
}

pub fn average_pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    if node.flag("count_include_pad", false)? && padding(node)? != [0, 0] {
        let wanted = "0 where there is padding (AvgPool2d(count_include_pad=False))";
        return Err(Fault::Attribute { name: "count_include_pad", wanted, got: "1".into() });
    }
    pool(im, node, Pool::Mean)
}

fn pool<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, op: Pool) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    images(&shape)?;
    if node.sizes("dilations", [1, 1])? != [1, 1] {
        return Err(Fault::Attribute { name: "dilations", wanted: "1", got: "more".into() });
    }
    let (kernel, padding) = (node.sizes("kernel_shape", [0, 0])?, padding(node)?);
    let pool = Pool2d { op, kernel, stride: node.sizes("strides", [1, 1])?, padding };
    if node.flag("ceil_mode", false)? {
        let even = |side: usize| {
            let n =
                shape.dims()[2 + side].fixed()?.checked_add(2 * padding[side])?.checked_sub(kernel[side])?;
            Some(n.checked_rem(pool.stride[side])? == 0)
        };
        if even(0) != Some(true) || even(1) != Some(true) {
            let wanted = "0, unless the windows fit the image";
            return Err(Fault::Attribute { name: "ceil_mode", wanted, got: "1".into() });
        }
    }
    let x = im.var(node, 0)?;
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
fn padding(node: &OnnxNode<'_>) -> Result<[usize; 2], Fault> {
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
