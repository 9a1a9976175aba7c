//! What follows a layer, by name.

use super::{DraftValue, LayerDraft, LayerFault};
use crate::{
    ir::Sig,
    op::{BoundedSoftmax, Func, OpKind, Unary},
};
use serde::{Deserialize, Serialize};

const SOFTMAX: &str = "softmax";
const FUNCTIONS: &[(&str, Func)] = &[
    ("relu", Func::Relu),
    ("tanh", Func::Tanh),
    ("sigmoid", Func::Sigmoid),
    ("gelu", Func::Gelu),
    ("softplus", Func::Softplus),
    ("softsign", Func::Softsign),
    ("swish", Func::Swish),
    ("hard_sigmoid", Func::HardSigmoid),
    ("relu6", Func::Relu6),
    ("leaky_relu", Func::LeakyRelu { slope: 0.02 }),
    ("elu", Func::Elu { alpha: 1.0 }),
    ("exp", Func::Exp),
    ("sqrt", Func::Sqrt),
    ("square", Func::Square),
    ("abs", Func::Abs),
];

/// An activation by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationLayer {
    pub act: String,
}

impl ActivationLayer {
    pub(super) fn draft(&self, _inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        LayerDraft::default().activated(DraftValue::Input(0), Some(&self.act))
    }
}

fn activation(act: &str) -> Result<(&'static str, OpKind), LayerFault> {
    if act == SOFTMAX {
        return Ok((SOFTMAX, BoundedSoftmax.into()));
    }
    let found = FUNCTIONS.iter().find(|(name, _)| *name == act);
    found.map(|(name, function)| (*name, Unary(*function).into())).ok_or_else(|| {
        let known: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
        LayerFault::NoActivation { act: act.to_string(), known: format!("{SOFTMAX}, {}", known.join(", ")) }
    })
}

impl LayerDraft {
    /// Complete: what follows the layer, if anything does, gives the result.
    pub(super) fn activated(mut self, x: DraftValue, act: Option<&str>) -> Result<LayerDraft, LayerFault> {
        let Some(act) = act else { return Ok(self.giving(x)) };
        let (name, kind) = activation(act)?;
        let y = self.alone(name, kind, &[x]);
        Ok(self.giving(y))
    }
}
