//! Functions of one element. To add one, give it a line in each of the three tables.

use super::{Fill, Operator, check};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, KernelError, Pair, Real, fast, real},
};
use serde::{Deserialize, Serialize};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Func {
    Relu,
    Relu6,
    LeakyRelu {
        slope: f64,
    },
    Elu {
        alpha: f64,
    },
    Tanh,
    Sigmoid,
    HardSigmoid,
    Softplus,
    Softsign,
    Gelu,
    Erf,
    Swish,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Square,
    Abs,
    Sign,
    Reciprocal,
    Sin,
    Cos,
    Floor,
    Ceil,
    Round,
    /// `a * x + b`
    Scale {
        a: f64,
        b: f64,
    },
    Pow {
        by: f64,
    },
    Clip {
        low: f64,
        high: f64,
    },
}

/// Which value a derivative is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Input,
    Output,
    Neither,
    /// The function is constant wherever it has a derivative.
    Flat,
}

impl Func {
    fn name(self) -> &'static str {
        match self {
            Func::Relu => "relu",
            Func::Relu6 => "relu6",
            Func::LeakyRelu { .. } => "leaky_relu",
            Func::Elu { .. } => "elu",
            Func::Tanh => "tanh",
            Func::Sigmoid => "sigmoid",
            Func::HardSigmoid => "hard_sigmoid",
            Func::Softplus => "softplus",
            Func::Softsign => "softsign",
            Func::Gelu => "gelu",
            Func::Erf => "erf",
            Func::Swish => "swish",
            Func::Exp => "exp",
            Func::Log => "log",
            Func::Sqrt => "sqrt",
            Func::Rsqrt => "rsqrt",
            Func::Square => "square",
            Func::Abs => "abs",
            Func::Sign => "sign",
            Func::Reciprocal => "reciprocal",
            Func::Sin => "sin",
            Func::Cos => "cos",
            Func::Floor => "floor",
            Func::Ceil => "ceil",
            Func::Round => "round",
            Func::Scale { .. } => "scale",
            Func::Pow { .. } => "pow",
            Func::Clip { .. } => "clip",
        }
    }

    fn derivative_from(self) -> From {
        match self {
            Func::Relu | Func::Relu6 | Func::Tanh | Func::Sigmoid | Func::HardSigmoid | Func::Exp => {
                From::Output
            }
            Func::Sqrt | Func::Rsqrt | Func::Reciprocal => From::Output,
            Func::Scale { .. } => From::Neither,
            Func::Sign | Func::Floor | Func::Ceil | Func::Round => From::Flat,
            _ => From::Input,
        }
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        let one = T::ONE;
        match self {
            Func::Relu => x.larger(T::ZERO),
            Func::Relu6 => x.larger(T::ZERO).smaller(T::of(6.0)),
            Func::LeakyRelu { slope } => {
                if x > T::ZERO {
                    x
                } else {
                    x * T::of(slope)
                }
            }
            Func::Elu { alpha } => {
                if x > T::ZERO {
                    x
                } else {
                    T::of(alpha) * (x.exp() - one)
                }
            }
            Func::Tanh => x.tanh(),
            Func::Sigmoid => x.sigmoid(),
            Func::HardSigmoid => (x * T::of(0.2) + T::of(0.5)).larger(T::ZERO).smaller(one),
            Func::Softplus => x.larger(T::ZERO) + (-x.abs()).exp().ln_1p(),
            Func::Softsign => x / (one + x.abs()),
            Func::Gelu => T::of(0.5) * x * (one + (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf()),
            Func::Erf => x.erf(),
            Func::Swish => x * x.sigmoid(),
            Func::Exp => x.exp(),
            Func::Log => x.ln(),
            Func::Sqrt => x.sqrt(),
            Func::Rsqrt => one / x.sqrt(),
            Func::Square => x * x,
            Func::Abs => x.abs(),
            Func::Sign => {
                if x > T::ZERO {
                    one
                } else if x < T::ZERO {
                    -one
                } else {
                    T::ZERO
                }
            }
            Func::Reciprocal => one / x,
            Func::Sin => x.sin(),
            Func::Cos => x.cos(),
            Func::Floor => x.floor(),
            Func::Ceil => x.ceil(),
            Func::Round => x.round(),
            Func::Scale { a, b } => x * T::of(a) + T::of(b),
            Func::Pow { by } => x.pow(T::of(by)),
            Func::Clip { low, high } => x.larger(T::of(low)).smaller(T::of(high)),
        }
    }

    /// The derivative, from the input or from the output as `derivative_from` says.
    #[inline(always)]
    fn slope<T: Real>(self, v: T) -> T {
        let (zero, one) = (T::ZERO, T::ONE);
        let step = |inside: bool| if inside { one } else { zero };
        match self {
            Func::Relu => step(v > zero),
            Func::Relu6 => step(v > zero && v < T::of(6.0)),
            Func::LeakyRelu { slope } => {
                if v > zero {
                    one
                } else {
                    T::of(slope)
                }
            }
            Func::Elu { alpha } => {
                if v > zero {
                    one
                } else {
                    T::of(alpha) * v.exp()
                }
            }
            Func::Tanh => one - v * v,
            Func::Sigmoid => v * (one - v),
            Func::HardSigmoid => {
                if v > zero && v < one {
                    T::of(0.2)
                } else {
                    zero
                }
            }
            Func::Softplus => v.sigmoid(),
            Func::Softsign => one / ((one + v.abs()) * (one + v.abs())),
            Func::Gelu => {
                let cdf = T::of(0.5) * (one + (v * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
                // 1 / sqrt(2 pi)
                cdf + v * T::of(0.398_942_280_401_432_7) * (-T::of(0.5) * v * v).exp()
            }
            // 2 / sqrt(pi)
            Func::Erf => T::of(std::f64::consts::FRAC_2_SQRT_PI) * (-v * v).exp(),
            Func::Swish => v.sigmoid() * (one + v * (one - v.sigmoid())),
            Func::Exp => v,
            Func::Log => one / v,
            Func::Sqrt => T::of(0.5) / v,
            Func::Rsqrt => T::of(-0.5) * v * v * v,
            Func::Square => v + v,
            Func::Abs => Func::Sign.value(v),
            Func::Reciprocal => -v * v,
            Func::Sin => v.cos(),
            Func::Cos => -v.sin(),
            Func::Scale { a, .. } => T::of(a),
            // Zero times infinity would be no number where `v` is zero, and x^0 is constant there too.
            Func::Pow { by: 0.0 } => zero,
            Func::Pow { by } => T::of(by) * v.pow(T::of(by - 1.0)),
            Func::Clip { low, high } => step(v >= T::of(low) && v <= T::of(high)),
            Func::Sign | Func::Floor | Func::Ceil | Func::Round => zero,
        }
    }
}

/// Applies a function to every element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unary(pub Func);

impl Operator for Unary {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => map(call.pair::<T>(0, 0), self.0));
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (of, dy) = match self.0.derivative_from() {
            From::Flat => {
                let Sig { dtype, shape, .. } = grad.sig(grad.x(0)).clone();
                return grad.give(0, Fill { dtype, shape, value: 0.0 }, &[]);
            }
            From::Input => (grad.x(0), grad.dy(0)),
            From::Output => (grad.y(0), grad.dy(0)),
            From::Neither => (grad.dy(0), grad.dy(0)),
        };
        if let Func::Scale { a, .. } = self.0 {
            return grad.give(0, Unary(Func::Scale { a, b: 0.0 }), &[dy]);
        }
        grad.give(0, UnaryGrad(self.0), &[of, dy])
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// The function is chosen outside of the loops, so that each becomes vector code of its own.
fn map<T: Real>(pair: Pair<'_, T>, func: Func) {
    macro_rules! each {
        ($($f:pat => $g:expr),* $(,)?) => {
            match func { $($f => apply(pair, #[inline(always)] |x: T| $g.value(x))),*, _ => apply(pair, |x: T| func.value(x)) }
        };
    }
    each!(
        Func::Relu => Func::Relu,
        Func::Tanh => Func::Tanh,
        Func::Sigmoid => Func::Sigmoid,
        Func::Exp => Func::Exp,
        Func::Square => Func::Square,
        Func::Sqrt => Func::Sqrt,
        Func::Swish => Func::Swish,
        Func::Gelu => Func::Gelu,
        Func::Relu6 => Func::Relu6,
        Func::LeakyRelu { slope } => Func::LeakyRelu { slope },
        Func::Elu { alpha } => Func::Elu { alpha },
        Func::HardSigmoid => Func::HardSigmoid,
        Func::Rsqrt => Func::Rsqrt,
        Func::Abs => Func::Abs,
        Func::Reciprocal => Func::Reciprocal,
        Func::Clip { low, high } => Func::Clip { low, high },
        Func::Scale { a, b } => Func::Scale { a, b },
    );
}

fn apply<T: Real>(pair: Pair<'_, T>, f: impl Fn(T) -> T) {
    match pair {
        Pair::Same(out) => fast(
            #[inline(always)]
            || {
                for v in out {
                    *v = f(*v);
                }
            },
        ),
        Pair::Apart(x, out) => fast(
            #[inline(always)]
            || {
                for (o, &v) in out.iter_mut().zip(x) {
                    *o = f(v);
                }
            },
        ),
    }
}

/// Input or output, then the gradient of the output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnaryGrad(pub Func);

impl Operator for UnaryGrad {
    fn name(&self) -> &'static str {
        "unary_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        check::like(inputs, 1, 0)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => {
            let v = call.input::<T>(0);
            let func = self.0;
            let dx = call.pair::<T>(1, 0);
            match func {
                Func::Relu => times(v, dx, #[inline(always)] |x| Func::Relu.slope(x)),
                Func::Tanh => times(v, dx, #[inline(always)] |x| Func::Tanh.slope(x)),
                Func::Sigmoid => times(v, dx, #[inline(always)] |x| Func::Sigmoid.slope(x)),
                Func::Gelu => times(v, dx, #[inline(always)] |x| Func::Gelu.slope(x)),
                Func::Swish => times(v, dx, #[inline(always)] |x| Func::Swish.slope(x)),
                Func::Square => times(v, dx, #[inline(always)] |x| Func::Square.slope(x)),
                Func::Exp => times(v, dx, #[inline(always)] |x| Func::Exp.slope(x)),
                Func::Relu6 => times(v, dx, #[inline(always)] |x| Func::Relu6.slope(x)),
                Func::LeakyRelu { slope } => times(v, dx, #[inline(always)] |x| Func::LeakyRelu { slope }.slope(x)),
                Func::Elu { alpha } => times(v, dx, #[inline(always)] |x| Func::Elu { alpha }.slope(x)),
                _ => times(v, dx, |x| func.slope(x)),
            }
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(1, 0)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

fn times<T: Real>(v: &[T], dx: Pair<'_, T>, slope: impl Fn(T) -> T) {
    match dx {
        Pair::Same(out) => fast(
            #[inline(always)]
            || {
                for (o, &v) in out.iter_mut().zip(v) {
                    *o *= slope(v);
                }
            },
        ),
        Pair::Apart(dy, out) => fast(
            #[inline(always)]
            || {
                for ((o, &v), &d) in out.iter_mut().zip(v).zip(dy) {
                    *o = d * slope(v);
                }
            },
        ),
    }
}
