//! Layers with a state: LSTM and GRU, as PyTorch has them.

use super::{DraftValue, LayerDraft, LayerFault, Naming, fixed, output, shape};
use crate::{
    ir::{Init, Shape, Sig},
    op::{Arith, Binary, Fill, Gru, Lstm, MatMul, OpKind},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RnnCell {
    Lstm,
    Gru,
}

impl RnnCell {
    fn gates(self) -> usize {
        match self {
            RnnCell::Lstm => 4,
            RnnCell::Gru => 3,
        }
    }
}

/// A recurrent layer over `[n, time, width]`. Its inputs are the sequences, the first states that are given, the lengths.
/// Parameters have PyTorch's shapes and order of gates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecurrentLayer {
    pub cell: RnnCell,
    /// The width of all gates together.
    pub size: i64,
    /// From the end of each sequence to its front.
    pub reverse: bool,
    /// Which first states are given: the hidden one, and that of the cell. Others are zeros.
    pub first: [bool; 2],
    pub ragged: bool,
}

impl RecurrentLayer {
    /// The outputs: hidden states, the last one; of an LSTM the last state of the cell, and all of them.
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let mut draft = LayerDraft::default();
        if shape(inputs, 0)?.rank() != 3 {
            return Err(LayerFault::Takes { input: 0, wanted: "sequences [n, time, width]" });
        }
        let (x, w, b) = self.projected(&mut draft, inputs)?;
        let mut takes = vec![x, w];
        takes.extend(b);
        self.states(&mut draft, inputs, &mut takes);
        let kind: OpKind = match self.cell {
            RnnCell::Lstm => Lstm { reverse: self.reverse, ragged: self.ragged }.into(),
            RnnCell::Gru => Gru { reverse: self.reverse, ragged: self.ragged }.into(),
        };
        let all = draft.op(Naming::Layer, kind, &takes);
        let outputs: &[usize] = if self.cell == RnnCell::Lstm { &[0, 1, 2, 4] } else { &[0, 1] };
        draft.outputs = outputs.iter().map(|&number| output(all, number)).collect();
        Ok(draft)
    }

    /// Of the state.
    fn width(&self) -> usize {
        usize::try_from(self.size).unwrap_or(0) / self.cell.gates()
    }

    /// Inputs that are projected, weights of the state, and its bias where the operation takes one.
    fn projected(&self, draft: &mut LayerDraft, inputs: &[Sig]) -> Result<Parts, LayerFault> {
        let (width, wide, h) = (fixed(inputs, 0, 2)?, self.width() * self.cell.gates(), self.width());
        let limit = 1.0 / libm::sqrt(h.max(1) as f64);
        let begin = Init::Uniform { low: -limit, high: limit };
        let w_ih = draft.parameter(Naming::Layer, "w_ih", [wide, width], begin);
        let w_hh = draft.parameter(Naming::Layer, "w_hh", [wide, h], begin);
        let b_ih = draft.parameter(Naming::Layer, "b_ih", [wide], begin);
        let b_hh = draft.parameter(Naming::Layer, "b_hh", [wide], begin);
        let kind = MatMul { trans_a: false, trans_b: true };
        let x = draft.op(Naming::Layer, kind, &[DraftValue::Input(0), w_ih]);
        let x = draft.added(x, b_ih);
        Ok(match self.cell {
            RnnCell::Lstm => (draft.added(x, b_hh), w_hh, None),
            RnnCell::Gru => (x, w_hh, Some(b_hh)),
        })
    }

    /// First states, and lengths.
    fn states(&self, draft: &mut LayerDraft, inputs: &[Sig], takes: &mut Vec<DraftValue>) {
        let n_states = if self.cell == RnnCell::Lstm { 2 } else { 1 };
        let mut next = 1;
        let mut input = || {
            next += 1;
            DraftValue::Input(next - 1)
        };
        for is_given in &self.first[..n_states] {
            let zeros = || Fill {
                dtype: inputs[0].dtype,
                shape: Shape::from([inputs[0].shape.dims()[0], self.width().into()]),
                value: 0.0,
            };
            takes.push(if *is_given { input() } else { draft.alone("fill_constant", zeros(), &[]) });
        }
        takes.extend(self.ragged.then(input));
    }
}

type Parts = (DraftValue, DraftValue, Option<DraftValue>);

impl LayerDraft {
    /// Plus a bias of all gates.
    fn added(&mut self, x: DraftValue, b: DraftValue) -> DraftValue {
        self.op(Naming::Layer, Binary { op: Arith::Add, axis: 2 }, &[x, b])
    }
}
