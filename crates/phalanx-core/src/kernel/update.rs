//! The update rules of optimizers: what one step does to a stretch of a parameter and its states.
//!
//! Static programs and servers of tables call the same loops.
//! - UPD-1: an element's bits depend on its own values, the rule and the step number alone: not on the stretch it is in, the vector unit, or who
//!   calls.

use super::float::{Float, fast};
use serde::{Deserialize, Serialize};

/// `p -= rate * g`
#[inline(always)]
pub fn sgd<T: Float>(p: &mut [T], g: &[T], rate: T) {
    fast(
        #[inline(always)]
        || p.iter_mut().zip(g).for_each(|(p, &g)| *p -= rate * g),
    );
}

/// State: velocity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Momentum {
    pub mu: f64,
    pub nesterov: bool,
    /// Whether the rate is part of the velocity (LARS) or scales it.
    pub rate_inside: bool,
}

impl Momentum {
    #[inline(always)]
    pub fn apply<T: Float>(self, p: &mut [T], v: &mut [T], g: &[T], rate: T) {
        let mu = T::of(self.mu);
        let (inner, outer) = if self.rate_inside { (rate, T::ONE) } else { (T::ONE, rate) };
        fast(
            #[inline(always)]
            || {
                for ((p, v), &g) in p.iter_mut().zip(v).zip(g) {
                    *v = mu * *v + inner * g;
                    let step = if self.nesterov { inner * g + mu * *v } else { *v };
                    *p -= outer * step;
                }
            },
        );
    }
}

/// States: first and second moment. With `decay` it is AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub decay: f64,
    /// Whether epsilon is added before the correction of the second moment, as PyTorch's `SparseAdam` does, or after it.
    #[serde(default)]
    pub epsilon_first: bool,
}

impl Adam {
    /// What the rule needs to know of a step; steps count from 1.
    #[inline(always)]
    pub fn at<T: Float>(self, step: i64, rate: T) -> AdamStep<T> {
        let step = step.max(1) as f64;
        let second = 1.0 / libm::sqrt(1.0 - libm::pow(self.beta2, step));
        AdamStep {
            b1: T::of(self.beta1),
            b2: T::of(self.beta2),
            rate,
            keep: T::ONE - rate * T::of(self.decay),
            first: T::of(1.0 / (1.0 - libm::pow(self.beta1, step))),
            second: T::of(second),
            // The correction divides the root; so it multiplies what is added to it.
            epsilon: T::of(if self.epsilon_first { self.epsilon * second } else { self.epsilon }),
        }
    }
}

/// The numbers of one step of Adam.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep<T> {
    b1: T,
    b2: T,
    rate: T,
    keep: T,
    first: T,
    second: T,
    epsilon: T,
}

impl<T: Float> AdamStep<T> {
    #[inline(always)]
    pub fn apply(self, p: &mut [T], m: &mut [T], v: &mut [T], g: &[T]) {
        let AdamStep { b1, b2, rate, keep, first, second, epsilon } = self;
        let (c1, c2) = (T::ONE - b1, T::ONE - b2);
        fast(
            #[inline(always)]
            || {
                for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(g) {
                    *m = b1 * *m + c1 * g;
                    *v = b2 * *v + c2 * g * g;
                    *p = *p * keep - rate * (*m * first) / (v.sqrt() * second + epsilon);
                }
            },
        );
    }
}

/// State: sum of squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    pub epsilon: f64,
}

impl Adagrad {
    #[inline(always)]
    pub fn apply<T: Float>(self, p: &mut [T], s: &mut [T], g: &[T], rate: T) {
        let epsilon = T::of(self.epsilon);
        fast(
            #[inline(always)]
            || {
                for ((p, s), &g) in p.iter_mut().zip(s).zip(g) {
                    *s += g * g;
                    *p -= rate * g / (s.sqrt() + epsilon);
                }
            },
        );
    }
}

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

