//! Long short-term memory over whole sequences, with Paddle's equations and order of gates: candidate, input, forget, output.
//! Gates may see the cell (peepholes), and each kind of sum has an activation of its own.

use super::{
    Operator, check,
    gate::{GateAct, LstmCell, LstmGates, LstmStep},
    ragged::Ragged,
    rnn::{CellPosition, Sizes, Slots, WeightLayout, added, along, parts, parts_mut, projected, state},
};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Shape, Sig},
    kernel::{Call, KernelError, Real, real},
};
use serde::{Deserialize, Serialize};

/// From inputs times their weights `[n, time, 4h]`, weights of the state `[h, 4h]`, first hidden and cell state `[n, h]`, with
/// peepholes their weights `[3h]` (input, forget, output) and, if `ragged`, lengths `[n]`: all hidden states and all cells
/// `[n, time, h]`, and for the gradient the gates of all time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeepholeLstm {
    /// From the end of each sequence to its front.
    pub reverse: bool,
    pub ragged: bool,
    pub peepholes: bool,
    /// Of the input, forget and output gates.
    pub gate: GateAct,
    /// Of the cell on its way to the hidden state.
    pub cell: GateAct,
    pub candidate: GateAct,
}

impl PeepholeLstm {
    /// The input with the lengths.
    fn lengths(&self) -> Option<usize> {
        self.ragged.then_some(4 + usize::from(self.peepholes))
    }

    fn step<'a, T>(&self, seen: Option<[&'a [T]; 3]>) -> LstmCell<'a, T> {
        LstmCell { gate: self.gate, cell: self.cell, candidate: self.candidate, seen }
    }
}

impl Operator for PeepholeLstm {
    fn name(&self) -> &'static str {
        "peephole_lstm"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4 + usize::from(self.peepholes) + usize::from(self.ragged))?;
        let h = projected(inputs, 4, 2..4)?;
        let x = &inputs[0];
        if self.peepholes {
            check::shaped(inputs, 4, x.dtype, &Shape::from([3 * h]))?;
        }
        if let Some(slot) = self.lengths() {
            super::ragged::lengths(inputs, slot, 0)?;
        }
        let all = along(x, h);
        Ok(vec![all.clone(), all, x.clone()])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let sizes = sizes(dims[0][0], dims[0][1], dims[1][0]);
        let Sizes { n, h, .. } = sizes;
        (n * 4 * h + 2 * n * h + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.forward::<T>(call)?);
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        if grad.has_dy(2) {
            return Ok(false);
        }
        let given = [grad.has_dy(0), grad.has_dy(1)];
        let mut inputs = vec![grad.x(1), grad.x(2), grad.x(3), grad.y(0), grad.y(1), grad.y(2)];
        inputs.extend(self.peepholes.then(|| grad.x(4)));
        inputs.extend((0..2).filter(|&slot| given[slot]).map(|slot| grad.dy(slot)));
        inputs.extend(self.lengths().map(|slot| grad.x(slot)));
        let found = grad.emit_all(PeepholeLstmGrad { lstm: *self, given }, &inputs)?;
        for (slot, d) in found.into_iter().enumerate() {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}

fn sizes(n: usize, time: usize, h: usize) -> Sizes {
    Sizes { n, time, h, gates: 4, layout: WeightLayout::Columns }
}

impl PeepholeLstm {
    fn forward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let sizes = sizes(call.dims(0)[0], call.dims(0)[1], call.dims(1)[0]);
        let Sizes { n, time, h, .. } = sizes;
        let ragged = Ragged::new(call, self.lengths(), n, time)?;
        let (x, w) = (call.input::<T>(0), call.input::<T>(1));
        let step = self.step(self.peepholes.then(|| parts::<T, 3>(call.input(4), h)));
        let (y, cells, gates) = (call.output::<T>(0), call.output::<T>(1), call.output::<T>(2));
        for rows in [&mut *y, &mut *gates, &mut *cells] {
            ragged.blank(rows, T::ZERO);
        }
        let (hidden, rest) = call.workspace::<T>().split_at_mut(n * h);
        let (cell, rest) = rest.split_at_mut(n * h);
        hidden.copy_from_slice(call.input(2));
        cell.copy_from_slice(call.input(3));
        sizes.forward(
            (&ragged, self.reverse),
            w,
            hidden,
            rest.split_at_mut(n * 4 * h),
            #[inline(always)]
            |hs, z, s, row| {
                let now = &mut gates[row * 4 * h..][..4 * h];
                added(now, &x[row * 4 * h..][..4 * h], z);
                let [candidate, input, forget, output] = parts_mut(now, h);
                let c = &mut cell[s * h..][..h];
                step.forward(LstmGates { input, forget, candidate, output }, c, hs);
                cells[row * h..][..h].copy_from_slice(c);
                y[row * h..][..h].copy_from_slice(hs);
            },
        );
        Ok(())
    }
}

