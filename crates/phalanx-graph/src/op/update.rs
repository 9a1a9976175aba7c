//! The update rules of optimizers. All take parameter, gradient and rate first and write the parameter in place.
//! Sparse gradients must be merged; they change only the rows they have ("lazy"), states included.

use super::{Operator, check, rows::sparse};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, KernelError, Real, dot, fast, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Parameter, gradient (dense or rows of it), rate, and states like the parameter.
fn updates(inputs: &[Sig], n_states: usize, rate: usize) -> Result<Vec<Sig>, Misfit> {
    let p = check::real(inputs, 0)?;
    fits(inputs, 1, p)?;
    check::scalar(inputs, rate, p.dtype)?;
    for slot in 3..3 + n_states {
        check::like(inputs, slot, 0)?;
    }
    Ok(vec![p.clone(); 1 + n_states])
}

fn fits(inputs: &[Sig], slot: usize, p: &Sig) -> Result<(), Misfit> {
    if inputs[slot].is_dense() {
        return check::shaped(inputs, slot, p.dtype, &p.shape);
    }
    let (g, height) = sparse(inputs, slot)?;
    let same = p.shape.rank() > 0
        && p.shape.dims()[0] == height.into()
        && p.shape.dims()[1..] == g.shape.dims()[1..]
        && p.dtype == g.dtype;
    if same { Ok(()) } else { Err(Misfit::Pair { a: p.shape.clone(), b: g.shape.clone() }) }
}

/// Calls `f` with each piece of the gradient and where it begins in the parameter.
#[inline(always)]
fn pieces<T: Real>(call: &Call<'_>, slot: usize, mut f: impl FnMut(usize, &[T])) {
    if !call.is_sparse(slot) {
        return f(0, call.input(slot));
    }
    let (rows, values) = call.rows::<T>(slot);
    let width = call.dims(slot)[1..].iter().product::<usize>().max(1);
    for (&row, g) in rows.iter().zip(values.chunks_exact(width)) {
        if let Ok(row) = usize::try_from(row) {
            f(row * width, g);
        }
    }
}

macro_rules! updater {
    ($op:ident, $name:literal, $n_inputs:literal, $n_states:literal, $shares:expr, |$this:ident, $call:ident, $t:ident| $body:block) => {
        impl Operator for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
                check::count(inputs, $n_inputs)?;
                if $n_inputs > 3 + $n_states {
                    check::scalar(inputs, $n_inputs - 1, DType::I64)?;
                }
                updates(inputs, $n_states, 2)
            }

            fn run(&self, $call: &mut Call<'_>) -> Result<(), KernelError> {
                let $this = *self;
                real!($call.dtype(0), $t => $body);
                Ok(())
            }

            fn shares(&self) -> &'static [(usize, usize)] {
                $shares
            }

            fn is_elementwise(&self) -> bool {
                true
            }
        }
    };
}

/// `p -= rate * g`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sgd;

updater!(Sgd, "sgd", 3, 0, &[(0, 0)], |_this, call, T| {
    let (rate, p) = (call.input::<T>(2)[0], call.update::<T>(0, 0));
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || p[at..].iter_mut().zip(g).for_each(|(p, &g)| *p -= rate * g),
        );
    });
});

/// State: velocity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Momentum {
    pub mu: f64,
    pub nesterov: bool,
    /// Whether the rate is part of the velocity (LARS) or scales it.
    pub rate_inside: bool,
}

updater!(Momentum, "momentum", 4, 1, &[(0, 0), (3, 1)], |this, call, T| {
    let (rate, mu) = (call.input::<T>(2)[0], T::of(this.mu));
    let (p, v) = (call.update::<T>(0, 0), call.update::<T>(3, 1));
    let (inner, outer) = if this.rate_inside { (rate, T::ONE) } else { (T::ONE, rate) };
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || {
                for ((p, v), &g) in p[at..].iter_mut().zip(&mut v[at..]).zip(g) {
                    *v = mu * *v + inner * g;
                    let step = if this.nesterov { inner * g + mu * *v } else { *v };
                    *p -= outer * step;
                }
            },
        );
    });
});

/// States: first and second moment; then the number of the step, from 1. With `decay` it is AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub decay: f64,
}

updater!(Adam, "adam", 6, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let step = call.input::<i64>(5)[0].max(1) as f64;
    let rate = call.input::<T>(2)[0];
    let (p, m, v) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    let (b1, b2, epsilon) = (T::of(this.beta1), T::of(this.beta2), T::of(this.epsilon));
    let first = T::of(1.0 / (1.0 - libm::pow(this.beta1, step)));
    let second = T::of(1.0 / libm::sqrt(1.0 - libm::pow(this.beta2, step)));
    let (c1, c2, keep) = (T::ONE - b1, T::ONE - b2, T::ONE - rate * T::of(this.decay));
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || {
                for (((p, m), v), &g) in p[at..].iter_mut().zip(&mut m[at..]).zip(&mut v[at..]).zip(g) {
                    *m = b1 * *m + c1 * g;
                    *v = b2 * *v + c2 * g * g;
                    *p = *p * keep - rate * (*m * first) / (v.sqrt() * second + epsilon);
                }
            },
        );
    });
});

/// State: sum of squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    pub epsilon: f64,
}

