//! Gated recurrent units over whole sequences, with Paddle's equations and order of gates: update, reset, candidate. The reset
//! gate acts on the state, before the product with the candidate's weights.

use super::{
    Operator, check,
    gate::GateAct,
    ragged::Ragged,
    rnn::{Sizes, Slots, WeightLayout, along, parts, parts_mut, projected, state},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, Gemm, KernelError, Mat, Real, Size, fast, real},
};
use serde::{Deserialize, Serialize};

/// From inputs times their weights `[n, time, 3h]`, weights of the state `[h, 3h]`, first state `[n, h]` and, if `ragged`, lengths
/// `[n]`: all states `[n, time, h]`, and for the gradient the gates of all time.
///
/// The weights are two matrices one after the other, as in Paddle: `[h, 2h]` of update and reset, `[h, h]` of the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetGru {
    /// From the end of each sequence to its front.
    pub reverse: bool,
    pub ragged: bool,
    /// Whether the update gate keeps the old state, as in the original paper, or takes the new one.
    pub origin: bool,
    pub gate: GateAct,
    pub candidate: GateAct,
}

impl Operator for ResetGru {
    fn name(&self) -> &'static str {
        "reset_gru"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 3 + usize::from(self.ragged))?;
        let h = projected(inputs, 3, 2..3)?;
        if self.ragged {
            super::ragged::lengths(inputs, 3, 0)?;
        }
        Ok(vec![along(&inputs[0], h), inputs[0].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let steps = Products { n: dims[0][0], time: dims[0][1], h: dims[1][0] };
        (5 * steps.n * steps.h + steps.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.forward::<T>(call)?);
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if grad.has_dy(1) {
            return Ok(false);
        }
        let mut inputs = vec![grad.x(1), grad.x(2), grad.y(0), grad.y(1), grad.dy(0)];
        inputs.extend(self.ragged.then(|| grad.x(3)));
        let found = grad.emit_all(ResetGruGrad { gru: *self }, &inputs)?;
        for (slot, d) in found.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}

/// The products of one recurrence.
#[derive(Clone, Copy, Debug)]
struct Products {
    n: usize,
    time: usize,
    h: usize,
}

impl Products {
    /// Of both gates, of the candidate; of their gradients; of the weights.
    fn sizes(&self) -> [Size; 6] {
        let Products { n, time, h } = *self;
        [
            Size { m: n, n: 2 * h, k: h },
            Size { m: n, n: h, k: h },
            Size { m: n, n: h, k: 2 * h },
            Size { m: n, n: h, k: h },
            Size { m: h, n: 2 * h, k: n * time },
            Size { m: h, n: h, k: n * time },
        ]
    }

    /// Elements of scratch memory that any of them wants.
    fn scratch(&self, element: usize) -> usize {
        let wanted = if element == size_of::<f32>() { f32::scratch } else { f64::scratch };
        self.sizes().map(wanted).into_iter().max().unwrap_or(0)
    }

    /// The states before each step, as other recurrences have them.
    fn states(&self) -> Sizes {
        Sizes { n: self.n, time: self.time, h: self.h, gates: 3, layout: WeightLayout::Columns }
    }
}

impl ResetGru {
    fn forward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let steps = Products { n: call.dims(0)[0], time: call.dims(0)[1], h: call.dims(1)[0] };
        let Products { n, time, h } = steps;
        let [both, new, ..] = steps.sizes();
        let ragged = Ragged::new(call, self.ragged.then_some(3), n, time)?;
        let x = call.input::<T>(0);
        let (w_both, w_new) = call.input::<T>(1).split_at(2 * h * h);
        let (y, gates) = (call.output::<T>(0), call.output::<T>(1));
        ragged.blank(y, T::ZERO);
        ragged.blank(gates, T::ZERO);
        let (hidden, rest) = call.workspace::<T>().split_at_mut(n * h);
        let (kept, rest) = rest.split_at_mut(n * h);
        let (z, rest) = rest.split_at_mut(2 * n * h);
        let (said, scratch) = rest.split_at_mut(n * h);
        hidden.copy_from_slice(call.input(2));
        kept.fill(T::ZERO);
        for nth in 0..ragged.longest() {
            T::gemm(both, Mat::new(hidden, h), Mat::new(w_both, 2 * h), z, false, scratch);
            fast(
                #[inline(always)]
                || {
                    for s in 0..n {
                        let Some(row) = ragged.at(s, nth, self.reverse) else { continue };
                        let now = &mut gates[row * 3 * h..][..2 * h];
                        let sums = x[row * 3 * h..][..2 * h].iter().zip(&z[s * 2 * h..][..2 * h]);
                        for (to, (&a, &b)) in now.iter_mut().zip(sums) {
                            *to = a + b;
                        }
                        self.gate.apply(now);
                        let (kept, past) = (&mut kept[s * h..][..h], &hidden[s * h..][..h]);
                        for (to, (&r, &v)) in kept.iter_mut().zip(now[h..].iter().zip(past)) {
                            *to = r * v;
                        }
                    }
                },
            );
            T::gemm(new, Mat::new(kept, h), Mat::new(w_new, h), said, false, scratch);
            fast(
                #[inline(always)]
                || {
                    for s in 0..n {
                        let Some(row) = ragged.at(s, nth, self.reverse) else { continue };
                        let [u, _, c] = parts_mut(&mut gates[row * 3 * h..][..3 * h], h);
                        let sums = x[row * 3 * h + 2 * h..][..h].iter().zip(&said[s * h..][..h]);
                        for (to, (&a, &b)) in c.iter_mut().zip(sums) {
                            *to = a + b;
                        }
                        self.candidate.apply(c);
                        let hidden = &mut hidden[s * h..][..h];
                        for j in 0..h {
                            let (keep, take) =
                                if self.origin { (u[j], T::ONE - u[j]) } else { (T::ONE - u[j], u[j]) };
                            hidden[j] = keep * hidden[j] + take * c[j];
                        }
                        y[row * h..][..h].copy_from_slice(hidden);
                    }
                },
            );
        }
        Ok(())
    }
}

