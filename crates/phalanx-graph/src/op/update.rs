//! The update rules of optimizers as operations; what they do to memory is `phalanx_core::kernel::update`. All take parameter, gradient and rate first and write the parameter in place.
//! Sparse gradients must be merged; they change only the rows they have ("lazy"), states included.

use super::{Operator, check, rows::sparse};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, Real, dot, fast, real},
};
pub use phalanx_core::kernel::update::{Adagrad, Adam, Momentum, RmsProp};
use phalanx_core::{DType, kernel::update};
use serde::{Deserialize, Serialize};

/// Parameter, gradient (dense or rows of it), rate, and states like the parameter.
pub(super) fn updates(inputs: &[Sig], n_states: usize, rate: usize) -> Result<Vec<Sig>, Misfit> {
    let p = check::real(inputs, 0)?;
    fits(inputs, 1, p)?;
    check::scalar(inputs, rate, p.dtype)?;
    for slot in 3..3 + n_states {
        check::like(inputs, slot, 0)?;
    }
    Ok(vec![p.clone(); 1 + n_states])
}

pub(super) fn fits(inputs: &[Sig], slot: usize, p: &Sig) -> Result<(), Misfit> {
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
pub(super) fn pieces<T: Real>(call: &Call<'_>, slot: usize, mut f: impl FnMut(usize, &[T])) {
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

pub(super) use updater;

/// `p -= rate * g`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sgd;

updater!(Sgd, "sgd", 3, 0, &[(0, 0)], |_this, call, T| {
    let (rate, p) = (call.input::<T>(2)[0], call.update::<T>(0, 0));
    pieces::<T>(call, 1, |at, g| update::sgd(&mut p[at..], g, rate));
});

updater!(Momentum, "momentum", 4, 1, &[(0, 0), (3, 1)], |this, call, T| {
    let rate = call.input::<T>(2)[0];
    let (p, v) = (call.update::<T>(0, 0), call.update::<T>(3, 1));
    pieces::<T>(call, 1, |at, g| this.apply(&mut p[at..], &mut v[at..], g, rate));
});

// The last input is the number of the step, from 1.
updater!(Adam, "adam", 6, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let step = this.at(call.input::<i64>(5)[0], call.input::<T>(2)[0]);
    let (p, m, v) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    pieces::<T>(call, 1, |at, g| step.apply(&mut p[at..], &mut m[at..], &mut v[at..], g));
});

updater!(Adagrad, "adagrad", 4, 1, &[(0, 0), (3, 1)], |this, call, T| {
    let rate = call.input::<T>(2)[0];
    let (p, s) = (call.update::<T>(0, 0), call.update::<T>(3, 1));
    pieces::<T>(call, 1, |at, g| this.apply(&mut p[at..], &mut s[at..], g, rate));
});

updater!(RmsProp, "rmsprop", 5, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let rate = call.input::<T>(2)[0];
    let (p, s, v) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    pieces::<T>(call, 1, |at, g| this.apply(&mut p[at..], &mut s[at..], &mut v[at..], g, rate));
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
            call.output::<T>(0)[0] = update::clip_factor(call.input::<T>(0)[0], self.limit);
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
                update::decay(call.update::<T>(0, 0), p, factor);
                return Ok(());
            }
            let ((rows, values), (to, out)) = (call.rows::<T>(0), call.rows_out::<T>(0));
            to.copy_from_slice(rows);
            out.copy_from_slice(values);
            let width = call.dims(0)[1..].iter().product::<usize>().max(1);
            for (&row, g) in rows.iter().zip(out.chunks_exact_mut(width)) {
                if let Ok(row) = usize::try_from(row) {
                    update::decay(g, &p[row * width..], factor);
                }
            }
        });
        Ok(())
    }
}
