//! Sums, means and extremes along axes.

use super::super::{error::Fault, import::Import, node::OnnxNode, shapes};
use crate::op::{Reduce, Reduction};

pub fn sum<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    reduce(im, node, Reduction::Sum)
}

pub fn mean<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    reduce(im, node, Reduction::Mean)
}

pub fn max<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    reduce(im, node, Reduction::Max)
}

pub fn min<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    reduce(im, node, Reduction::Min)
}

fn reduce<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, op: Reduction) -> Result<(), Fault> {
    // Newer versions have the axes as an input, older ones as an attribute.
    let axes = match im.has(node, 1) {
        true => im.integers(node, 1)?,
        false => node.ints("axes").unwrap_or_default().to_vec(),
    };
    if axes.is_empty() && node.flag("noop_with_empty_axes", false)? {
        return im.alias(node, 0);
    }
    let keep = node.flag("keepdims", true)?;
    let x = im.var(node, 0)?;
    let axes = shapes::axes(&axes, im.program.sig(x).shape.rank(), "axes")?;
    im.give(node, 0, Reduce { op, axes, keep }, &[x]).map(drop)
}
