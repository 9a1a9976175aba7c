//! Gated recurrent units over a sequence, all steps in one operation. They begin with zeros.

use super::{
    Operator, check,
    recurrent::{Walk, sequence},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, Gemm, KernelError, Mat, Real, Size, fast, real},
};
use serde::{Deserialize, Serialize};

/// From `[n, t, 3 h]`, what each step's input and the biases add to the gates, weights `[h, 3 h]` and the bias `[h]` that
/// the candidate's reset gate covers: gives outputs `[n, t, h]` and for the gradient gates `[n, t, 4 h]`: reset, update,
/// candidate, and what the reset gate was multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gru {
    /// Begins with the last step.
    pub reverse: bool,
}

impl Operator for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3)?;
        let out = sequence(inputs, 0, 1, 3)?;
        let h = check::fixed(inputs, 1, 0)?;
        check::shaped(inputs, 2, out.dtype, &Shape(vec![h.into()]))?;
        let mut gates = out.clone();
        gates.shape.0[2] = (4 * h).into();
        Ok(vec![out, gates])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, h) = (dims[0][0], dims[1][0]);
        element * (3 * n * h + super::recurrent::scratch(element, [Size { m: n, n: 3 * h, k: h }]))
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let walk = Walk::new(call.dims(0), call.dims(1), self.reverse);
        let (n, h) = (walk.n, walk.h);
        real!(call.dtype(0), T => {
            let [x, w, bias] = [0, 1, 2].map(|i| call.input::<T>(i));
            let (y, gates) = (call.output::<T>(0), call.output::<T>(1));
            let (sums, scratch) = call.workspace::<T>().split_at_mut(3 * n * h);
            for (at, before) in walk.steps() {
                match before {
                    None => sums.fill(T::ZERO),
                    Some(before) => {
                        let size = Size { m: n, n: 3 * h, k: h };
                        T::gemm(size, walk.matrix(y, before, h), Mat::new(w, 3 * h), sums, false, scratch);
                    }
                }
                for i in 0..n {
                    let (one, gates) = (walk.row(i, at, h), &mut gates[walk.row(i, at, 4 * h)]);
                    forward(&x[walk.row(i, at, 3 * h)], &sums[3 * i * h..3 * (i + 1) * h], bias, gates);
                    for j in 0..h {
                        let held = before.map_or(T::ZERO, |b| y[walk.row(i, b, h).start + j]);
                        let (update, new) = (gates[h + j], gates[2 * h + j]);
                        y[one.start + j] = (T::ONE - update) * new + update * held;
                    }
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if grad.has_dy(1) {
            return Ok(false);
        }
        let inputs = [grad.x(1), grad.y(0), grad.y(1), grad.dy(0)];
        let all = grad.emit_all(GruGrad { of: *self }, &inputs)?;
        for (slot, d) in all.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}

/// The gates, from what inputs and the last output add to them.
fn forward<T: Real>(x: &[T], sums: &[T], bias: &[T], gates: &mut [T]) {
    let h = bias.len();
    let (x, sums, gates) = (&x[..3 * h], &sums[..3 * h], &mut gates[..4 * h]);
    fast(
        #[inline(always)]
        || {
            for j in 0..2 * h {
                gates[j] = (x[j] + sums[j]).sigmoid();
            }
            for j in 0..h {
                gates[3 * h + j] = sums[2 * h + j] + bias[j];
                gates[2 * h + j] = (x[2 * h + j] + gates[j] * gates[3 * h + j]).tanh();
            }
        },
    );
}

/// From weights, outputs, gates and the gradient of the outputs: those of what goes into the gates, of the weights and of
/// the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GruGrad {
    pub of: Gru,
}

fn sizes(n: usize, h: usize) -> [Size; 2] {
    [Size { m: n, n: h, k: 3 * h }, Size { m: h, n: 3 * h, k: n }]
}

impl Operator for GruGrad {
    fn name(&self) -> &'static str {
        "gru_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4)?;
        let h = check::fixed(inputs, 0, 0)?;
        let mut x = check::real(inputs, 1)?.clone();
        check::rank(inputs, 1, 3, "3 ([n, t, h])")?;
        check::like(inputs, 3, 1)?;
        x.shape.0[2] = (4 * h).into();
        check::shaped(inputs, 2, x.dtype, &x.shape)?;
        x.shape.0[2] = (3 * h).into();
        sequence(&[x.clone(), inputs[0].clone()], 0, 1, 3)?;
        let bias = Sig::dense(x.dtype, Shape(vec![h.into()]));
        Ok(vec![x, inputs[0].clone(), bias])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, h) = (dims[1][0], dims[0][0]);
        element * (4 * n * h + super::recurrent::scratch(element, sizes(n, h)))
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let walk = Walk::new(call.dims(1), call.dims(0), self.of.reverse);
        let (n, h) = (walk.n, walk.h);
        real!(call.dtype(0), T => {
            let [w, y, gates, dy] = [0, 1, 2, 3].map(|i| call.input::<T>(i));
            let (dx, dw, dbias) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            let (dh, rest) = call.workspace::<T>().split_at_mut(n * h);
            let (hidden, scratch) = rest.split_at_mut(3 * n * h);
            dh.fill(T::ZERO);
            dw.fill(T::ZERO);
            dbias.fill(T::ZERO);
            for (at, before) in walk.steps().rev() {
                for i in 0..n {
                    let one = walk.row(i, at, h);
                    let (gates, dx) = (&gates[walk.row(i, at, 4 * h)], &mut dx[walk.row(i, at, 3 * h)]);
                    let hidden = &mut hidden[3 * i * h..3 * (i + 1) * h];
                    for j in 0..h {
                        let [reset, update, new, inner] = [0, 1, 2, 3].map(|g| gates[g * h + j]);
                        let held = before.map_or(T::ZERO, |b| y[walk.row(i, b, h).start + j]);
                        let d = dy[one.start + j] + dh[i * h + j];
                        let slope = d * (T::ONE - update) * (T::ONE - new * new);
                        dx[j] = slope * inner * reset * (T::ONE - reset);
                        dx[h + j] = d * (held - new) * update * (T::ONE - update);
                        dx[2 * h + j] = slope;
                        (hidden[j], hidden[h + j], hidden[2 * h + j]) = (dx[j], dx[h + j], slope * reset);
                        dbias[j] += slope * reset;
                        dh[i * h + j] = d * update;
                    }
                }
                let Some(before) = before else { continue };
                let [back, weights] = sizes(n, h);
                let d = Mat::new(hidden, 3 * h);
                T::gemm(back, d, Mat::new(w, 3 * h).t(), dh, true, scratch);
                T::gemm(weights, walk.matrix(y, before, h).t(), d, dw, true, scratch);
            }
        });
        Ok(())
    }
}
