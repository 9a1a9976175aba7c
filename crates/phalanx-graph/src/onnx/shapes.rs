//! Rules of ONNX for shapes, with the batch as a symbol (ONNX-4).

use super::{constants::Int, error::Fault};
use crate::ir::{Dim, Shape};

/// An axis counted from the front, or with a negative number from the end.
pub fn axis(axis: i64, rank: usize, name: &'static str) -> Result<usize, Fault> {
    let rank_i = rank as i64;
    let at = if axis < 0 { axis.saturating_add(rank_i) } else { axis };
    if (0..rank_i).contains(&at) {
        return Ok(at as usize);
    }
    Err(Fault::Attribute { name, wanted: "an axis of the input", got: format!("{axis} of {rank}") })
}

/// Several axes, ascending and each once.
pub fn axes(all: &[i64], rank: usize, name: &'static str) -> Result<Vec<usize>, Fault> {
    let mut found = Vec::new();
    for &a in all.iter().take(rank + 1) {
        found.push(axis(a, rank, name)?);
    }
    found.sort_unstable();
    let n = found.len();
    found.dedup();
    if n != all.len() || n != found.len() {
        let got = format!("{:?}", &all[..all.len().min(16)]);
        return Err(Fault::Attribute { name, wanted: "every axis at most once", got });
    }
    Ok(found)
}

/// What `Reshape` makes of a shape: 0 keeps a dimension, -1 takes what is left.
pub fn reshaped(from: &Shape, target: &[Int], zero_is_zero: bool) -> Result<Shape, Fault> {
    let text = || {
        let shown: Vec<String> = target
            .iter()
            .take(16)
            .map(|i| match i {
                Int::Fixed(n) => n.to_string(),
                Int::Batch(n) => format!("{n}*batch"),
            })
            .collect();
        format!("[{}]", shown.join(", "))
    };
    let baked = || Fault::Baked { from: from.clone(), to: text() };
    let mut dims = Vec::with_capacity(target.len());
    let mut rest = None;
    for (i, &t) in target.iter().enumerate() {
        dims.push(match t {
            Int::Fixed(-1) if rest.is_none() => {
                rest = Some(i);
                Dim::Fixed(1)
            }
            Int::Fixed(0) if !zero_is_zero => *from.dims().get(i).ok_or_else(baked)?,
            other => other.dim().ok_or_else(baked)?,
        });
    }
    let all = from.volume().ok_or(Fault::Batch("a reshape"))?;
    let named = Shape(dims.clone()).volume().ok_or(Fault::Batch("a reshape"))?;
    if let Some(i) = rest {
        dims[i] = quotient(all, named).ok_or_else(baked)?;
    } else if all != named {
        return Err(baked());
    }
    Ok(Shape(dims))
}

fn quotient(a: Dim, b: Dim) -> Option<Dim> {
    let even = |a: usize, b: usize| (a.checked_rem(b)? == 0).then_some(a / b);
    match (a, b) {
        (Dim::Fixed(a), Dim::Fixed(b)) => even(a, b).map(Dim::Fixed),
        (Dim::Batch(a), Dim::Fixed(b)) => even(a, b).map(Dim::Batch),
        (Dim::Batch(a), Dim::Batch(b)) => even(a, b).map(Dim::Fixed),
        _ => None,
    }
}

/// The shape that two operands are both stretched to.
pub fn stretched(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let n = a.len().max(b.len());
    let at = |dims: &[Dim], i: usize| (i + dims.len()).checked_sub(n).map_or(Dim::Fixed(1), |i| dims[i]);
    (0..n)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (x, Dim::Fixed(1)) => Some(x),
            (Dim::Fixed(1), y) => Some(y),
            _ => None,
        })
        .collect()
}

/// Begin and end of a slice of an axis of size `n`, with ONNX's negative and overlong numbers.
pub fn range(begin: i64, end: i64, n: usize) -> Option<(usize, usize)> {
    let n = i64::try_from(n).ok()?;
    let inside = |v: i64| if v < 0 { v.saturating_add(n) } else { v }.clamp(0, n);
    let (begin, end) = (inside(begin), inside(end));
    (begin < end).then_some((begin as usize, end as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::BATCH;

    #[test]
    fn a_reshape_keeps_the_batch_or_says_how_to_export() {
        let from = Shape::from([BATCH, Dim::Fixed(4), Dim::Fixed(6)]);
        let to = |target: &[Int]| reshaped(&from, target, false);
        assert_eq!(to(&[Int::Batch(1), Int::Fixed(-1)]), Ok(Shape::from([BATCH, Dim::Fixed(24)])));
        assert_eq!(to(&[Int::Fixed(0), Int::Fixed(24)]), Ok(Shape::from([BATCH, Dim::Fixed(24)])));
        assert_eq!(to(&[Int::Fixed(-1), Int::Fixed(6)]), Ok(Shape::from([Dim::Batch(4), Dim::Fixed(6)])));
        let baked = to(&[Int::Fixed(16), Int::Fixed(24)]).unwrap_err();
        assert!(baked.to_string().contains("x.view(x.size(0), -1)"), "ONNX-4: {baked}");
        assert!(to(&[Int::Fixed(-1), Int::Fixed(7)]).is_err());
        assert!(to(&[Int::Fixed(-1), Int::Fixed(-1)]).is_err());
    }

    #[test]
    fn operands_are_stretched_from_the_last_dimension() {
        let (one, three) = (Dim::Fixed(1), Dim::Fixed(3));
        assert_eq!(stretched(&[BATCH, one, three], &[three, one]), Some(vec![BATCH, three, three]));
        assert_eq!(stretched(&[BATCH, three], &[BATCH, one]), Some(vec![BATCH, three]));
        assert_eq!(stretched(&[BATCH], &[three]), None);
        assert_eq!((range(-2, i64::MAX, 5), range(4, 2, 5)), (Some((3, 5)), None));
    }
}
