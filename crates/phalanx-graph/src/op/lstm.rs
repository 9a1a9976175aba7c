//! Long short-term memory over a sequence, all steps in one operation. It begins with zeros.

use super::{
    Operator, check,
    recurrent::{Walk, sequence},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, Gemm, KernelError, Mat, Real, Size, fast, real},
};
use serde::{Deserialize, Serialize};

/// From `[n, t, 4 h]`, what each step's input and the biases add to the gates, and weights `[h, 4 h]`: gives outputs and
/// cells `[n, t, h]`, and the gates, for the gradient. Gates lie in the order input, forget, candidate, output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lstm {
    /// Begins with the last step.
    pub reverse: bool,
}

impl Operator for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let out = sequence(inputs, 0, 1, 4)?;
        Ok(vec![out.clone(), out, inputs[0].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, h) = (dims[0][0], dims[1][0]);
        element * (4 * n * h + super::recurrent::scratch(element, [Size { m: n, n: 4 * h, k: h }]))
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let walk = Walk::new(call.dims(0), call.dims(1), self.reverse);
        let (n, h) = (walk.n, walk.h);
        real!(call.dtype(0), T => {
            let (x, w) = (call.input::<T>(0), call.input::<T>(1));
            let (y, cells, gates) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
            let (sums, scratch) = call.workspace::<T>().split_at_mut(4 * n * h);
            for (at, before) in walk.steps() {
                match before {
                    None => sums.fill(T::ZERO),
                    Some(before) => {
                        let size = Size { m: n, n: 4 * h, k: h };
                        T::gemm(size, walk.matrix(y, before, h), Mat::new(w, 4 * h), sums, false, scratch);
                    }
                }
                for i in 0..n {
                    let (one, four) = (walk.row(i, at, h), walk.row(i, at, 4 * h));
                    // Cells of the step before are elsewhere in the same buffer.
                    let (y, gates) = (&mut y[one.clone()], &mut gates[four.clone()]);
                    let last = before.map(|b| walk.row(i, b, h));
                    let kept = &mut sums[4 * i * h..4 * (i + 1) * h];
                    kept.iter_mut().zip(&x[four]).for_each(|(s, &x)| *s += x);
                    forward(kept, gates);
                    for j in 0..h {
                        let held = last.as_ref().map_or(T::ZERO, |l| cells[l.start + j]);
                        cells[one.start + j] = gates[h + j] * held + gates[j] * gates[2 * h + j];
                    }
                    squash(&gates[3 * h..], &cells[one], y);
                }
            }
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if grad.has_dy(1) || grad.has_dy(2) {
            return Ok(false);
        }
        let inputs = [grad.x(1), grad.y(0), grad.y(1), grad.y(2), grad.dy(0)];
        let both = grad.emit_all(LstmGrad { of: *self }, &inputs)?;
        grad.pass(0, both[0])?;
        grad.pass(1, both[1])
    }
}

/// The gates from what goes into them.
fn forward<T: Real>(sums: &[T], gates: &mut [T]) {
    let h = sums.len() / 4;
    fast(
        #[inline(always)]
        || {
            for (gate, (out, sums)) in gates.chunks_exact_mut(h).zip(sums.chunks_exact(h)).enumerate() {
                let all = out.iter_mut().zip(sums);
                match gate {
                    2 => all.for_each(
                        #[inline(always)]
                        |(o, s)| *o = s.tanh(),
                    ),
                    _ => all.for_each(
                        #[inline(always)]
                        |(o, s)| *o = s.sigmoid(),
                    ),
                }
            }
        },
    );
}

fn squash<T: Real>(gate: &[T], cells: &[T], y: &mut [T]) {
    fast(
        #[inline(always)]
        || {
            for ((y, &o), c) in y.iter_mut().zip(gate).zip(cells) {
                *y = o * c.tanh();
            }
        },
    );
}

/// From weights, outputs, cells, gates and the gradient of the outputs: those of what goes into the gates, and of the
/// weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LstmGrad {
    pub of: Lstm,
}

fn sizes(n: usize, h: usize) -> [Size; 2] {
    [Size { m: n, n: h, k: 4 * h }, Size { m: h, n: 4 * h, k: n }]
}

impl Operator for LstmGrad {
    fn name(&self) -> &'static str {
        "lstm_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 5)?;
        let out = sequence(inputs, 3, 0, 4)?;
        for slot in [1, 2, 4] {
            check::shaped(inputs, slot, out.dtype, &out.shape)?;
        }
        Ok(vec![inputs[3].clone(), inputs[0].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, h) = (dims[3][0], dims[0][0]);
        element * (2 * n * h + super::recurrent::scratch(element, sizes(n, h)))
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let walk = Walk::new(call.dims(3), call.dims(0), self.of.reverse);
        let (n, h) = (walk.n, walk.h);
        real!(call.dtype(0), T => {
            let [w, y, cells, gates, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<T>(i));
            let (dx, dw) = (call.output::<T>(0), call.output::<T>(1));
            let (carried, scratch) = call.workspace::<T>().split_at_mut(2 * n * h);
            carried.fill(T::ZERO);
            dw.fill(T::ZERO);
            let (dh, dc) = carried.split_at_mut(n * h);
            for (at, before) in walk.steps().rev() {
                for i in 0..n {
                    let (one, four) = (walk.row(i, at, h), walk.row(i, at, 4 * h));
                    let (gates, dx) = (&gates[four.clone()], &mut dx[four]);
                    for j in 0..h {
                        let [i_gate, f_gate, g_gate, o_gate] = [0, 1, 2, 3].map(|g| gates[g * h + j]);
                        let held = before.map_or(T::ZERO, |b| cells[walk.row(i, b, h).start + j]);
                        let (carry, tanh) = (&mut dc[i * h + j], cells[one.start + j].tanh());
                        let d = dy[one.start + j] + dh[i * h + j];
                        let cell = *carry + d * o_gate * (T::ONE - tanh * tanh);
                        dx[j] = cell * g_gate * i_gate * (T::ONE - i_gate);
                        dx[h + j] = cell * held * f_gate * (T::ONE - f_gate);
                        dx[2 * h + j] = cell * i_gate * (T::ONE - g_gate * g_gate);
                        dx[3 * h + j] = d * tanh * o_gate * (T::ONE - o_gate);
                        *carry = cell * f_gate;
                    }
                }
                let Some(before) = before else { continue };
                let [back, weights] = sizes(n, h);
                let d = walk.matrix(dx, at, 4 * h);
                T::gemm(back, d, Mat::new(w, 4 * h).t(), dh, false, scratch);
                T::gemm(weights, walk.matrix(y, before, h).t(), d, dw, true, scratch);
            }
        });
        Ok(())
    }
}
