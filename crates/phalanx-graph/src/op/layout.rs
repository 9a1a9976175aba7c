//! The same elements elsewhere: views, transposes, pieces, repetitions.

use super::{Operator, SumTo, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, MAX_RANK, Misfit, Shape, Sig},
    kernel::{Call, KernelError, Pair, Walk, stretched, strides},
};
use bytemuck::Pod;
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// Copies of elements do not care what they mean, only how wide they are.
macro_rules! by_width {
    ($dtype:expr, $t:ident => $body:expr) => {
        match DType::size($dtype) {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(super) use by_width;

/// The same elements in the same order under another shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshape {
    pub shape: Shape,
}

impl Operator for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::dense(inputs, 0)?;
        if x.shape.volume() != self.shape.volume() {
            return Err(Misfit::Pair { a: x.shape.clone(), b: self.shape.clone() });
        }
        Ok(vec![Sig::dense(x.dtype, self.shape.clone())])
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
        let shape = grad.sig(grad.x(0)).shape.clone();
        grad.give(0, Reshape { shape }, &[grad.dy(0)])
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_view(&self) -> bool {
        true
    }
}

/// Axis `i` of the output is axis `order[i]` of the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transpose {
    pub order: Vec<usize>,
}

impl Operator for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::dense(inputs, 0)?;
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.shape.rank()) {
            let (wanted, got) = ("every axis of the input once", format!("{:?}", self.order));
            return Err(Misfit::Attribute { name: "order", wanted, got });
        }
        let dims: Vec<Dim> = self.order.iter().map(|&i| x.shape.dims()[i]).collect();
        Ok(vec![Sig::dense(x.dtype, dims)])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, out_dims) = (call.dims(0), call.out_dims(0));
        let own = strides(dims);
        let mut from = [0; MAX_RANK];
        for (i, &axis) in self.order.iter().enumerate() {
            from[i] = own[axis];
        }
        let walk = Walk::new(out_dims, [strides(out_dims), from]);
        by_width!(call.dtype(0), T => gather(walk, call.input::<T>(0), call.output::<T>(0)));
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let mut order = vec![0; self.order.len()];
        for (i, &axis) in self.order.iter().enumerate() {
            order[axis] = i;
        }
        grad.give(0, Transpose { order }, &[grad.dy(0)])
    }
}

fn gather<T: Pod>(walk: Walk<2>, x: &[T], out: &mut [T]) {
    let (n, [_, step]) = walk.row();
    walk.each(|[o, i]| {
        let out = &mut out[o..o + n];
        match step {
            0 => out.fill(x[i]),
            1 => out.copy_from_slice(&x[i..i + n]),
            _ => out.iter_mut().zip(x[i..].iter().step_by(step)).for_each(|(o, &v)| *o = v),
        }
    });
}

/// Tensors one after another along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concat {
    pub axis: usize,
}

impl Operator for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let Some(first) = inputs.first() else { return Err(Misfit::Count { wanted: 1, got: 0 }) };
        check::axis(self.axis, first.shape.rank(), "axis")?;
        let mut total = 0;
        for slot in 0..inputs.len() {
            let x = check::dense(inputs, slot)?;
            let mut shape = x.shape.clone();
            if shape.rank() != first.shape.rank() || x.dtype != first.dtype {
                return Err(Misfit::Pair { a: first.shape.clone(), b: shape });
            }
            total += check::fixed(inputs, slot, self.axis)?;
            shape.0[self.axis] = first.shape.dims()[self.axis];
            if shape != first.shape {
                return Err(Misfit::Pair { a: first.shape.clone(), b: x.shape.clone() });
            }
        }
        let mut out = first.clone();
        out.shape.0[self.axis] = Dim::Fixed(total);
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (outer, n, inner) = check::around(call.out_dims(0), self.axis);
        by_width!(call.dtype(0), T => {
            let out = call.output::<T>(0);
            let mut at = 0;
            for slot in 0..call.n_inputs() {
                let x = call.input::<T>(slot);
                let width = call.dims(slot)[self.axis] * inner;
                for o in 0..outer {
                    let begin = o * n * inner + at;
                    out[begin..begin + width].copy_from_slice(&x[o * width..(o + 1) * width]);
                }
                at += width;
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let mut begin = 0;
        for slot in 0..grad.n_inputs() {
            let n = grad.sig(grad.x(slot)).shape.dims()[self.axis].fixed().expect("infer saw a fixed size");
            grad.give(slot, Slice { axis: self.axis, begin, end: begin + n }, &[grad.dy(0)])?;
            begin += n;
        }
        Ok(true)
    }
}

/// A range of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub axis: usize,
    pub begin: usize,
    pub end: usize,
}

