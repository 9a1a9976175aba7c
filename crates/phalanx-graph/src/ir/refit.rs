//! The same program for feeds of other sizes.
//! - REFIT-1: shapes follow from the feeds, operation by operation. Numbers that a layer was given (the shape of a constant, how
//!   often something is repeated) stay as they are, and gradients have the shapes of what they are gradients of.
//!   A reshape or a slice that could be meant in several ways for another size is refused.
//! - REFIT-2: parameters and states keep their shapes. A program that would need others is refused.

use super::{
    error::GraphError,
    program::{Op, Program, VarId, VarKind},
    shape::{Dim, Shape},
    verify,
};
use crate::op::{Conv2dInputGrad, Expand, Fill, OpKind, Reshape, Slice, SumTo};

impl Program {
    /// With these feeds in other sizes.
    pub fn refit(&self, feeds: &[(VarId, Vec<usize>)]) -> Result<Program, GraphError> {
        let mut new = self.clone();
        for (id, dims) in feeds {
            new.vars[id.index()].sig.shape = Shape(dims.iter().map(|&n| Dim::Fixed(n)).collect());
        }
        let of = self.gradient_of();
        for (i, op) in self.ops.iter().enumerate() {
            let kind = self.adapted(&new, op, &of);
            let sigs = verify::inferred(&new, &kind, &op.inputs, &op.site)?;
            for (&out, sig) in op.outputs.iter().zip(sigs) {
                if self.var(out).kind == VarKind::Temp {
                    new.vars[out.index()].sig = sig;
                }
            }
            new.ops[i].kind = kind;
        }
        new.verify()?;
        Ok(new)
    }

    /// For each variable that is a gradient, or a part of one, what it is a gradient of.
    fn gradient_of(&self) -> Vec<Option<VarId>> {
        let mut of = vec![None; self.vars.len()];
        for &(var, grad) in &self.grads {
            of[grad.index()].get_or_insert(var);
        }
        for op in self.ops.iter().rev().filter(|op| matches!(op.kind, OpKind::Sum(_))) {
            let Some(var) = of[op.outputs[0].index()] else { continue };
            op.inputs.iter().for_each(|part| {
                of[part.index()].get_or_insert(var);
            });
        }
        of
    }

    /// The operation with the shapes that it is to give.
    fn adapted(&self, new: &Program, op: &Op, of: &[Option<VarId>]) -> OpKind {
        let like = || of[op.outputs[0].index()].map(|var| new.sig(var).shape.clone());
        let sides = |slot: usize| {
            let id = op.inputs[slot];
            (self.sig(id).shape.dims(), new.sig(id).shape.dims())
        };
        match &op.kind {
            OpKind::Reshape(Reshape { shape }) => {
                let (old, now) = sides(0);
                let grouped = || Shape(regrouped(old, now, shape.dims()).unwrap_or_else(|| shape.0.clone()));
                Reshape { shape: like().unwrap_or_else(grouped) }.into()
            }
            OpKind::SumTo(SumTo { shape, axis }) => {
                SumTo { shape: like().unwrap_or_else(|| shape.clone()), axis: *axis }.into()
            }
            OpKind::Fill(Fill { dtype, shape, value }) => {
                let shape = like().unwrap_or_else(|| shape.clone());
                Fill { dtype: *dtype, shape, value: *value }.into()
            }
            OpKind::Expand(Expand { shape, axis }) => {
                let (old, now) = sides(0);
                let follows = || {
                    let mut dims = shape.0.clone();
                    for (i, d) in dims.iter_mut().skip(*axis).enumerate() {
                        if let Some(to) = now.get(i).filter(|_| old.get(i) == Some(d)) {
                            *d = *to;
                        }
                    }
                    Shape(dims)
                };
                Expand { shape: like().unwrap_or_else(follows), axis: *axis }.into()
            }
            OpKind::Slice(slice) => {
                let (old, now) = sides(0);
                match (old[slice.axis], now[slice.axis]) {
                    (a, b) if a == b => op.kind.clone(),
                    (Dim::Fixed(a), Dim::Fixed(b)) if slice.begin == 0 && slice.end == a => {
                        Slice { end: b, ..*slice }.into()
                    }
                    // Whether its end was a number or "the rest" is not known any more: no axis is as long as this.
                    _ => Slice { end: usize::MAX, ..*slice }.into(),
                }
            }
            OpKind::Conv2dInputGrad(Conv2dInputGrad { conv, shape }) => {
                let (old, now) = sides(1);
                let follows = || {
                    let mut dims = shape.0.clone();
                    for (axis, d) in dims.iter_mut().enumerate().filter(|(axis, _)| *axis != 1) {
                        let step = if axis == 0 { 1 } else { conv.stride[axis - 2] };
                        if let (Dim::Fixed(size), Dim::Fixed(a), Dim::Fixed(b)) = (*d, old[axis], now[axis]) {
                            *d = Dim::Fixed((size + step * b).saturating_sub(step * a));
                        }
                    }
                    Shape(dims)
                };
                Conv2dInputGrad { conv: *conv, shape: like().unwrap_or_else(follows) }.into()
            }
            kind => kind.clone(),
        }
    }
}

