//! Long short-term memory over whole sequences, with PyTorch's equations and order of gates: i, f, g, o.

use super::{
    Operator, check,
    gate::{LstmCell, LstmGates, LstmStep},
    ragged::Ragged,
    rnn::{
        CellPosition, Sizes, Slots, WeightLayout, added, along, append_grad, parts, parts_mut, recurrent,
        state,
    },
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, KernelError, Real, real},
};
use serde::{Deserialize, Serialize};

/// From inputs times their weights `[n, time, 4h]`, weights of the state `[4h, h]`, first hidden and cell state `[n, h]`
/// and, if `ragged`, lengths `[n]`: all hidden states `[n, time, h]`, the last hidden and cell state of each sequence, and
/// for the gradient the gates and cells of all time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lstm {
    /// From the end of each sequence to its front.
    pub reverse: bool,
    pub ragged: bool,
}

impl Operator for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let h = recurrent(inputs, 4, 2..4, self.ragged)?;
        let x = &inputs[0];
        let (all, last) = (along(x, h), state(x, h));
        Ok(vec![all.clone(), last.clone(), last, x.clone(), all])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let sizes =
            Sizes { n: dims[0][0], time: dims[0][1], h: dims[1][1], gates: 4, layout: WeightLayout::Rows };
        (dims[0][0] * dims[0][2] + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.forward::<T>(call)?);
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let fixed = |grad: &Grad<'_>| vec![grad.x(1), grad.x(2), grad.x(3), grad.y(0), grad.y(3), grad.y(4)];
        append_grad(grad, 5, self.ragged, fixed, |given| LstmGrad { lstm: *self, given }.into())
    }
}

impl Lstm {
    fn forward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = Sizes {
            n: call.dims(0)[0],
            time: call.dims(0)[1],
            h: call.dims(1)[1],
            gates: 4,
            layout: WeightLayout::Rows,
        };
        let Sizes { n, time, h, .. } = sizes;
        let ragged = Ragged::new(call, self.ragged.then_some(4), n, time)?;
        let (x, w) = (call.input::<T>(0), call.input::<T>(1));
        let (y, hidden, cell) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        let (gates, cells) = (call.output::<T>(3), call.output::<T>(4));
        hidden.copy_from_slice(call.input(2));
        cell.copy_from_slice(call.input(3));
        for rows in [&mut *y, &mut *gates, &mut *cells] {
            ragged.blank(rows, T::ZERO);
        }
        let scratch = call.workspace::<T>().split_at_mut(n * 4 * h);
        sizes.forward(
            (&ragged, self.reverse),
            w,
            hidden,
            scratch,
            #[inline(always)]
            |hs, z, s, row| {
                let now = &mut gates[row * 4 * h..][..4 * h];
                added(now, &x[row * 4 * h..][..4 * h], z);
                let [input, forget, candidate, output] = parts_mut(now, h);
                let c = &mut cell[s * h..][..h];
                LstmCell::plain().forward(LstmGates { input, forget, candidate, output }, c, hs);
                cells[row * h..][..h].copy_from_slice(c);
                y[row * h..][..h].copy_from_slice(hs);
            },
        );
        Ok(())
    }
}

/// From the weights, the first states, hidden states, gates and cells of all time, the gradients that were given (of all
/// hidden states, the last hidden and the last cell state) and the lengths: gradients of the four inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LstmGrad {
    pub lstm: Lstm,
    pub given: [bool; 3],
}

impl LstmGrad {
    fn slots(&self) -> Slots<'_> {
        Slots { fixed: 6, given: &self.given, ragged: self.lstm.ragged }
    }

    fn backward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = Sizes {
            n: call.dims(3)[0],
            time: call.dims(3)[1],
            h: call.dims(0)[1],
            gates: 4,
            layout: WeightLayout::Rows,
        };
        let Sizes { n, time, h, .. } = sizes;
        let reverse = self.lstm.reverse;
        let ragged = Ragged::new(call, self.slots().lengths(), n, time)?;
        let (w, c0, y) = (call.input::<T>(0), call.input::<T>(2), call.input::<T>(3));
        let (gates, cells) = (call.input::<T>(4), call.input::<T>(5));
        let dy = self.slots().of(0).map(|slot| call.input::<T>(slot));
        let (dx, dw) = (call.output::<T>(0), call.output::<T>(1));
        let (dh, dc) = (call.output::<T>(2), call.output::<T>(3));
        for (which, d) in [(1, &mut *dh), (2, &mut *dc)] {
            match self.slots().of(which) {
                Some(slot) => d.copy_from_slice(call.input(slot)),
                None => d.fill(T::ZERO),
            }
        }
        let (dz, rest) = call.workspace::<T>().split_at_mut(n * 4 * h);
        let (earlier, rest) = rest.split_at_mut(n * h);
        let (before, scratch) = rest.split_at_mut(n * time * h);
        ragged.blank(dx, T::ZERO);
        sizes.backward(
            (&ragged, reverse),
            w,
            (dy, dh),
            (dz, earlier, scratch),
            #[inline(always)]
            |dh, dz, CellPosition { sample, row, nth }| {
                let past = nth.checked_sub(1).and_then(|p| ragged.at(sample, p, reverse));
                let past = past.map_or(&c0[sample * h..][..h], |row| &cells[row * h..][..h]);
                let [input, forget, candidate, output] = parts(&gates[row * 4 * h..][..4 * h], h);
                let gates = LstmGates { input, forget, candidate, output };
                let at = LstmStep { gates, c: &cells[row * h..][..h], past, given: None };
                let [input, forget, candidate, output] = parts_mut(dz, h);
                let to = LstmGates { input, forget, candidate, output };
                LstmCell::plain().backward(at, (dh, &mut dc[sample * h..][..h]), to, None);
                dx[row * 4 * h..][..4 * h].copy_from_slice(dz);
            },
            |nth, dh, earlier| {
                for s in (0..n).filter(|&s| nth < ragged.len(s)) {
                    dh[s * h..][..h].copy_from_slice(&earlier[s * h..][..h]);
                }
            },
        );
        sizes.before(&ragged, reverse, call.input(1), y, before);
        sizes.weights(dx, before, dw, scratch);
        Ok(())
    }
}

impl Operator for LstmGrad {
    fn name(&self) -> &'static str {
        "lstm_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, self.slots().count())?;
        // The gates have the shape of the input they came from.
        let h = recurrent(&[&inputs[4], &inputs[0], &inputs[1], &inputs[2]].map(Sig::clone), 4, 2..4, false)?;
        let (x, all) = (&inputs[4], along(&inputs[4], h).shape);
        let last = state(x, h).shape;
        check::shaped(inputs, 3, x.dtype, &all)?;
        check::shaped(inputs, 5, x.dtype, &all)?;
        self.slots().check(inputs, &[&all, &last, &last], 4)?;
        let weights = Sig::dense(x.dtype, Shape::from([4 * h, h]));
        Ok(vec![x.clone(), weights, inputs[1].clone(), inputs[2].clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let (n, time, h) = (dims[3][0], dims[3][1], dims[3][2]);
        let sizes = Sizes { n, time, h, gates: 4, layout: WeightLayout::Rows };
        (n * 4 * h + n * h + n * time * h + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.backward::<T>(call)?);
        Ok(())
    }
}
