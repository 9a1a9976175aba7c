//! Linear-chain conditional random fields: how likely a tagging is, and the likeliest one.

use super::{DraftValue, LayerDraft, LayerFault, Naming, fixed, shape};
use crate::{
    ir::{Dim, Init, Shape, Sig},
    op::{Arith, Binary, Cast, Compare, Comparison, CrfDecoding, LinearChainCrf, Reshape, SequenceMask},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

const SEQUENCES: &str = "sequences [n, time, width]";

/// Minus the logarithm of each tagging's probability `[n]`. Its inputs are scores `[n, time, tags]`, tags `[n, time]`
/// or `[n, time, 1]`, lengths. It gives the losses and the learned weights `[tags + 2, tags]`: of beginning with a tag, of
/// ending with it, of going from one to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrfLayer {
    pub begin: Init,
    pub ragged: bool,
}

impl CrfLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        if shape(inputs, 0)?.rank() != 3 {
            return Err(LayerFault::Takes { input: 0, wanted: SEQUENCES });
        }
        let (mut draft, n_tags) = (LayerDraft::default(), fixed(inputs, 0, 2)?);
        let weights = [n_tags.saturating_add(2), n_tags];
        let w = draft.parameter(Naming::Layer, "w", weights, self.begin);
        let (tags, _) = draft.tags(inputs, 1)?;
        let mut takes = vec![DraftValue::Input(0), w, tags];
        takes.extend(self.ragged.then_some(DraftValue::Input(2)));
        let y = draft.op(Naming::Layer, LinearChainCrf { ragged: self.ragged }, &takes);
        draft.outputs = vec![y, w];
        Ok(draft)
    }
}

/// The likeliest tags `[n, time]`, or with a label 1 where they are right; 0 behind the ends. Its inputs are scores,
/// weights, the label, lengths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrfDecodingLayer {
    pub label: bool,
    pub ragged: bool,
}

impl CrfDecodingLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        if shape(inputs, 0)?.rank() != 3 {
            return Err(LayerFault::Takes { input: 0, wanted: SEQUENCES });
        }
        let mut draft = LayerDraft::default();
        let mut takes = vec![DraftValue::Input(0), DraftValue::Input(1)];
        let lengths = self.ragged.then_some(DraftValue::Input(2 + usize::from(self.label)));
        takes.extend(lengths);
        let path = draft.alone("crf_decoding", CrfDecoding { ragged: self.ragged }, &takes);
        if !self.label {
            return Ok(draft.giving(path));
        }
        let (tags, rank) = draft.tags(inputs, 2)?;
        let kind = Compare { op: Comparison::Equal, axis: 2usize.saturating_sub(rank) };
        let right = draft.alone("equal", kind, &[path, tags]);
        let mut right = draft.alone("cast", Cast { to: DType::F32 }, &[right]);
        if let Some(lengths) = lengths {
            let mask = SequenceMask { time: fixed(inputs, 0, 1)?, dtype: DType::F32 };
            let mask = draft.alone("sequence_mask", mask, &[lengths]);
            right = draft.alone("elementwise_mul", Binary { op: Arith::Mul, axis: 0 }, &[right, mask]);
        }
        let y = draft.alone("cast", Cast { to: DType::I64 }, &[right]);
        Ok(draft.giving(y))
    }
}

impl LayerDraft {
    /// Tags as `[n, time]`, and how many dimensions they have then.
    fn tags(&mut self, inputs: &[Sig], input: usize) -> Result<(DraftValue, usize), LayerFault> {
        let tags = DraftValue::Input(input);
        Ok(match shape(inputs, input)?.dims() {
            &[n, time, Dim::Fixed(1)] => {
                let shape = Shape::from([n, time]);
                (self.alone("reshape", Reshape { shape }, &[tags]), 2)
            }
            dims => (tags, dims.len()),
        })
    }
}
