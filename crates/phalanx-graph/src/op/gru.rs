//! Gated recurrent units over whole sequences, with PyTorch's equations and order of gates: r, z, n.

use super::{
    Operator, check,
    ragged::{Ragged, lengths},
    rnn::{Sizes, along, parts, parts_mut, recurrent, state},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, KernelError, Real, columns, fast, real},
};
use serde::{Deserialize, Serialize};

/// From inputs times their weights `[n, time, 3h]`, weights of the state `[3h, h]` and their bias `[3h]`, first state
/// `[n, h]` and, if `ragged`, lengths `[n]`: all states `[n, time, h]`, the last state of each sequence, and for the
/// gradient the gates of all time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gru {
    /// From the end of each sequence to its front.
    pub reverse: bool,
    pub ragged: bool,
}

impl Operator for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4 + usize::from(self.ragged))?;
        let mut core = inputs.to_vec();
        let bias = core.remove(2);
        let h = recurrent(&core, 3, 2..3, self.ragged)?;
        let x = &inputs[0];
        check::shaped(&[bias], 0, x.dtype, &Shape::from([3 * h]))?;
        Ok(vec![along(x, h), state(x, h), along(x, 4 * h)])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let sizes = Sizes { n: dims[0][0], time: dims[0][1], h: dims[1][1], gates: 3 };
        (dims[0][0] * dims[0][2] + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.forward::<T>(call)?);
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        // The gates are for the gradient only; nothing can be learned through them.
        if grad.has_dy(2) {
            return Ok(false);
        }
        let given = [0, 1].map(|slot| grad.has_dy(slot));
        let mut inputs = vec![grad.x(1), grad.x(3), grad.y(0), grad.y(2)];
        inputs.extend((0..2).filter(|&slot| given[slot]).map(|slot| grad.dy(slot)));
        if self.ragged {
            inputs.push(grad.x(4));
        }
        let found = grad.emit_all(GruGrad { gru: *self, given }, &inputs)?;
        for (slot, d) in found.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}

impl Gru {
    fn forward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = Sizes { n: call.dims(0)[0], time: call.dims(0)[1], h: call.dims(1)[1], gates: 3 };
        let Sizes { n, time, h, .. } = sizes;
        let ragged = Ragged::new(call, self.ragged.then_some(4), n, time)?;
        let (x, w, b) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
        let (y, last, gates) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        last.copy_from_slice(call.input(3));
        ragged.blank(y, T::ZERO);
        ragged.blank(gates, T::ZERO);
        let (said, scratch) = call.workspace::<T>().split_at_mut(n * 3 * h);
        let [br, bz, bn] = parts(b, h);
        for nth in 0..ragged.longest() {
            sizes.forth(last, w, said, scratch);
            fast(
                #[inline(always)]
                || {
                    for s in 0..n {
                        let Some(row) = ragged.at(s, nth, self.reverse) else { continue };
                        let [xr, xz, xn] = parts(&x[row * 3 * h..][..3 * h], h);
                        let [ar, az, an] = parts(&said[s * 3 * h..][..3 * h], h);
                        let [r, z, new, inner] = parts_mut(&mut gates[row * 4 * h..][..4 * h], h);
                        let (hs, out) = (&mut last[s * h..][..h], &mut y[row * h..][..h]);
                        for j in 0..h {
                            r[j] = (xr[j] + ar[j] + br[j]).sigmoid();
                            z[j] = (xz[j] + az[j] + bz[j]).sigmoid();
                            inner[j] = an[j] + bn[j];
                            new[j] = (xn[j] + r[j] * inner[j]).tanh();
                            hs[j] = (T::ONE - z[j]) * new[j] + z[j] * hs[j];
                            out[j] = hs[j];
                        }
                    }
                },
            );
        }
        Ok(())
    }
}

/// From the weights, the first state, states and gates of all time, the gradients that were given (of all states and of
/// the last) and the lengths: gradients of the four inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GruGrad {
    pub gru: Gru,
    pub given: [bool; 2],
}

impl GruGrad {
    fn slot(&self, which: usize) -> Option<usize> {
        self.given[which].then(|| 4 + self.given[..which].iter().filter(|g| **g).count())
    }

    fn n_inputs(&self) -> usize {
        4 + self.given.iter().filter(|g| **g).count() + usize::from(self.gru.ragged)
    }

