//! Losses and metrics of several operations, and stacking.

use super::{DraftValue, LayerDraft, LayerFault, output};
use crate::{
    ir::{Shape, Sig},
    op::{Accuracy, Arith, Binary, Concat, Func, Reshape, TopK, Unary},
};
use serde::{Deserialize, Serialize};

/// Which part of the labels is among the k highest scores. Its inputs are scores and labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccuracyLayer {
    pub k: usize,
}

impl AccuracyLayer {
    pub(super) fn draft(&self, _inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let mut draft = LayerDraft::default();
        let top = draft.alone("top_k", TopK { k: self.k }, &[DraftValue::Input(0)]);
        let y = draft.alone("accuracy", Accuracy, &[output(top, 1), DraftValue::Input(1), top]);
        Ok(draft.giving(y))
    }
}

/// Of differences: half the square up to `delta`, straight beyond it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HuberLayer {
    pub delta: f64,
}

impl HuberLayer {
    pub(super) fn draft(&self, _inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let mut draft = LayerDraft::default();
        let scale = |a| Unary(Func::Scale { a, b: 0.0 });
        let size = draft.alone("abs", Unary(Func::Abs), &[DraftValue::Input(0)]);
        let near = draft.alone("clip", Unary(Func::Clip { low: 0.0, high: self.delta }), &[size]);
        let bent = draft.alone("square", Unary(Func::Square), &[near]);
        let bent = draft.alone("scale", scale(0.5), &[bent]);
        let far = draft.alone("elementwise_sub", Binary { op: Arith::Sub, axis: 0 }, &[size, near]);
        let far = draft.alone("scale", scale(self.delta), &[far]);
        let y = draft.alone("elementwise_add", Binary { op: Arith::Add, axis: 0 }, &[bent, far]);
        Ok(draft.giving(y))
    }
}

/// All inputs along a new axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackLayer {
    pub axis: usize,
}

impl StackLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let mut draft = LayerDraft::default();
        let raise = |(input, sig): (usize, &Sig)| {
            let mut dims = sig.shape.0.clone();
            dims.insert(self.axis.min(dims.len()), 1.into());
            draft.alone("unsqueeze", Reshape { shape: Shape(dims) }, &[DraftValue::Input(input)])
        };
        let raised: Vec<DraftValue> = inputs.iter().enumerate().map(raise).collect();
        let y = draft.alone("concat", Concat { axis: self.axis }, &raised);
        Ok(draft.giving(y))
    }
}
