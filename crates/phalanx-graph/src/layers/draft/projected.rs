//! Paddle's recurrent layers, whose input is projected before: it has the gates side by side.

use super::{DraftValue, LayerDraft, LayerFault, Naming, output, shape};
use crate::{
    ir::{Init, Shape, Sig},
    op::{Arith, Binary, Fill, GateAct, PeepholeLstm, ResetGru, Reshape, Slice},
};
use serde::{Deserialize, Serialize};

/// What is added to the gates of an LSTM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LstmBias {
    Nothing,
    /// A number for each element of each gate, `[1, 4h]`.
    Gates,
    /// The same, and the weights with which gates see the cell, `[1, 7h]`.
    Peepholes,
}

/// Paddle's `dynamic_lstm` over `[n, time, 4h]`. Its inputs are the sequences, the first states that are given, the lengths.
/// Gives hidden states and cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectedLstmLayer {
    /// The width of all gates together.
    pub size: i64,
    pub bias: LstmBias,
    /// From the end of each sequence to its front.
    pub reverse: bool,
    /// Which first states are given: the hidden one, and that of the cell. Others are zeros.
    pub first: [bool; 2],
    pub ragged: bool,
    pub gate: GateAct,
    pub cell: GateAct,
    pub candidate: GateAct,
}

impl ProjectedLstmLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let h = width(inputs, self.size, 4)?;
        let mut draft = LayerDraft::default();
        let w = draft.parameter(Naming::Layer, "w_hh", [h, 4 * h], Init::Xavier);
        let (mut x, mut seen) = (DraftValue::Input(0), None);
        let peepholes = self.bias == LstmBias::Peepholes;
        if self.bias != LstmBias::Nothing {
            let wide = if peepholes { 7 * h } else { 4 * h };
            let b = draft.parameter(Naming::Layer, "b_hh", [1, wide], Init::Constant(0.0));
            let gates = draft.flat(b, 0, (4 * h, wide));
            x = draft.op(Naming::Layer, Binary { op: Arith::Add, axis: 2 }, &[x, gates]);
            seen = peepholes.then(|| draft.flat(b, 4 * h, (3 * h, wide)));
        }
        let mut takes = vec![x, w];
        let mut next = 1;
        for is_given in self.first {
            takes.push(draft.first(inputs, h, is_given, &mut next));
        }
        takes.extend(seen);
        takes.extend(self.ragged.then_some(DraftValue::Input(next)));
        let ProjectedLstmLayer { reverse, ragged, gate, cell, candidate, .. } = *self;
        let kind = PeepholeLstm { reverse, ragged, peepholes, gate, cell, candidate };
        let all = draft.op(Naming::Layer, kind, &takes);
        draft.outputs = vec![all, output(all, 1)];
        Ok(draft)
    }
}

/// Paddle's `dynamic_gru` over `[n, time, 3h]`. Its inputs are the sequences, the first state if it is given, the lengths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectedGruLayer {
    /// The width of all gates together.
    pub size: i64,
    pub bias: bool,
    /// From the end of each sequence to its front.
    pub reverse: bool,
    /// Whether the first state is given. It is zeros otherwise.
    pub first: bool,
    pub ragged: bool,
    /// Whether the update gate keeps the old state.
    pub origin: bool,
    pub gate: GateAct,
    pub candidate: GateAct,
}

impl ProjectedGruLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let h = width(inputs, self.size, 3)?;
        let mut draft = LayerDraft::default();
        let w = draft.parameter(Naming::Layer, "w_hh", [h, 3 * h], Init::Xavier);
        let mut x = DraftValue::Input(0);
        if self.bias {
            let b = draft.parameter(Naming::Layer, "b_hh", [1, 3 * h], Init::Constant(0.0));
            let gates = draft.flat(b, 0, (3 * h, 3 * h));
            x = draft.op(Naming::Layer, Binary { op: Arith::Add, axis: 2 }, &[x, gates]);
        }
        let mut next = 1;
        let mut takes = vec![x, w, draft.first(inputs, h, self.first, &mut next)];
        takes.extend(self.ragged.then_some(DraftValue::Input(next)));
        let ProjectedGruLayer { reverse, ragged, origin, gate, candidate, .. } = *self;
        let all = draft.op(Naming::Layer, ResetGru { reverse, ragged, origin, gate, candidate }, &takes);
        Ok(draft.giving(all))
    }
}

/// Of the state, if the input is as wide as all gates.
fn width(inputs: &[Sig], size: i64, gates: usize) -> Result<usize, LayerFault> {
    let dims = shape(inputs, 0)?.dims();
    if dims.len() != 3 {
        return Err(LayerFault::Takes { input: 0, wanted: "sequences [n, time, width]" });
    }
    match usize::try_from(size) {
        Ok(n) if n >= gates && n % gates == 0 && dims[2].fixed() == Some(n) => Ok(n / gates),
        _ => Err(LayerFault::Gates { input: 0, gates, size }),
    }
}

impl LayerDraft {
    /// A part of a row `[1, whole]`, without its first axis.
    fn flat(&mut self, row: DraftValue, begin: usize, (len, whole): (usize, usize)) -> DraftValue {
        let part = match len == whole {
            true => row,
            false => self.op(Naming::Layer, Slice { axis: 1, begin, end: begin + len }, &[row]),
        };
        self.op(Naming::Layer, Reshape { shape: Shape::from([len]) }, &[part])
    }

    /// The next input, or zeros `[n, h]`.
    fn first(&mut self, inputs: &[Sig], h: usize, is_given: bool, next: &mut usize) -> DraftValue {
        if is_given {
            *next += 1;
            return DraftValue::Input(*next - 1);
        }
        let shape = Shape(vec![inputs[0].shape.dims()[0], h.into()]);
        self.alone("fill_constant", Fill { dtype: inputs[0].dtype, shape, value: 0.0 }, &[])
    }
}
