//! Parts of tensors, and tensors of parts: Concat, Gather, Slice, Split.

use super::super::{
    constants::Int,
    error::Fault,
    import::{Import, Value},
    node::OnnxNode,
    shapes,
};
use crate::{
    ir::{Shape, VarId},
    op::{Concat, Embedding, Gather, Reshape, Slice},
};
use phalanx_core::DType;

pub fn concat<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let axis = shapes::axis(node.int("axis", 0)?, im.shape(node, 0)?.rank(), "axis")?;
    let all = (0..node.proto.inputs.len()).map(|s| im.var(node, s)).collect::<Result<Vec<_>, _>>()?;
    im.give(node, 0, Concat { axis }, &all).map(drop)
}

pub fn slice<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (begins, ends) = (im.setting(node, 1)?, im.setting(node, 2)?);
    let (Some(begins), Some(ends)) = (begins.ints(), ends.ints()) else {
        return Err(Fault::NotConstant { slot: 1 });
    };
    let rank = im.shape(node, 0)?.rank();
    let axes = match im.has(node, 3) {
        true => im.integers(node, 3)?,
        false => (0..begins.len().min(rank) as i64).collect(),
    };
    shapes::axes(&axes, rank, "axes")?;
    if begins.len() != axes.len() || ends.len() != axes.len() {
        let got = format!("{} and {}", begins.len(), ends.len());
        return Err(Fault::Input { slot: 1, wanted: "one begin and end for each axis", got });
    }
    if im.has(node, 4) && im.integers(node, 4)?.iter().any(|&s| s != 1) {
        return Err(Fault::Input { slot: 4, wanted: "steps of 1", got: "others".into() });
    }
    let mut x = im.var(node, 0)?;
    for (i, &a) in axes.iter().enumerate() {
        let axis = shapes::axis(a, rank, "axes")?;
        x = cut(im, node, x, axis, begins[i], ends[i])?;
    }
    im.bind(node, 0, Value::Var(x))
}

/// One axis of a slice; nothing, if it takes all of it.
fn cut<'a>(
    im: &mut Import<'a>,
    node: &OnnxNode<'a>,
    x: VarId,
    axis: usize,
    begin: Int,
    end: Int,
) -> Result<VarId, Fault> {
    /// What exporters write for "to the end".
    const END: i64 = i32::MAX as i64;
    let dim = im.program.sig(x).shape.dims()[axis];
    let to_end = end == Int::of(dim) || matches!(end, Int::Fixed(n) if n >= END);
    if begin == Int::Fixed(0) && to_end {
        return Ok(x);
    }
    let (Some(n), Some(begin), Some(end)) = (dim.fixed(), begin.fixed(), end.fixed()) else {
        return Err(Fault::Batch("a slice"));
    };
    let Some((begin, end)) = shapes::range(begin, end, n) else {
        let got = format!("{begin}..{end} of {n}");
        return Err(Fault::Input { slot: 1, wanted: "a range that is not empty", got });
    };
    im.emit(node, Slice { axis, begin, end }, &[x])
}

pub fn split<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    let axis = shapes::axis(node.int("axis", 0)?, shape.rank(), "axis")?;
    let n = shape.dims()[axis].fixed().ok_or(Fault::Batch("a split"))?;
    let n_parts = node.proto.outputs.len().max(1);
    let sizes: Vec<usize> = match im.has(node, 1) {
        true => im.integers(node, 1)?.into_iter().filter_map(|s| usize::try_from(s).ok()).collect(),
        false => {
            (0..n_parts).map(|i| n.div_ceil(n_parts).min(n.saturating_sub(i * n.div_ceil(n_parts)))).collect()
        }
    };
    let total = sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s));
    if sizes.len() != n_parts || total != Some(n) {
        let got = format!("{:?} of {n}", &sizes[..sizes.len().min(16)]);
        return Err(Fault::Input { slot: 1, wanted: "a size for each output, and all of the axis", got });
    }
    let x = im.var(node, 0)?;
    let mut begin = 0;
    for (slot, size) in sizes.into_iter().enumerate() {
        if node.proto.outputs.get(slot).is_some_and(|o| !o.is_empty()) {
            im.give(node, slot, Slice { axis, begin, end: begin + size }, &[x])?;
        }
        begin += size;
    }
    Ok(())
}

pub fn gather<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let shape = im.shape(node, 0)?;
    let axis = shapes::axis(node.int("axis", 0)?, shape.rank(), "axis")?;
    let at = im.known(node, 1).filter(|k| k.dims.is_empty()).and_then(|k| k.fixed());
    if let Some(&[at]) = at.as_deref() {
        return picked(im, node, &shape, axis, at);
    }
    let (table, ids) = (im.var(node, 0)?, im.var(node, 1)?);
    let sig = im.program.sig(ids);
    if axis != 0 || sig.dtype != DType::I64 {
        return Err(Fault::input(1, "one known number, or i64 numbers along axis 0", sig));
    }
    if shape.rank() == 2 {
        let op = Embedding { padding: None, sparse: im.options.sparse };
        return im.give(node, 0, op, &[table, ids]).map(drop);
    }
    im.give(node, 0, Gather, &[table, ids]).map(drop)
}

/// One place of an axis, which goes.
fn picked<'a>(
    im: &mut Import<'a>,
    node: &OnnxNode<'a>,
    shape: &Shape,
    axis: usize,
    at: i64,
) -> Result<(), Fault> {
    let n = shape.dims()[axis].fixed().ok_or(Fault::Batch("one sample"))?;
    let place = if at < 0 { at.saturating_add(n as i64) } else { at };
    let Some(begin) = usize::try_from(place).ok().filter(|&p| p < n) else {
        return Err(Fault::Input { slot: 1, wanted: "a place of the axis", got: format!("{at} of {n}") });
    };
    let x = im.var(node, 0)?;
    let piece = im.emit(node, Slice { axis, begin, end: begin + 1 }, &[x])?;
    let mut dims = shape.0.clone();
    dims.remove(axis);
    im.give(node, 0, Reshape { shape: Shape(dims) }, &[piece]).map(drop)
}
