//! Layers that normalise.

use super::{DraftItem, DraftValue, LayerDraft, LayerFault, Naming, Written, fixed, shape, size};
use crate::{
    ir::{Init, Shape, Sig},
    op::{BatchNorm, BatchNormFixed, LayerNorm, OpKind},
};
use serde::{Deserialize, Serialize};

/// Normalises each channel (axis 1) over the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNormLayer {
    pub epsilon: f64,
    pub momentum: f64,
    /// By the learned statistics, which stay as they are.
    pub fixed: bool,
    pub act: Option<String>,
}

impl BatchNormLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (mut draft, channels) = (LayerDraft::default(), fixed(inputs, 0, 1)?);
        let scale = draft.parameter(Naming::Layer, "scale", [channels], Init::Constant(1.0));
        let shift = draft.parameter(Naming::Layer, "shift", [channels], Init::Constant(0.0));
        let mean = draft.state("mean", [channels], Init::Constant(0.0));
        let var = draft.state("var", [channels], Init::Constant(1.0));
        let takes = vec![DraftValue::Input(0), scale, shift, mean, var];
        let y = if self.fixed {
            draft.op(Naming::Layer, BatchNormFixed { epsilon: self.epsilon }, &takes)
        } else {
            let each = |slot| Written::New { slot: Some(slot), shape: Shape::from([channels]) };
            let outputs = vec![
                Written::New { slot: None, shape: shape(inputs, 0)?.clone() },
                Written::Stored(mean),
                Written::Stored(var),
                each("batch_mean"),
                each("batch_inv"),
            ];
            let kind = OpKind::from(BatchNorm { epsilon: self.epsilon, momentum: self.momentum });
            draft.item(DraftItem::Write { kind, inputs: takes, outputs })
        };
        draft.activated(y, self.act.as_deref())
    }
}

/// Normalises everything from `axis` on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNormLayer {
    pub axis: i64,
    pub epsilon: f64,
    pub act: Option<String>,
}

impl LayerNormLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (rank, axis) = (shape(inputs, 0)?.rank(), size("begin_norm_axis", self.axis)?);
        let inner = (axis..rank).map(|axis| Ok(fixed(inputs, 0, axis)?.into()));
        let inner = Shape(inner.collect::<Result<_, LayerFault>>()?);
        let mut draft = LayerDraft::default();
        let scale = draft.parameter(Naming::Layer, "scale", inner.clone(), Init::Constant(1.0));
        let shift = draft.parameter(Naming::Layer, "shift", inner, Init::Constant(0.0));
        let kind = LayerNorm { axis, epsilon: self.epsilon };
        let y = draft.op(Naming::Layer, kind, &[DraftValue::Input(0), scale, shift]);
        draft.activated(y, self.act.as_deref())
    }
}