    fn backward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = Sizes { n: call.dims(2)[0], time: call.dims(2)[1], h: call.dims(0)[1], gates: 3 };
        let Sizes { n, time, h, .. } = sizes;
        let reverse = self.gru.reverse;
        let ragged = Ragged::new(call, self.gru.ragged.then(|| self.n_inputs() - 1), n, time)?;
        let (w, gates) = (call.input::<T>(0), call.input::<T>(3));
        let dy = self.slot(0).map(|slot| call.input::<T>(slot));
        let (dx, dw, db) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        let dh = call.output::<T>(3);
        match self.slot(1) {
            Some(slot) => dh.copy_from_slice(call.input(slot)),
            None => dh.fill(T::ZERO),
        }
        let (now, rest) = call.workspace::<T>().split_at_mut(n * 3 * h);
        let (earlier, rest) = rest.split_at_mut(n * h);
        let (before, rest) = rest.split_at_mut(n * time * h);
        let (said, scratch) = rest.split_at_mut(n * time * 3 * h);
        sizes.before(&ragged, reverse, call.input(1), call.input(2), before);
        ragged.blank(dx, T::ZERO);
        ragged.blank(said, T::ZERO);
        for nth in (0..ragged.longest()).rev() {
            fast(
                #[inline(always)]
                || {
                    for s in 0..n {
                        let now = &mut now[s * 3 * h..][..3 * h];
                        let Some(row) = ragged.at(s, nth, reverse) else {
                            now.fill(T::ZERO);
                            continue;
                        };
                        let [r, z, new, inner] = parts(&gates[row * 4 * h..][..4 * h], h);
                        let (dh, past) = (&mut dh[s * h..][..h], &before[row * h..][..h]);
                        if let Some(dy) = dy {
                            dh.iter_mut().zip(&dy[row * h..][..h]).for_each(|(d, &v)| *d += v);
                        }
                        let [dr, dz, dn] = parts_mut(now, h);
                        let [xr, xz, xn] = parts_mut(&mut dx[row * 3 * h..][..3 * h], h);
                        for j in 0..h {
                            let d_new = dh[j] * (T::ONE - z[j]) * (T::ONE - new[j] * new[j]);
                            dr[j] = d_new * inner[j] * r[j] * (T::ONE - r[j]);
                            dz[j] = dh[j] * (past[j] - new[j]) * z[j] * (T::ONE - z[j]);
                            dn[j] = d_new * r[j];
                            (xr[j], xz[j], xn[j]) = (dr[j], dz[j], d_new);
                            dh[j] = dh[j] * z[j];
                        }
                        said[row * 3 * h..][..3 * h].copy_from_slice(now);
                    }
                },
            );
            sizes.back(now, w, earlier, scratch);
            // What ended before has a row of zeros here.
            dh.iter_mut().zip(&*earlier).for_each(|(d, &e)| *d += e);
        }
        sizes.weights(said, before, dw, scratch);
        fast(
            #[inline(always)]
            || {
                columns(
                    said,
                    n * time,
                    #[inline(always)]
                    |row| row * 3 * h,
                    db,
                );
            },
        );
        Ok(())
    }
}

impl Operator for GruGrad {
    fn name(&self) -> &'static str {
        "gru_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, self.n_inputs())?;
        let (_, wide) = super::ragged::sequence(inputs, 3)?;
        let h = wide / 4;
        let x = along(&inputs[3], 3 * h);
        recurrent(&[&x, &inputs[0], &inputs[1]].map(Sig::clone), 3, 2..3, false)?;
        let (all, last) = (along(&x, h).shape, state(&x, h).shape);
        check::shaped(inputs, 2, x.dtype, &all)?;
        check::shaped(inputs, 3, x.dtype, &along(&x, 4 * h).shape)?;
        for (which, shape) in [&all, &last].into_iter().enumerate() {
            if let Some(slot) = self.slot(which) {
                check::shaped(inputs, slot, x.dtype, shape)?;
            }
        }
        if self.gru.ragged {
            lengths(inputs, self.n_inputs() - 1, 3)?;
        }
        let dense = |shape: Shape| Sig::dense(x.dtype, shape);
        let (weights, bias) = (dense(Shape::from([3 * h, h])), dense(Shape::from([3 * h])));
        Ok(vec![x.clone(), weights, bias, inputs[1].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, time, h) = (dims[2][0], dims[2][1], dims[2][2]);
        let sizes = Sizes { n, time, h, gates: 3 };
        (n * 3 * h + n * h + n * time * 4 * h + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.backward::<T>(call)?);
        Ok(())
    }
}