/// From the weights, the first state, states and gates of all time, the gradient of the states, and the lengths: gradients of the
/// three inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetGruGrad {
    pub gru: ResetGru,
}

impl ResetGruGrad {
    fn slots(&self) -> Slots<'_> {
        Slots { fixed: 4, given: &[true], ragged: self.gru.ragged }
    }

    fn backward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let ResetGru { reverse, origin, gate, candidate, .. } = self.gru;
        let steps = Products { n: call.dims(2)[0], time: call.dims(2)[1], h: call.dims(2)[2] };
        let Products { n, time, h } = steps;
        let [.., both_back, new_back, of_both, of_new] = steps.sizes();
        let ragged = Ragged::new(call, self.slots().lengths(), n, time)?;
        let (w_both, w_new) = call.input::<T>(0).split_at(2 * h * h);
        let (gates, dy) = (call.input::<T>(3), call.input::<T>(4));
        let (dx, dw, dh) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        dh.fill(T::ZERO);
        ragged.blank(dx, T::ZERO);
        let (d_both, rest) = call.workspace::<T>().split_at_mut(2 * n * h);
        let (d_new, rest) = rest.split_at_mut(n * h);
        let (earlier, rest) = rest.split_at_mut(n * h);
        let (before, scratch) = rest.split_at_mut(n * time * h);
        steps.states().before(&ragged, reverse, call.input(1), call.input(2), before);
        for nth in (0..ragged.longest()).rev() {
            fast(
                #[inline(always)]
                || {
                    for s in 0..n {
                        let (both, new) = (&mut d_both[s * 2 * h..][..2 * h], &mut d_new[s * h..][..h]);
                        let Some(row) = ragged.at(s, nth, reverse) else {
                            both.fill(T::ZERO);
                            new.fill(T::ZERO);
                            continue;
                        };
                        let [u, _, c] = parts(&gates[row * 3 * h..][..3 * h], h);
                        let (past, dh) = (&before[row * h..][..h], &mut dh[s * h..][..h]);
                        let (given, du) = (&dy[row * h..][..h], &mut both[..h]);
                        for j in 0..h {
                            let d = dh[j] + given[j];
                            let (keep, take, turn) =
                                if origin { (u[j], T::ONE - u[j], -d) } else { (T::ONE - u[j], u[j], d) };
                            du[j] = turn * (c[j] - past[j]);
                            new[j] = d * take;
                            dh[j] = d * keep;
                        }
                        gate.back(u, du);
                        candidate.back(c, new);
                        let dx = &mut dx[row * 3 * h..][..3 * h];
                        dx[..h].copy_from_slice(du);
                        dx[2 * h..].copy_from_slice(new);
                    }
                },
            );
            T::gemm(new_back, Mat::new(d_new, h), Mat::new(w_new, h).t(), earlier, false, scratch);
            fast(
                #[inline(always)]
                || {
                    for s in 0..n {
                        let Some(row) = ragged.at(s, nth, reverse) else { continue };
                        let [_, r, _] = parts(&gates[row * 3 * h..][..3 * h], h);
                        let (past, dh) = (&before[row * h..][..h], &mut dh[s * h..][..h]);
                        let (d_kept, dr) = (&earlier[s * h..][..h], &mut d_both[s * 2 * h + h..][..h]);
                        for j in 0..h {
                            dr[j] = d_kept[j] * past[j];
                            dh[j] += d_kept[j] * r[j];
                        }
                        gate.back(r, dr);
                        dx[row * 3 * h + h..][..h].copy_from_slice(dr);
                    }
                },
            );
            T::gemm(both_back, Mat::new(d_both, 2 * h), Mat::new(w_both, 2 * h).t(), earlier, false, scratch);
            // What ended before has a row of zeros here.
            dh.iter_mut().zip(&*earlier).for_each(|(d, &e)| *d += e);
        }
        let (dw_both, dw_new) = dw.split_at_mut(2 * h * h);
        T::gemm(of_both, Mat::new(before, h).t(), Mat::new(dx, 3 * h), dw_both, false, scratch);
        for (row, kept) in before.chunks_exact_mut(h).enumerate() {
            let r = &gates[row * 3 * h + h..][..h];
            kept.iter_mut().zip(r).for_each(|(v, &r)| *v *= r);
        }
        let new = dx.get(2 * h..).unwrap_or_default();
        T::gemm(of_new, Mat::new(before, h).t(), Mat::new(new, 3 * h), dw_new, false, scratch);
        Ok(())
    }
}

impl Operator for ResetGruGrad {
    fn name(&self) -> &'static str {
        "reset_gru_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, self.slots().count())?;
        // The gates have the shape of the input they came from.
        let h = projected(&[&inputs[3], &inputs[0], &inputs[1]].map(Sig::clone), 3, 2..3)?;
        let (x, all) = (&inputs[3], along(&inputs[3], h).shape);
        check::shaped(inputs, 2, x.dtype, &all)?;
        self.slots().check(inputs, &[&all], 3)?;
        Ok(vec![x.clone(), Sig::dense(x.dtype, Shape::from([h, 3 * h])), state(x, h)])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let steps = Products { n: dims[2][0], time: dims[2][1], h: dims[2][2] };
        let Products { n, time, h } = steps;
        (4 * n * h + n * time * h + steps.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.backward::<T>(call)?);
        Ok(())
    }
}
