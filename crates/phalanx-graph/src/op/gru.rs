//! Gated recurrent units over whole sequences, with PyTorch's equations and order of gates: r, z, n.

use super::{
    Operator, check,
    ragged::Ragged,
    rnn::{CellPosition, Sizes, Slots, WeightLayout, along, append_grad, parts, parts_mut, recurrent, state},
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
        let sizes =
            Sizes { n: dims[0][0], time: dims[0][1], h: dims[1][1], gates: 3, layout: WeightLayout::Rows };
        (dims[0][0] * dims[0][2] + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.forward::<T>(call)?);
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let fixed = |grad: &Grad<'_>| vec![grad.x(1), grad.x(3), grad.y(0), grad.y(2)];
        append_grad(grad, 3, self.ragged, fixed, |given| GruGrad { gru: *self, given }.into())
    }
}

impl Gru {
    fn forward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = Sizes {
            n: call.dims(0)[0],
            time: call.dims(0)[1],
            h: call.dims(1)[1],
            gates: 3,
            layout: WeightLayout::Rows,
        };
        let Sizes { n, time, h, .. } = sizes;
        let ragged = Ragged::new(call, self.ragged.then_some(4), n, time)?;
        let (x, w, b) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
        let (y, last, gates) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        last.copy_from_slice(call.input(3));
        ragged.blank(y, T::ZERO);
        ragged.blank(gates, T::ZERO);
        let scratch = call.workspace::<T>().split_at_mut(n * 3 * h);
        let [br, bz, bn] = parts(b, h);
        sizes.forward(
            (&ragged, self.reverse),
            w,
            last,
            scratch,
            #[inline(always)]
            |hs, said, _, row| {
                let [xr, xz, xn] = parts(&x[row * 3 * h..][..3 * h], h);
                let [ar, az, an] = parts(said, h);
                let [r, z, new, inner] = parts_mut(&mut gates[row * 4 * h..][..4 * h], h);
                let out = &mut y[row * h..][..h];
                for j in 0..h {
                    r[j] = (xr[j] + ar[j] + br[j]).sigmoid();
                    z[j] = (xz[j] + az[j] + bz[j]).sigmoid();
                    inner[j] = an[j] + bn[j];
                    new[j] = (xn[j] + r[j] * inner[j]).tanh();
                    hs[j] = (T::ONE - z[j]) * new[j] + z[j] * hs[j];
                    out[j] = hs[j];
                }
            },
        );
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
    fn slots(&self) -> Slots<'_> {
        Slots { fixed: 4, given: &self.given, ragged: self.gru.ragged }
    }

    fn backward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = Sizes {
            n: call.dims(2)[0],
            time: call.dims(2)[1],
            h: call.dims(0)[1],
            gates: 3,
            layout: WeightLayout::Rows,
        };
        let Sizes { n, time, h, .. } = sizes;
        let reverse = self.gru.reverse;
        let ragged = Ragged::new(call, self.slots().lengths(), n, time)?;
        let (w, gates) = (call.input::<T>(0), call.input::<T>(3));
        let dy = self.slots().of(0).map(|slot| call.input::<T>(slot));
        let (dx, dw, db) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        let dh = call.output::<T>(3);
        match self.slots().of(1) {
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
        sizes.backward(
            (&ragged, reverse),
            w,
            (dy, dh),
            (now, earlier, scratch),
            #[inline(always)]
            |dh, now, CellPosition { row, .. }| {
                let [r, z, new, inner] = parts(&gates[row * 4 * h..][..4 * h], h);
                let past = &before[row * h..][..h];
                let [dr, dz, dn] = parts_mut(now, h);
                let [xr, xz, xn] = parts_mut(&mut dx[row * 3 * h..][..3 * h], h);
                for j in 0..h {
                    let d_new = dh[j] * (T::ONE - z[j]) * (T::ONE - new[j] * new[j]);
                    dr[j] = d_new * inner[j] * r[j] * (T::ONE - r[j]);
                    dz[j] = dh[j] * (past[j] - new[j]) * z[j] * (T::ONE - z[j]);
                    dn[j] = d_new * r[j];
                    (xr[j], xz[j], xn[j]) = (dr[j], dz[j], d_new);
                    dh[j] *= z[j];
                }
                said[row * 3 * h..][..3 * h].copy_from_slice(now);
            },
            // What ended before has a row of zeros here.
            |_, dh, earlier| dh.iter_mut().zip(earlier).for_each(|(d, &e)| *d += e),
        );
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
        check::count(inputs, self.slots().count())?;
        let (_, wide) = super::ragged::sequence(inputs, 3)?;
        let h = wide / 4;
        let x = along(&inputs[3], 3 * h);
        recurrent(&[&x, &inputs[0], &inputs[1]].map(Sig::clone), 3, 2..3, false)?;
        let (all, last) = (along(&x, h).shape, state(&x, h).shape);
        check::shaped(inputs, 2, x.dtype, &all)?;
        check::shaped(inputs, 3, x.dtype, &along(&x, 4 * h).shape)?;
        self.slots().check(inputs, &[&all, &last], 3)?;
        let dense = |shape: Shape| Sig::dense(x.dtype, shape);
        let (weights, bias) = (dense(Shape::from([3 * h, h])), dense(Shape::from([3 * h])));
        Ok(vec![x.clone(), weights, bias, inputs[1].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, time, h) = (dims[2][0], dims[2][1], dims[2][2]);
        let sizes = Sizes { n, time, h, gates: 3, layout: WeightLayout::Rows };
        (n * 3 * h + n * h + n * time * 4 * h + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.backward::<T>(call)?);
        Ok(())
    }
}