updater!(Adagrad, "adagrad", 4, 1, &[(0, 0), (3, 1)], |this, call, T| {
    let (rate, epsilon) = (call.input::<T>(2)[0], T::of(this.epsilon));
    let (p, s) = (call.update::<T>(0, 0), call.update::<T>(3, 1));
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || {
                for ((p, s), &g) in p[at..].iter_mut().zip(&mut s[at..]).zip(g) {
                    *s += g * g;
                    *p -= rate * g / (s.sqrt() + epsilon);
                }
            },
        );
    });
});

/// States: mean of squares, momentum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    pub rho: f64,
    pub epsilon: f64,
    pub mu: f64,
    /// Whether epsilon is added under the root, as Paddle does, or to the root, as PyTorch does.
    #[serde(default)]
    pub under_root: bool,
}

updater!(RmsProp, "rmsprop", 5, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let (rate, rho, epsilon, mu) =
        (call.input::<T>(2)[0], T::of(this.rho), T::of(this.epsilon), T::of(this.mu));
    let (p, s, v) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    let (inside, outside) = if this.under_root { (epsilon, T::ZERO) } else { (T::ZERO, epsilon) };
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || {
                for (((p, s), v), &g) in p[at..].iter_mut().zip(&mut s[at..]).zip(&mut v[at..]).zip(g) {
                    *s = rho * *s + (T::ONE - rho) * g * g;
                    *v = mu * *v + rate * g / ((*s + inside).sqrt() + outside);
                    *p -= *v;
                }
            },
        );
    });
});

/// The rate of LARS, from the squared norms of parameter and gradient and the global rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LarsRate {
    pub coefficient: f64,
    pub decay: f64,
}

impl Operator for LarsRate {
    fn name(&self) -> &'static str {
        "lars_rate"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let p = check::real(inputs, 0)?;
        for slot in 0..3 {
            check::scalar(inputs, slot, p.dtype)?;
        }
        Ok(vec![Sig::dense(p.dtype, Shape::scalar())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let [p, g, rate] = [0, 1, 2].map(|i| call.input::<T>(i)[0]);
            let (p, g) = (p.sqrt(), g.sqrt());
            let local = T::of(self.coefficient) * p / (g + T::of(self.decay) * p);
            call.output::<T>(0)[0] = if p > T::ZERO && g > T::ZERO { rate * local } else { rate };
        });
        Ok(())
    }
}

/// The sum of all squares of all inputs, in their order. Sparse ones must be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SquaredNorm;

impl Operator for SquaredNorm {
    fn name(&self) -> &'static str {
        "squared_norm"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let Some(first) = inputs.first() else { return Err(Misfit::Count { wanted: 1, got: 0 }) };
        for (slot, x) in inputs.iter().enumerate() {
            if x.dtype != first.dtype || !x.dtype.is_float() {
                return Err(Misfit::DType { slot, wanted: first.dtype.name(), got: x.dtype });
            }
        }
        Ok(vec![Sig::dense(first.dtype, Shape::scalar())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let mut total = 0.0;
            for slot in 0..call.n_inputs() {
                // Each tensor's own sum first, so that it does not depend on the others.
                let mut own = 0.0;
                pieces::<T>(call, slot, |_, g| own += fast(#[inline(always)] || dot(g, g)));
                total += own;
            }
            call.output::<T>(0)[0] = T::of(total);
        });
        Ok(())
    }
}

/// What to multiply with so that a norm stays below the limit, from the squared norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipFactor {
    pub limit: f64,
}

impl Operator for ClipFactor {
    fn name(&self) -> &'static str {
        "clip_factor"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let norm = call.input::<T>(0)[0].sqrt();
            let limit = T::of(self.limit);
            call.output::<T>(0)[0] = if norm > limit { limit / norm } else { T::ONE };
        });
        Ok(())
    }
}

/// A gradient times a number that was computed; dense or sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleBy;

impl Operator for ScaleBy {
    fn name(&self) -> &'static str {
        "scale_by"
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        check::scalar(inputs, 1, inputs[0].dtype)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let by = call.input::<T>(1)[0];
            let out = match call.is_sparse(0) {
                false => call.update::<T>(0, 0),
                true => {
                    let ((rows, values), (to, out)) = (call.rows::<T>(0), call.rows_out::<T>(0));
                    to.copy_from_slice(rows);
                    out.copy_from_slice(values);
                    out
                }
            };
            fast(#[inline(always)] || out.iter_mut().for_each(|v| *v *= by));
        });
        Ok(())
    }
}

/// `g + factor * p`: what decay adds to a gradient, dense or sparse.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decay {
    pub factor: f64,
}

impl Operator for Decay {
    fn name(&self) -> &'static str {
        "decay"
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        fits(inputs, 0, check::real(inputs, 1)?)?;
        Ok(vec![inputs[0].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let (p, factor) = (call.input::<T>(1), T::of(self.factor));
            if !call.is_sparse(0) {
                let g = call.update::<T>(0, 0);
                fast(#[inline(always)] || g.iter_mut().zip(p).for_each(|(g, &p)| *g += factor * p));
                return Ok(());
            }
            let ((rows, values), (to, out)) = (call.rows::<T>(0), call.rows_out::<T>(0));
            to.copy_from_slice(rows);
            out.copy_from_slice(values);
            let width = call.dims(0)[1..].iter().product::<usize>().max(1);
            for (&row, g) in rows.iter().zip(out.chunks_exact_mut(width)) {
                if let Ok(row) = usize::try_from(row) {
                    g.iter_mut().zip(&p[row * width..]).for_each(|(g, &p)| *g += factor * p);
                }
            }
        });
        Ok(())
    }
}