impl Slice {
    fn fits(&self, inputs: &[Sig]) -> Result<(), Misfit> {
        check::axis(self.axis, inputs[0].shape.rank(), "axis")?;
        let n = check::fixed(inputs, 0, self.axis)?;
        if self.begin < self.end && self.end <= n {
            return Ok(());
        }
        let got = format!("{}..{} of {n}", self.begin, self.end);
        Err(Misfit::Attribute { name: "begin..end", wanted: "a range inside the axis", got })
    }
}

impl Operator for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let mut out = check::dense(inputs, 0)?.clone();
        self.fits(inputs)?;
        out.shape.0[self.axis] = Dim::Fixed(self.end - self.begin);
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (outer, n, inner) = check::around(call.dims(0), self.axis);
        let width = (self.end - self.begin) * inner;
        by_width!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            for o in 0..outer {
                let begin = (o * n + self.begin) * inner;
                out[o * width..(o + 1) * width].copy_from_slice(&x[begin..begin + width]);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let n = grad.sig(grad.x(0)).shape.dims()[self.axis].fixed().expect("infer saw a fixed size");
        grad.give(0, SliceGrad { slice: *self, n }, &[grad.dy(0)])
    }
}

/// Zeros around what was cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceGrad {
    pub slice: Slice,
    pub n: usize,
}

impl Operator for SliceGrad {
    fn name(&self) -> &'static str {
        "slice_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let mut out = check::dense(inputs, 0)?.clone();
        check::axis(self.slice.axis, out.shape.rank(), "axis")?;
        out.shape.0[self.slice.axis] = Dim::Fixed(self.n);
        self.slice.fits(std::slice::from_ref(&out))?;
        if check::fixed(inputs, 0, self.slice.axis)? != self.slice.end - self.slice.begin {
            return Err(Misfit::Pair { a: inputs[0].shape.clone(), b: out.shape });
        }
        Ok(vec![out])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (outer, n, inner) = check::around(call.out_dims(0), self.slice.axis);
        let width = (self.slice.end - self.slice.begin) * inner;
        by_width!(call.dtype(0), T => {
            let (x, out) = (call.input::<T>(0), call.output::<T>(0));
            out.fill(0);
            for o in 0..outer {
                let begin = (o * n + self.slice.begin) * inner;
                out[begin..begin + width].copy_from_slice(&x[o * width..(o + 1) * width]);
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        grad.give(0, self.slice, &[grad.dy(0)])
    }
}

/// Repeats a tensor over a larger shape, as arithmetic does with its second operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expand {
    pub shape: Shape,
    pub axis: usize,
}

impl Operator for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 1)?;
        let x = check::dense(inputs, 0)?;
        let over = self.shape.dims().get(self.axis..self.axis.saturating_add(x.shape.rank()));
        let fits = |over: &[Dim]| over.iter().zip(x.shape.dims()).all(|(a, b)| a == b || *b == Dim::Fixed(1));
        if !over.is_some_and(fits) {
            return Err(Misfit::Pair { a: self.shape.clone(), b: x.shape.clone() });
        }
        Ok(vec![Sig::dense(x.dtype, self.shape.clone())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dims, out_dims) = (call.dims(0), call.out_dims(0));
        let walk = Walk::new(out_dims, [strides(out_dims), stretched(dims, out_dims, self.axis)]);
        by_width!(call.dtype(0), T => gather(walk, call.input::<T>(0), call.output::<T>(0)));
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let shape = grad.sig(grad.x(0)).shape.clone();
        grad.give(0, SumTo { shape, axis: self.axis }, &[grad.dy(0)])
    }
}
