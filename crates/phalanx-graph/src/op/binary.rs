//! Arithmetic and comparisons of two tensors. The second is stretched over the first: its first axis lies on `axis`,
//! and what it lacks or has only once is repeated.

use super::{Func, Operator, Unary, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Shape, Sig, VarId},
    kernel::{Call, Float, KernelError, Pair, Real, Walk, fast, real, stretched, strides, sums},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
}

/// `x op y`, with `y` stretched over `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    pub op: Arith,
    pub axis: usize,
}

impl Binary {
    pub fn same(op: Arith) -> Binary {
        Binary { op, axis: 0 }
    }
}

pub(super) fn stretches(inputs: &[Sig], axis: usize) -> Result<(), Misfit> {
    check::count(inputs, 2)?;
    let (x, y) = (check::dense(inputs, 0)?, check::dense(inputs, 1)?);
    if x.dtype != y.dtype {
        return Err(Misfit::DType { slot: 1, wanted: x.dtype.name(), got: y.dtype });
    }
    let over = x.shape.dims().get(axis..axis + y.shape.rank());
    let fits = |over: &[Dim]| over.iter().zip(y.shape.dims()).all(|(a, b)| a == b || *b == Dim::Fixed(1));
    if over.is_some_and(fits) { Ok(()) } else { Err(Misfit::Pair { a: x.shape.clone(), b: y.shape.clone() }) }
}

