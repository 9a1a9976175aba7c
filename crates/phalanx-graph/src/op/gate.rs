//! What recurrences do to the sums of their gates, and its slopes, which follow from what it gave; and the cell of an LSTM, which
//! PyTorch's, Paddle's and ONNX's have in common: they differ in the order of gates and in the layout of weights.

use crate::kernel::Real;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateAct {
    Sigmoid,
    Tanh,
    Relu,
    Identity,
}

impl GateAct {
    /// In place.
    #[inline(always)]
    pub(super) fn apply<T: Real>(self, row: &mut [T]) {
        match self {
            GateAct::Sigmoid => row.iter_mut().for_each(|v| *v = v.sigmoid()),
            GateAct::Tanh => row.iter_mut().for_each(|v| *v = v.tanh()),
            GateAct::Relu => row.iter_mut().for_each(|v| *v = if *v > T::ZERO { *v } else { T::ZERO }),
            GateAct::Identity => {}
        }
    }

    /// Multiplies gradients by the slopes, where it gave this.
    #[inline(always)]
    pub(super) fn back<T: Real>(self, gave: &[T], d: &mut [T]) {
        let both = d.iter_mut().zip(gave);
        match self {
            GateAct::Sigmoid => both.for_each(|(d, &y)| *d = *d * y * (T::ONE - y)),
            GateAct::Tanh => both.for_each(|(d, &y)| *d *= T::ONE - y * y),
            GateAct::Relu => both.for_each(|(d, &y)| *d = if y > T::ZERO { *d } else { T::ZERO }),
            GateAct::Identity => {}
        }
    }
}

/// Something for each gate of an LSTM, whatever the order in which gates lie.
#[derive(Debug)]
pub(super) struct LstmGates<S> {
    pub input: S,
    pub forget: S,
    pub candidate: S,
    pub output: S,
}

/// One step of an LSTM for one sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct LstmCell<'a, T> {
    /// Of the input, forget and output gates.
    pub gate: GateAct,
    /// Of the cell on its way to the hidden state.
    pub cell: GateAct,
    pub candidate: GateAct,
    /// The weights with which the input, forget and output gates see the cell, if they do (peepholes).
    pub seen: Option<[&'a [T]; 3]>,
}

/// What a step had: its gates, its cell and the one before, and the gradient of its cell if that was given.
#[derive(Debug)]
pub(super) struct LstmStep<'a, T> {
    pub gates: LstmGates<&'a [T]>,
    pub c: &'a [T],
    pub past: &'a [T],
    pub given: Option<&'a [T]>,
}

impl<T: Real> LstmCell<'_, T> {
    /// PyTorch's, without peepholes.
    pub fn plain() -> Self {
        LstmCell { gate: GateAct::Sigmoid, cell: GateAct::Tanh, candidate: GateAct::Tanh, seen: None }
    }

    /// Turns sums into gates, the cell into the next one, and writes the next hidden state.
    #[inline(always)]
    pub fn forward(&self, gates: LstmGates<&mut [T]>, c: &mut [T], hidden: &mut [T]) {
        let (LstmGates { input: i, forget: f, candidate: g, output: o }, h) = (gates, c.len());
        if let Some([wi, wf, _]) = self.seen {
            for j in 0..h {
                i[j] += wi[j] * c[j];
                f[j] += wf[j] * c[j];
            }
        }
        self.candidate.apply(g);
        self.gate.apply(i);
        self.gate.apply(f);
        for j in 0..h {
            c[j] = f[j] * c[j] + i[j] * g[j];
        }
        if let Some([_, _, wo]) = self.seen {
            for j in 0..h {
                o[j] += wo[j] * c[j];
            }
        }
        self.gate.apply(o);
        hidden.copy_from_slice(c);
        self.cell.apply(hidden);
        for j in 0..h {
            hidden[j] = o[j] * hidden[j];
        }
    }

    /// From the gradients of hidden state and cell those of the sums and of the cell before, and adds to those of the peepholes'
    /// weights. What `dh` holds afterwards is of no use.
    #[inline(always)]
    pub fn backward(
        &self,
        at: LstmStep<'_, T>,
        (dh, dc): (&mut [T], &mut [T]),
        to: LstmGates<&mut [T]>,
        d_seen: Option<[&mut [T]; 3]>,
    ) {
        let LstmStep { gates: LstmGates { input: i, forget: f, candidate: g, output: o }, c, past, given } =
            at;
        let LstmGates { input: di, forget: df, candidate: dg, output: d_o } = to;
        let h = c.len();
        d_o.copy_from_slice(c);
        self.cell.apply(d_o);
        for j in 0..h {
            dg[j] = dh[j] * d_o[j];
            dh[j] *= o[j];
        }
        self.cell.back(d_o, dh);
        d_o.copy_from_slice(dg);
        self.gate.back(o, d_o);
        for j in 0..h {
            dc[j] += dh[j];
        }
        if let Some(given) = given {
            dc.iter_mut().zip(given).for_each(|(d, &v)| *d += v);
        }
        if let Some([_, _, wo]) = self.seen {
            for j in 0..h {
                dc[j] += d_o[j] * wo[j];
            }
        }
        for j in 0..h {
            dg[j] = dc[j] * i[j];
            di[j] = dc[j] * g[j];
            df[j] = dc[j] * past[j];
            dc[j] *= f[j];
        }
        self.candidate.back(g, dg);
        self.gate.back(i, di);
        self.gate.back(f, df);
        if let (Some([wi, wf, _]), Some([pi, pf, po])) = (self.seen, d_seen) {
            for j in 0..h {
                pi[j] += di[j] * past[j];
                pf[j] += df[j] * past[j];
                po[j] += d_o[j] * c[j];
                dc[j] += di[j] * wi[j] + df[j] * wf[j];
            }
        }
    }
}
