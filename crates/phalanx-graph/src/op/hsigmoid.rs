//! Classes as leaves of a binary tree: a loss that looks at the nodes on the way to the right one, not at all classes.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, Real, fast, real},
};
use serde::{Deserialize, Serialize};

/// Input `[n, width]`, weights `[classes - 1, width]`, biases `[classes - 1]`, class numbers `[n]` or `[n, 1]`: losses `[n, 1]`.
/// The tree is complete; its inner nodes are numbered level by level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HSigmoid {
    pub classes: usize,
}

/// The nodes on the way to a class, and whether it turns right there. Leaf `c` has the number `c + classes` if the root has 1.
fn way(class: usize, classes: usize) -> impl Iterator<Item = (usize, bool)> {
    let leaf = class + classes;
    (0..leaf.ilog2()).map(move |bit| ((leaf >> (bit + 1)) - 1, (leaf >> bit) & 1 == 1))
}

impl HSigmoid {
    fn class(&self, at: usize, value: i64) -> Result<usize, KernelError> {
        let wrong = KernelError::Index { input: 3, at, value, limit: self.classes };
        usize::try_from(value).ok().filter(|&v| v < self.classes).ok_or(wrong)
    }
}

/// In eight sums side by side, whose order depends on the width alone.
#[inline(always)]
fn score<T: Real>(x: &[T], w: &[T], b: T) -> T {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (xs, ws) = (x.chunks_exact(LANES), w.chunks_exact(LANES));
    let rest: f64 = xs.remainder().iter().zip(ws.remainder()).map(|(&x, &w)| x.wide() * w.wide()).sum();
    for (x, w) in xs.zip(ws) {
        for lane in 0..LANES {
            sums[lane] += x[lane].wide() * w[lane].wide();
        }
    }
    T::of(sums.iter().sum::<f64>() + rest) + b
}

impl Operator for HSigmoid {
    fn name(&self) -> &'static str {
        "hsigmoid"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4)?;
        let (x, labels) = (check::real(inputs, 0)?, check::index(inputs, 3)?);
        check::rank(inputs, 0, 2, "2 ([n, width])")?;
        if self.classes < 2 {
            let got = self.classes.to_string();
            return Err(Misfit::Attribute { name: "classes", wanted: "at least 2", got });
        }
        let width = Dim::Fixed(check::fixed(inputs, 0, 1)?);
        let nodes = Dim::Fixed(self.classes - 1);
        check::shaped(inputs, 1, x.dtype, &Shape(vec![nodes, width]))?;
        check::shaped(inputs, 2, x.dtype, &Shape(vec![nodes]))?;
        if labels.shape.volume() != Some(x.shape.dims()[0]) {
            return Err(Misfit::Pair { a: x.shape.clone(), b: labels.shape.clone() });
        }
        Ok(vec![Sig::dense(x.dtype, Shape(vec![x.shape.dims()[0], Dim::Fixed(1)]))])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let width = call.dims(0)[1];
        let labels = call.input::<i64>(3);
        real!(call.dtype(0), T => {
            let [x, w, b] = [0, 1, 2].map(|slot| call.input::<T>(slot));
            let out = call.output::<T>(0);
            fast(
                #[inline(always)]
                || {
                    for (i, (out, &label)) in out.iter_mut().zip(labels).enumerate() {
                        let x = &x[i * width..][..width];
                        *out = T::ZERO;
                        for (node, right) in way(self.class(i, label)?, self.classes) {
                            let s = score(x, &w[node * width..][..width], b[node]);
                            // ln(1 + exp(s)) - right * s, without overflow.
                            *out += s.larger(T::ZERO) + (-s.abs()).exp().ln_1p();
                            if right {
                                *out -= s;
                            }
                        }
                    }
                    Ok::<(), KernelError>(())
                },
            )
        })
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let given = [grad.x(0), grad.x(1), grad.x(2), grad.x(3), grad.dy(0)];
        let made = grad.emit_all(HSigmoidGrad { of: *self }, &given)?;
        for (slot, d) in made.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}

/// From the inputs and the gradient of the losses: those of input, weights and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HSigmoidGrad {
    pub of: HSigmoid,
}

impl Operator for HSigmoidGrad {
    fn name(&self) -> &'static str {
        "hsigmoid_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let out = self.of.infer(&inputs[..4])?;
        check::shaped(inputs, 4, out[0].dtype, &out[0].shape)?;
        Ok(inputs[..3].to_vec())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let width = call.dims(0)[1];
        let labels = call.input::<i64>(3);
        real!(call.dtype(0), T => {
            let [x, w, b, d] = [0, 1, 2, 4].map(|slot| call.input::<T>(slot));
            let (dx, dw, db) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            for all in [&mut *dx, &mut *dw, &mut *db] {
                all.fill(T::ZERO);
            }
            fast(
                #[inline(always)]
                || {
                    for (i, &label) in labels.iter().enumerate() {
                        let (x, dx) = (&x[i * width..][..width], &mut dx[i * width..][..width]);
                        for (node, right) in way(self.of.class(i, label)?, self.of.classes) {
                            let (w, dw) = (&w[node * width..][..width], &mut dw[node * width..][..width]);
                            let s = score(x, w, b[node]).sigmoid();
                            let slope = d[i] * if right { s - T::ONE } else { s };
                            db[node] += slope;
                            dx.iter_mut().zip(w).for_each(|(dx, &w)| *dx += slope * w);
                            dw.iter_mut().zip(x).for_each(|(dw, &x)| *dw += slope * x);
                        }
                    }
                    Ok::<(), KernelError>(())
                },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::way;

    #[test]
    fn every_class_has_its_own_way_from_the_root() {
        for classes in 2..20 {
            let mut ways: Vec<Vec<(usize, bool)>> = (0..classes).map(|c| way(c, classes).collect()).collect();
            assert!(ways.iter().all(|w| w.last().is_some_and(|(root, _)| *root == 0)));
            assert!(ways.iter().flatten().all(|(node, _)| *node < classes - 1));
            ways.sort();
            ways.dedup();
            assert_eq!(ways.len(), classes);
        }
    }
}
