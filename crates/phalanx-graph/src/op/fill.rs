//! Constants, copies, conversions and sums of equals.

use super::{Operator, check, layout::by_width};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig, Storage},
    kernel::{Call, Float, KernelError, Pair, Real, fast, real},
};
use half::{bf16, f16};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// One value everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    pub dtype: DType,
    pub shape: Shape,
    pub value: f64,
}

impl Operator for Fill {
    fn name(&self) -> &'static str {
        "fill_constant"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 0)?;
        match self.dtype {
            DType::F32 | DType::F64 | DType::I64 | DType::I32 => {
                Ok(vec![Sig::dense(self.dtype, self.shape.clone())])
            }
            got => {
                Err(Misfit::Attribute { name: "dtype", wanted: "f32, f64, i64 or i32", got: got.to_string() })
            }
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        match self.dtype {
            DType::I64 => call.output::<i64>(0).fill(self.value as i64),
            DType::I32 => call.output::<i32>(0).fill(self.value as i32),
            dtype => real!(dtype, T => call.output::<T>(0).fill(T::of(self.value))),
        }
        Ok(())
    }
}

/// The gradient that everything begins with: that of the loss to itself, as the run weighs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossGrad;

impl Operator for LossGrad {
    fn name(&self) -> &'static str {
        "loss_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        Ok(vec![check::real(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let scale = call.env.loss_scale;
        real!(call.dtype(0), T => call.output::<T>(0).fill(T::of(scale)));
        Ok(())
    }
}

/// A copy, dense or sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assign;

impl Operator for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        Ok(vec![check::dense(inputs, 0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        by_width!(call.dtype(0), T => {
            if let Pair::Apart(x, out) = call.pair::<T>(0, 0) {
                out.copy_from_slice(x);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.pass(0, grad.dy(0))
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// Other numbers of the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cast {
    pub to: DType,
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::dense(inputs, 0)?;
        Ok(vec![Sig::dense(self.to, x.shape.clone())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        match call.dtype(0) {
            DType::F32 => self.from(call, call.input::<f32>(0), f64::from),
            DType::F64 => self.from(call, call.input::<f64>(0), |v| v),
            DType::I64 if self.to == DType::I32 => {
                let (x, out) = (call.input::<i64>(0), call.output::<i32>(0));
                out.iter_mut().zip(x).for_each(|(o, &v)| *o = v as i32);
            }
            // Fractions do not hold all of them.
            DType::I64 if self.to == DType::I64 => {
                call.output::<i64>(0).copy_from_slice(call.input::<i64>(0));
            }
            DType::I64 => self.from(call, call.input::<i64>(0), |v| v as f64),
            DType::I32 => self.from(call, call.input::<i32>(0), f64::from),
            DType::F16 => self.from(call, call.input::<f16>(0), f64::from),
            DType::BF16 => self.from(call, call.input::<bf16>(0), f64::from),
            DType::I8 => self.from(call, call.input::<i8>(0), f64::from),
            DType::I16 => self.from(call, call.input::<i16>(0), f64::from),
            DType::U16 => self.from(call, call.input::<u16>(0), f64::from),
            DType::U8 | DType::Bool => self.from(call, call.input::<u8>(0), f64::from),
        }
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let from = grad.sig(grad.x(0)).dtype;
        if from.is_float() && self.to.is_float() {
            grad.give(0, Cast { to: from }, &[grad.dy(0)])
        } else {
            Ok(false)
        }
    }
}

impl Cast {
    fn from<A: Copy>(&self, call: &mut Call<'_>, x: &[A], wide: impl Fn(A) -> f64) {
        let values = x.iter().map(|&v| wide(v));
        match self.to {
            DType::F32 => call.output::<f32>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as f32),
            DType::F64 => call.output::<f64>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v),
            DType::I64 => call.output::<i64>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as i64),
            DType::I32 => call.output::<i32>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as i32),
            DType::Bool => {
                call.output::<u8>(0).iter_mut().zip(values).for_each(|(o, v)| *o = u8::from(v != 0.0));
            }
            DType::U8 => call.output::<u8>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as u8),
            DType::F16 => {
                call.output::<f16>(0).iter_mut().zip(values).for_each(|(o, v)| *o = f16::from_f64(v));
            }
            DType::BF16 => {
                call.output::<bf16>(0).iter_mut().zip(values).for_each(|(o, v)| *o = bf16::from_f64(v));
            }
            DType::I8 => call.output::<i8>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as i8),
            DType::I16 => call.output::<i16>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as i16),
            DType::U16 => call.output::<u16>(0).iter_mut().zip(values).for_each(|(o, v)| *o = v as u16),
        }
    }
}

/// Adds to a counter in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Increment {
    pub by: i64,
}

impl Operator for Increment {
    fn name(&self) -> &'static str {
        "increment"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::dense(inputs, 0)?;
        match (x.dtype, i32::try_from(self.by)) {
            (DType::I64, _) | (DType::I32, Ok(_)) => Ok(vec![x.clone()]),
            (DType::I32, Err(_)) => {
                Err(Misfit::Attribute { name: "by", wanted: "a number of i32", got: self.by.to_string() })
            }
            (got, _) => Err(Misfit::DType { slot: 0, wanted: "i64 or i32", got }),
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        match call.dtype(0) {
            DType::I32 => {
                call.update::<i32>(0, 0).iter_mut().for_each(|v| *v = v.wrapping_add(self.by as i32));
            }
            _ => call.update::<i64>(0, 0).iter_mut().for_each(|v| *v = v.wrapping_add(self.by)),
        }
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

/// Adds up equals in the order they are named. Sparse rows are put one after another, not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum;

impl Operator for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let Some(first) = inputs.first() else { return Err(Misfit::Count { wanted: 1, got: 0 }) };
        if first.is_dense() {
            for slot in 0..inputs.len() {
                check::real(inputs, slot)?;
                check::like(inputs, slot, 0)?;
            }
            return Ok(vec![first.clone()]);
        }
        let mut all = first.clone();
        for (slot, x) in inputs.iter().enumerate().skip(1) {
            let fits = x.form == first.form
                && x.dtype == first.dtype
                && x.shape.dims().get(1..) == first.shape.dims().get(1..);
            let rows = all.shape.dims().first().zip(x.shape.dims().first()).and_then(|(a, b)| a.plus(*b));
            match rows {
                Some(rows) if fits => all.shape.0[0] = rows,
                _ if x.form == Storage::Dense => return Err(Misfit::Dense { slot }),
                _ => return Err(Misfit::Pair { a: first.shape.clone(), b: x.shape.clone() }),
            }
        }
        Ok(vec![all])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => if call.is_sparse(0) { append::<T>(call) } else { add::<T>(call) });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        for slot in 0..grad.n_inputs() {
            grad.pass(slot, grad.dy(0))?;
        }
        Ok(true)
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

fn add<T: Real>(call: &mut Call<'_>) {
    let out = call.update::<T>(0, 0);
    for slot in 1..call.n_inputs() {
        let x = call.input::<T>(slot);
        fast(
            #[inline(always)]
            || out.iter_mut().zip(x).for_each(|(o, &v)| *o += v),
        );
    }
}

fn append<T: Real>(call: &mut Call<'_>) {
    let (rows, values) = call.rows_out::<T>(0);
    let (mut row, mut value) = (0, 0);
    for slot in 0..call.n_inputs() {
        let (r, v) = call.rows::<T>(slot);
        rows[row..row + r.len()].copy_from_slice(r);
        values[value..value + v.len()].copy_from_slice(v);
        (row, value) = (row + r.len(), value + v.len());
    }
}