impl RmsProp {
    #[inline(always)]
    pub fn apply<T: Float>(self, p: &mut [T], s: &mut [T], v: &mut [T], g: &[T], rate: T) {
        let (rho, epsilon, mu) = (T::of(self.rho), T::of(self.epsilon), T::of(self.mu));
        let (inside, outside) = if self.under_root { (epsilon, T::ZERO) } else { (T::ZERO, epsilon) };
        fast(
            #[inline(always)]
            || {
                for (((p, s), v), &g) in p.iter_mut().zip(s).zip(v).zip(g) {
                    *s = rho * *s + (T::ONE - rho) * g * g;
                    *v = mu * *v + rate * g / ((*s + inside).sqrt() + outside);
                    *p -= *v;
                }
            },
        );
    }
}

/// `g + factor * p`: what decay adds to a gradient.
#[inline(always)]
pub fn decay<T: Float>(g: &mut [T], p: &[T], factor: T) {
    fast(
        #[inline(always)]
        || g.iter_mut().zip(p).for_each(|(g, &p)| *g += factor * p),
    );
}

/// What to multiply with so that a norm stays below the limit, from the squared norm.
#[inline(always)]
pub fn clip_factor<T: Float>(squared: T, limit: f64) -> T {
    let (norm, limit) = (squared.sqrt(), T::of(limit));
    if norm > limit { limit / norm } else { T::ONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    type Apply = fn(&mut [f32], &mut [f32], &mut [f32], &[f32]);

    const RULES: [(&str, Apply); 5] = [
        ("sgd", |p, _, _, g| sgd(p, g, 0.1)),
        ("momentum", |p, a, _, g| {
            Momentum { mu: 0.9, nesterov: true, rate_inside: false }.apply(p, a, g, 0.1);
        }),
        ("adam", |p, a, b, g| {
            let adam = Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, decay: 0.1, epsilon_first: true };
            adam.at(3, 0.1).apply(p, a, b, g);
        }),
        ("adagrad", |p, a, _, g| Adagrad { epsilon: 1e-6 }.apply(p, a, g, 0.1)),
        ("rmsprop", |p, a, b, g| {
            RmsProp { rho: 0.9, epsilon: 1e-6, mu: 0.5, under_root: true }.apply(p, a, b, g, 0.1);
        }),
    ];

    #[test]
    fn an_elements_bits_do_not_depend_on_the_stretch_it_is_in() {
        const N: usize = 67;
        for (name, apply) in RULES {
            let states = || (numbers(N, 1), numbers(N, 2).iter().map(|v| v.abs()).collect::<Vec<f32>>());
            let g = numbers(N, 3);
            let ((mut p, mut a), mut b) =
                (states(), numbers(N, 4).iter().map(|v| v.abs()).collect::<Vec<f32>>());
            let (mut p1, mut a1, mut b1) = (p.clone(), a.clone(), b.clone());
            apply(&mut p, &mut a, &mut b, &g);
            for i in 0..N {
                apply(&mut p1[i..=i], &mut a1[i..=i], &mut b1[i..=i], &g[i..=i]);
            }
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!((bits(&p), bits(&a), bits(&b)), (bits(&p1), bits(&a1), bits(&b1)), "UPD-1: {name}");
            assert_ne!(bits(&p), bits(&numbers(N, 1)), "{name} changes something");
        }
    }

    #[test]
    fn epsilon_stands_where_the_rule_says() {
        let adam = |epsilon_first| {
            let rule = Adam { beta1: 0.0, beta2: 0.75, epsilon: 1.0, decay: 0.0, epsilon_first };
            let (mut p, mut m, mut v) = ([0.0f64], [0.0], [0.0]);
            rule.at(1, 1.0).apply(&mut p, &mut m, &mut v, &[2.0]);
            p[0]
        };
        // The second moment is 1 of 4; its corrected root is 2, its own root 1.
        assert_eq!(adam(false), -2.0 / (2.0 + 1.0));
        assert_eq!(adam(true), -2.0 / (2.0 * (1.0 + 1.0)));
    }

    #[test]
    fn a_norm_above_the_limit_is_cut_to_it() {
        assert_eq!((clip_factor(16.0f32, 2.0), clip_factor(16.0f64, 8.0)), (0.5, 1.0));
    }
}