/// From the weights, the first states, hidden states, cells and gates of all time, the weights of peepholes if there are any,
/// the gradients that were given (of hidden states, of cells) and the lengths: gradients of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeepholeLstmGrad {
    pub lstm: PeepholeLstm,
    pub given: [bool; 2],
}

impl PeepholeLstmGrad {
    fn slots(&self) -> Slots<'_> {
        let fixed = 6 + usize::from(self.lstm.peepholes);
        Slots { fixed, given: &self.given, ragged: self.lstm.ragged }
    }

    fn backward<T: Real>(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let PeepholeLstm { reverse, peepholes, .. } = self.lstm;
        let sizes = sizes(call.dims(3)[0], call.dims(3)[1], call.dims(3)[2]);
        let Sizes { n, time, h, .. } = sizes;
        let ragged = Ragged::new(call, self.slots().lengths(), n, time)?;
        let (w, c0, y) = (call.input::<T>(0), call.input::<T>(2), call.input::<T>(3));
        let (cells, gates) = (call.input::<T>(4), call.input::<T>(5));
        let step = self.lstm.step(peepholes.then(|| parts::<T, 3>(call.input(6), h)));
        let [dy, d_cells] = [0, 1].map(|which| self.slots().of(which).map(|slot| call.input::<T>(slot)));
        let (dx, dw) = (call.output::<T>(0), call.output::<T>(1));
        let (dh, dc) = (call.output::<T>(2), call.output::<T>(3));
        let mut d_seen = peepholes.then(|| call.output::<T>(4));
        dh.fill(T::ZERO);
        dc.fill(T::ZERO);
        if let Some(d) = &mut d_seen {
            d.fill(T::ZERO);
        }
        ragged.blank(dx, T::ZERO);
        let (dz, rest) = call.workspace::<T>().split_at_mut(n * 4 * h);
        let (earlier, rest) = rest.split_at_mut(n * h);
        let (before, scratch) = rest.split_at_mut(n * time * h);
        sizes.backward(
            (&ragged, reverse),
            w,
            (dy, dh),
            (dz, earlier, scratch),
            #[inline(always)]
            |dh, dz, CellPosition { sample, row, nth }| {
                let past = nth.checked_sub(1).and_then(|p| ragged.at(sample, p, reverse));
                let past = past.map_or(&c0[sample * h..][..h], |row| &cells[row * h..][..h]);
                let [candidate, input, forget, output] = parts(&gates[row * 4 * h..][..4 * h], h);
                let gates = LstmGates { input, forget, candidate, output };
                let given = d_cells.map(|given| &given[row * h..][..h]);
                let at = LstmStep { gates, c: &cells[row * h..][..h], past, given };
                let [candidate, input, forget, output] = parts_mut(dz, h);
                let to = LstmGates { input, forget, candidate, output };
                let d_seen = d_seen.as_mut().map(|d| parts_mut(d, h));
                step.backward(at, (dh, &mut dc[sample * h..][..h]), to, d_seen);
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

impl Operator for PeepholeLstmGrad {
    fn name(&self) -> &'static str {
        "peephole_lstm_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, self.slots().count())?;
        // The gates have the shape of the input they came from.
        let h = projected(&[&inputs[5], &inputs[0], &inputs[1], &inputs[2]].map(Sig::clone), 4, 2..4)?;
        let (x, all) = (&inputs[5], along(&inputs[5], h).shape);
        check::shaped(inputs, 3, x.dtype, &all)?;
        check::shaped(inputs, 4, x.dtype, &all)?;
        self.slots().check(inputs, &[&all, &all], 5)?;
        let first = state(x, h);
        let mut gives = vec![x.clone(), Sig::dense(x.dtype, Shape::from([h, 4 * h])), first.clone(), first];
        if self.lstm.peepholes {
            check::shaped(inputs, 6, x.dtype, &Shape::from([3 * h]))?;
            gives.push(inputs[6].clone());
        }
        Ok(gives)
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        let sizes = sizes(dims[3][0], dims[3][1], dims[3][2]);
        let Sizes { n, time, h, .. } = sizes;
        (n * 4 * h + n * h + n * time * h + sizes.scratch(element)) * element
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        real!(call.dtype(0), T => self.backward::<T>(call)?);
        Ok(())
    }
}
