//! More update rules of optimizers. As in `update`, sparse gradients change only the rows they have.

use super::{
    Operator, check,
    update::{fits, pieces, updater, updates},
};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, Real, fast, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Adam with the largest gradient instead of the root of the second moment. States: moment, largest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adamax {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
}

// The last input is the number of the step, from 1.
updater!(Adamax, "adamax", 6, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let (b1, b2, epsilon) = (T::of(this.beta1), T::of(this.beta2), T::of(this.epsilon));
    let step = call.input::<i64>(5)[0].max(1) as f64;
    let rate = call.input::<T>(2)[0] / T::of(1.0 - libm::pow(this.beta1, step));
    let (p, m, u) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    pieces::<T>(call, 1, |at, g| {
        let all = p[at..].iter_mut().zip(&mut m[at..]).zip(&mut u[at..]).zip(g);
        for (((p, m), u), &g) in all {
            *m = b1 * *m + (T::ONE - b1) * g;
            *u = g.abs().larger(b2 * *u + epsilon);
            *p -= rate * *m / *u;
        }
    });
});

/// Steps as long as the last ones were, by the size of gradients. States: mean of squared gradients, of squared steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adadelta {
    pub rho: f64,
    pub epsilon: f64,
}

updater!(Adadelta, "adadelta", 5, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let (rho, epsilon, rate) = (T::of(this.rho), T::of(this.epsilon), call.input::<T>(2)[0]);
    let (p, s, d) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || {
                let all = p[at..].iter_mut().zip(&mut s[at..]).zip(&mut d[at..]).zip(g);
                for (((p, s), d), &g) in all {
                    *s = rho * *s + (T::ONE - rho) * g * g;
                    let step = (*d + epsilon).sqrt() / (*s + epsilon).sqrt() * g;
                    *d = rho * *d + (T::ONE - rho) * step * step;
                    *p -= rate * step;
                }
            },
        );
    });
});

/// Adagrad that forgets. State: mean of squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecayedAdagrad {
    pub decay: f64,
    pub epsilon: f64,
}

updater!(DecayedAdagrad, "decayed_adagrad", 4, 1, &[(0, 0), (3, 1)], |this, call, T| {
    let (decay, epsilon, rate) = (T::of(this.decay), T::of(this.epsilon), call.input::<T>(2)[0]);
    let (p, s) = (call.update::<T>(0, 0), call.update::<T>(3, 1));
    pieces::<T>(call, 1, |at, g| {
        fast(
            #[inline(always)]
            || {
                for ((p, s), &g) in p[at..].iter_mut().zip(&mut s[at..]).zip(g) {
                    *s = decay * *s + (T::ONE - decay) * g * g;
                    *p -= rate * g / (s.sqrt() + epsilon);
                }
            },
        );
    });
});

/// Follow the regularized leader. States: sum of squares, linear part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ftrl {
    pub l1: f64,
    pub l2: f64,
    pub power: f64,
}

updater!(Ftrl, "ftrl", 5, 2, &[(0, 0), (3, 1), (4, 2)], |this, call, T| {
    let (l1, l2, rate) = (T::of(this.l1), T::of(this.l2), call.input::<T>(2)[0]);
    let root = |x: T| if this.power == -0.5 { x.sqrt() } else { x.pow(T::of(-this.power)) };
    let (p, s, z) = (call.update::<T>(0, 0), call.update::<T>(3, 1), call.update::<T>(4, 2));
    pieces::<T>(call, 1, |at, g| {
        for (((p, s), z), &g) in p[at..].iter_mut().zip(&mut s[at..]).zip(&mut z[at..]).zip(g) {
            let (before, after) = (root(*s), root(*s + g * g));
            *z += g - (after - before) / rate * *p;
            *s += g * g;
            let edge = if *z < T::ZERO { -l1 } else { l1 };
            let inside = z.abs() <= l1;
            *p = if inside { T::ZERO } else { (edge - *z) / (after / rate + T::of(2.0) * l2) };
        }
    });
});

/// Where LAMB goes: from parameter, gradient, rate, moments and step number, the direction and the new moments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LambDirection {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub decay: f64,
}

impl Operator for LambDirection {
    fn name(&self) -> &'static str {
        "lamb_direction"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 6)?;
        check::scalar(inputs, 5, DType::I64)?;
        check::dense(inputs, 1)?;
        updates(inputs, 2, 2)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let step = call.input::<i64>(5)[0].max(1) as f64;
        let part = |beta: f64| 1.0 - libm::pow(beta, step);
        real!(call.dtype(0), T => {
            let (b1, b2) = (T::of(self.beta1), T::of(self.beta2));
            let (first, second) = (T::of(1.0 / part(self.beta1)), T::of(1.0 / libm::sqrt(part(self.beta2))));
            let (epsilon, decay) = (T::of(self.epsilon), T::of(self.decay));
            let (p, g, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let (m, v) = (call.update::<T>(3, 1), call.update::<T>(4, 2));
            fast(#[inline(always)] || {
                for ((((out, m), v), &p), &g) in out.iter_mut().zip(m).zip(v).zip(p).zip(g) {
                    *m = b1 * *m + (T::ONE - b1) * g;
                    *v = b2 * *v + (T::ONE - b2) * g * g;
                    *out = *m * first / (v.sqrt() * second + epsilon) + decay * p;
                }
            });
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(3, 1), (4, 2)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// The rate of LAMB, from the squared norms of parameter and direction and the global rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LambRate;

impl Operator for LambRate {
    fn name(&self) -> &'static str {
        "lamb_rate"
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
            let [p, d, rate] = [0, 1, 2].map(|i| call.input::<T>(i)[0]);
            let trust = if p > T::ZERO && d > T::ZERO { p.sqrt() / d.sqrt() } else { T::ONE };
            call.output::<T>(0)[0] = rate * trust;
        });
        Ok(())
    }
}

/// `g + factor * sign(p)`: what L1 decay adds to a gradient, dense or sparse.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignDecay {
    pub factor: f64,
}

impl Operator for SignDecay {
    fn name(&self) -> &'static str {
        "sign_decay"
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
            let p = call.input::<T>(1);
            if !call.is_sparse(0) {
                self.add(call.update::<T>(0, 0), p);
                return Ok(());
            }
            let ((rows, values), (to, out)) = (call.rows::<T>(0), call.rows_out::<T>(0));
            to.copy_from_slice(rows);
            out.copy_from_slice(values);
            let width = call.dims(0)[1..].iter().product::<usize>().max(1);
            for (&row, g) in rows.iter().zip(out.chunks_exact_mut(width)) {
                if let Ok(row) = usize::try_from(row) {
                    self.add(g, &p[row * width..]);
                }
            }
        });
        Ok(())
    }
}

impl SignDecay {
    fn add<T: Real>(&self, g: &mut [T], p: &[T]) {
        let factor = T::of(self.factor);
        for (g, &p) in g.iter_mut().zip(p) {
            if p > T::ZERO {
                *g += factor;
            } else if p < T::ZERO {
                *g -= factor;
            }
        }
    }
}