impl Operator for Binary {
    fn name(&self) -> &'static str {
        match self.op {
            Arith::Add => "add",
            Arith::Sub => "sub",
            Arith::Mul => "mul",
            Arith::Div => "div",
            Arith::Max => "max",
            Arith::Min => "min",
        }
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        stretches(inputs, self.axis)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, y_dims) = (call.dims(0), call.dims(1));
        let walk = Walk::new(dims, [strides(dims), stretched(y_dims, dims, self.axis)]);
        real!(call.dtype(0), T => {
            let y = call.input::<T>(1);
            let x = call.pair::<T>(0, 0);
            match self.op {
                Arith::Add => zip(walk, x, y, #[inline(always)] |a, b| a + b),
                Arith::Sub => zip(walk, x, y, #[inline(always)] |a, b| a - b),
                Arith::Mul => zip(walk, x, y, #[inline(always)] |a, b| a * b),
                Arith::Div => zip(walk, x, y, #[inline(always)] |a, b| a / b),
                Arith::Max => zip(walk, x, y, #[inline(always)] |a: T, b| a.larger(b)),
                Arith::Min => zip(walk, x, y, #[inline(always)] |a: T, b| a.smaller(b)),
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (x, y, out, dy) = (grad.x(0), grad.x(1), grad.y(0), grad.dy(0));
        let axis = self.axis;
        let to = SumTo { shape: grad.sig(y).shape.clone(), axis };
        let mul = Binary { op: Arith::Mul, axis };
        match self.op {
            Arith::Add => {
                grad.pass(0, dy)?;
                narrow(grad, dy, to)?;
            }
            Arith::Sub => {
                grad.pass(0, dy)?;
                if grad.wants(1) {
                    let minus = grad.emit(Unary(Func::Scale { a: -1.0, b: 0.0 }), &[dy])?;
                    narrow(grad, minus, to)?;
                }
            }
            Arith::Mul => {
                grad.give(0, mul, &[dy, y])?;
                if grad.wants(1) {
                    let wide = grad.emit(Binary::same(Arith::Mul), &[dy, x])?;
                    narrow(grad, wide, to)?;
                }
            }
            Arith::Div => {
                let quotient = grad.emit(Binary { op: Arith::Div, axis }, &[dy, y])?;
                grad.pass(0, quotient)?;
                if grad.wants(1) {
                    let wide = grad.emit(Binary::same(Arith::Mul), &[quotient, out])?;
                    let minus = grad.emit(Unary(Func::Scale { a: -1.0, b: 0.0 }), &[wide])?;
                    narrow(grad, minus, to)?;
                }
            }
            Arith::Max | Arith::Min => {
                let less = self.op == Arith::Min;
                grad.give(0, Pick { less, first: true, axis }, &[x, y, dy])?;
                if grad.wants(1) {
                    let wide = grad.emit(Pick { less, first: false, axis }, &[x, y, dy])?;
                    narrow(grad, wide, to)?;
                }
            }
        }
        Ok(true)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// Gives the second operand what stretching made of it.
fn narrow(grad: &mut Grad<'_>, wide: VarId, to: SumTo) -> Result<bool, GraphError> {
    if grad.sig(wide).shape == to.shape { grad.pass(1, wide) } else { grad.give(1, to, &[wide]) }
}

fn zip<T: Real>(walk: Walk<2>, x: Pair<'_, T>, y: &[T], f: impl Fn(T, T) -> T + Copy) {
    let (n, [_, step]) = walk.row();
    fast(
        #[inline(always)]
        || match x {
            Pair::Same(out) => walk.each(
                #[inline(always)]
                |[o, b]| {
                    let out = &mut out[o..o + n];
                    match step {
                        0 => out.iter_mut().for_each(|a| *a = f(*a, y[b])),
                        1 => out.iter_mut().zip(&y[b..b + n]).for_each(|(a, &b)| *a = f(*a, b)),
                        _ => {
                            out.iter_mut().zip(y[b..].iter().step_by(step)).for_each(|(a, &b)| *a = f(*a, b));
                        }
                    }
                },
            ),
            Pair::Apart(x, out) => walk.each(
                #[inline(always)]
                |[o, b]| {
                    let pairs = out[o..o + n].iter_mut().zip(&x[o..o + n]);
                    match step {
                        0 => pairs.for_each(|(o, &a)| *o = f(a, y[b])),
                        1 => pairs.zip(&y[b..b + n]).for_each(|((o, &a), &b)| *o = f(a, b)),
                        _ => pairs.zip(y[b..].iter().step_by(step)).for_each(|((o, &a), &b)| *o = f(a, b)),
                    }
                },
            ),
        },
    );
}

/// The gradient where this operand of a maximum or minimum was taken, half of it where both are equal, else zero: from
/// `x`, `y` and the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pick {
    pub less: bool,
    pub first: bool,
    pub axis: usize,
}

impl Operator for Pick {
    fn name(&self) -> &'static str {
        "pick"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        stretches(&inputs[..2], self.axis)?;
        check::like(inputs, 2, 0)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, y_dims) = (call.dims(0), call.dims(1));
        let walk = Walk::new(dims, [strides(dims), stretched(y_dims, dims, self.axis)]);
        let (n, [_, step]) = walk.row();
        real!(call.dtype(0), T => {
            let (x, y) = (call.input::<T>(0), call.input::<T>(1));
            let (out, half) = (call.update::<T>(2, 0), T::of(0.5));
            walk.each(|[o, b]| {
                for i in 0..n {
                    let (a, b) = (x[o + i], y[b + i * step]);
                    let (own, other) = if self.first { (a, b) } else { (b, a) };
                    if own == other {
                        out[o + i] *= half;
                    } else if if self.less { own > other } else { own < other } {
                        out[o + i] = T::ZERO;
                    }
                }
            });
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(2, 0)]
    }
}

/// Sums what stretching repeated: the gradient of the smaller operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumTo {
    pub shape: Shape,
    pub axis: usize,
}

impl Operator for SumTo {
    fn name(&self) -> &'static str {
        "sum_to"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::real(inputs, 0)?;
        let to = Sig::dense(x.dtype, self.shape.clone());
        stretches(&[x.clone(), to.clone()], self.axis)?;
        Ok(vec![to])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, to) = (call.dims(0), call.out_dims(0));
        let walk = Walk::new(dims, [strides(dims), stretched(to, dims, self.axis)]);
        real!(call.dtype(0), T => sums(walk, call.input::<T>(0), call.output::<T>(0), |s| s));
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    Equal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    NotEqual,
}

/// Compares elements; gives booleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    pub op: Comparison,
    pub axis: usize,
}

impl Operator for Compare {
    fn name(&self) -> &'static str {
        "compare"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        stretches(inputs, self.axis)?;
        match inputs[0].dtype {
            DType::F32 | DType::F64 | DType::I64 | DType::I32 => {
                Ok(vec![Sig::dense(DType::Bool, inputs[0].shape.clone())])
            }
            got => Err(Misfit::DType { slot: 0, wanted: "f32, f64, i64 or i32", got }),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        match call.dtype(0) {
            DType::I64 => self.compare::<i64>(call),
            DType::I32 => self.compare::<i32>(call),
            other => real!(other, T => self.compare::<T>(call)),
        }
        Ok(())
    }
}

impl Compare {
    fn compare<T: bytemuck::Pod + PartialOrd>(&self, call: &mut Call<'_>) {
        let (dims, y_dims) = (call.dims(0), call.dims(1));
        let walk = Walk::new(dims, [strides(dims), stretched(y_dims, dims, self.axis)]);
        let (n, [_, step]) = walk.row();
        let (x, y, out) = (call.input::<T>(0), call.input::<T>(1), call.output::<u8>(0));
        walk.each(|[o, b]| {
            for i in 0..n {
                let (a, b) = (&x[o + i], &y[b + i * step]);
                out[o + i] = u8::from(match self.op {
                    Comparison::Equal => a == b,
                    Comparison::Less => a < b,
                    Comparison::LessEqual => a <= b,
                    Comparison::Greater => a > b,
                    Comparison::GreaterEqual => a >= b,
                    Comparison::NotEqual => a != b,
                });
            }
        });
    }
}