/// What a reshape from `old` to `to` becomes where `old` is `new`: dimensions that were split from one, or joined to one, are so
/// again. `None` where that is not clear.
fn regrouped(old: &[Dim], new: &[Dim], to: &[Dim]) -> Option<Vec<Dim>> {
    let fixed =
        |dims: &[Dim]| dims.iter().map(|d| d.fixed().filter(|&n| n > 0)).collect::<Option<Vec<usize>>>();
    let (old, new, to) = (fixed(old)?, fixed(new)?, fixed(to)?);
    let (mut i, mut j, mut made) = (0, 0, Vec::with_capacity(to.len()));
    while i < old.len() || j < to.len() {
        let (first, begin) = (i, j);
        let (mut a, mut b) = (1, 1);
        loop {
            if a <= b && i < old.len() && (a < b || i == first) {
                a *= old[i];
                i += 1;
            } else if j < to.len() && (b < a || j == begin) {
                b *= to[j];
                j += 1;
            } else if a == b {
                break;
            } else {
                return None;
            }
        }
        let (now, group) = (new[first..i].iter().product::<usize>(), &to[begin..j]);
        let several = |dims: &[usize]| dims.iter().filter(|&&n| n > 1).count() > 1;
        if now != a && several(&old[first..i]) && several(group) {
            return None;
        }
        // A dimension of one that was left out has no place for more.
        if i - first > 1 && (first..i).any(|k| old[k] == 1 && new[k] != 1) {
            return None;
        }
        let is_scaled = |d: usize| d > 1 && (d * now).is_multiple_of(a);
        let mut can_grow = group.iter().enumerate().filter(|(_, d)| is_scaled(**d)).map(|(k, _)| k);
        let at = if now == a { None } else { Some(can_grow.next()?) };
        if at.is_some() && can_grow.next().is_some() {
            return None;
        }
        made.extend(
            group.iter().enumerate().map(|(k, &d)| Dim::Fixed(if Some(k) == at { d * now / a } else { d })),
        );
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_were_joined_or_split_are_so_again() {
        let dims = |of: &[usize]| of.iter().map(|&n| Dim::Fixed(n)).collect::<Vec<_>>();
        let case = |old: &[usize], new: &[usize], to: &[usize]| {
            regrouped(&dims(old), &dims(new), &dims(to))
                .map(|made| made.into_iter().map(|d| d.fixed().unwrap()).collect::<Vec<_>>())
        };
        assert_eq!(case(&[4, 2, 3], &[7, 2, 3], &[4, 6]), Some(vec![7, 6]));
        assert_eq!(case(&[4, 2, 3], &[7, 2, 3], &[8, 3]), Some(vec![14, 3]));
        assert_eq!(case(&[8, 3], &[14, 3], &[4, 2, 3]), Some(vec![7, 2, 3]));
        assert_eq!(case(&[4], &[7], &[4, 1]), Some(vec![7, 1]));
        assert_eq!(case(&[4], &[7], &[1, 4]), Some(vec![1, 7]));
        assert_eq!(case(&[4, 1], &[7, 1], &[4]), Some(vec![7]));
        assert_eq!(case(&[], &[], &[1]), Some(vec![1]));
        assert_eq!(case(&[4, 4], &[7, 4], &[4, 4]), Some(vec![7, 4]));
        assert_eq!(case(&[4, 6], &[5, 6], &[6, 4]), None);
        assert_eq!(case(&[4], &[7], &[2, 2]), None);
        assert_eq!(case(&[0], &[7], &[0]), None);
        assert_eq!(case(&[4], &[8], &[2, 2]), None, "[4, 2] or [2, 4]");
        assert_eq!(case(&[4, 1, 3], &[4, 2, 3], &[4, 3]), None, "a squeezed axis that has grown");
    }
}
