//! Layers over sequences of different lengths.

use super::{DraftValue, LayerDraft, LayerFault, fixed, shape};
use crate::{
    ir::{Shape, Sig},
    op::{
        Arith, Assign, Binary, Cast, Func, MASKED, MaskScores, Reshape, SequenceMask, SequenceOp,
        SequencePool, Softmax, Unary,
    },
};
use serde::{Deserialize, Serialize};

/// One row `[n, width]` from each sequence; with `by_root` divided by the root of its length. Its inputs are the sequences
/// and their lengths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequencePoolLayer {
    pub op: SequenceOp,
    pub by_root: bool,
    pub ragged: bool,
}

impl SequencePoolLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (mut draft, mut x) = (LayerDraft::default(), DraftValue::Input(0));
        let sequences = shape(inputs, 0)?;
        match sequences.rank() {
            3 => {}
            2 if self.ragged => {
                let mut column = sequences.clone();
                column.0.push(1.into());
                x = draft.alone("reshape", Reshape { shape: column }, &[x]);
            }
            _ => return Err(LayerFault::Takes { input: 0, wanted: "sequences [n, time, width]" }),
        }
        let lengths = self.ragged.then_some(DraftValue::Input(1));
        let takes: Vec<DraftValue> = [x].into_iter().chain(lengths).collect();
        let kind = SequencePool { op: self.op, ragged: self.ragged };
        let pooled = draft.alone("sequence_pool", kind, &takes);
        if !self.by_root {
            return Ok(draft.giving(pooled));
        }
        let longest = sequences.dims()[1].fixed().unwrap_or(1).max(1) as f64;
        let y = match lengths {
            None => {
                // The power of the C library, as Python has it: saved programs hold the number that it gives.
                let down = Func::Scale { a: longest.powf(-0.5), b: 0.0 };
                draft.alone("scale", Unary(down), &[pooled])
            }
            Some(lengths) => {
                // An empty sequence has the sum zero, whatever it is divided by.
                let lengths = draft.alone("cast", Cast { to: inputs[0].dtype }, &[lengths]);
                let lengths = draft.alone("clip", Unary(Func::Clip { low: 1.0, high: longest }), &[lengths]);
                let by = draft.alone("rsqrt", Unary(Func::Rsqrt), &[lengths]);
                draft.alone("elementwise_mul", Binary { op: Arith::Mul, axis: 0 }, &[pooled, by])
            }
        };
        Ok(draft.giving(y))
    }
}

/// Softmax over each sequence of numbers, `[n, time]` or `[n, time, 1]`; zeros behind the ends. Its inputs are the
/// sequences and their lengths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceSoftmaxLayer {}

impl SequenceSoftmaxLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (mut draft, x) = (LayerDraft::default(), DraftValue::Input(0));
        let (own, lengths) = (shape(inputs, 0)?, DraftValue::Input(1));
        if !(own.rank() == 2 || own.rank() == 3 && own.dims()[2] == 1.into()) {
            return Err(LayerFault::Takes { input: 0, wanted: "sequences of numbers [n, time]" });
        }
        let (n, time) = (own.dims()[0], fixed(inputs, 0, 1)?);
        let rows = Shape::from([n, 1.into(), 1.into(), time.into()]);
        let scores = draft.alone("reshape", Reshape { shape: rows }, &[x]);
        let kind = MaskScores { causal: false, ragged: true, value: MASKED };
        let scores = draft.alone("sequence_softmax", kind, &[scores, lengths]);
        let weights = draft.alone("softmax", Softmax { log: false }, &[scores]);
        let flat = Shape::from([n, time.into()]);
        let weights = draft.alone("reshape", Reshape { shape: flat }, &[weights]);
        let mask = SequenceMask { time, dtype: inputs[0].dtype };
        let mask = draft.alone("sequence_mask", mask, &[lengths]);
        let kept = draft.alone("elementwise_mul", Binary { op: Arith::Mul, axis: 0 }, &[weights, mask]);
        let y = match own.rank() {
            2 => draft.alone("assign", Assign, &[kept]),
            _ => draft.alone("sequence_softmax", Reshape { shape: own.clone() }, &[kept]),
        };
        Ok(draft.giving(y))
    }
}
