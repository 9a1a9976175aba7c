//! Losses and metrics. Losses are for each sample; take their `mean`.

use super::{
    Builder, Made,
    draft::{AccuracyLayer, HuberLayer},
    written::LayerName,
};
use crate::{
    ir::{GraphError, VarId},
    op::{CrossEntropy, Func, Reduction, SigmoidCrossEntropy, SoftmaxCrossEntropy, TopK},
};

impl Builder {
    /// From probabilities and class numbers.
    #[track_caller]
    pub fn cross_entropy(&mut self, probabilities: VarId, labels: VarId) -> Made {
        self.op1(CrossEntropy { ignored: None }, &[probabilities, labels])
    }

    /// From scores and class numbers: losses and probabilities.
    #[track_caller]
    pub fn softmax_with_cross_entropy(
        &mut self,
        scores: VarId,
        labels: VarId,
    ) -> Result<(VarId, VarId), GraphError> {
        let both = self.op(SoftmaxCrossEntropy { ignored: None }, &[scores, labels])?;
        Ok((both[0], both[1]))
    }

    /// From scores and targets between 0 and 1, element by element.
    #[track_caller]
    pub fn sigmoid_cross_entropy(&mut self, scores: VarId, targets: VarId) -> Made {
        self.op1(SigmoidCrossEntropy { derivative: false }, &[scores, targets])
    }

    #[track_caller]
    pub fn square_error(&mut self, x: VarId, target: VarId) -> Made {
        let d = self.sub(x, target)?;
        self.map(Func::Square, d)
    }

    /// Square up to `delta`, straight beyond it.
    #[track_caller]
    pub fn huber(&mut self, x: VarId, target: VarId, delta: f64) -> Made {
        let d = self.sub(x, target)?;
        self.layer1(LayerName::same("huber"), HuberLayer { delta }, &[d])
    }

    /// The mean of the square error over everything.
    #[track_caller]
    pub fn mse(&mut self, x: VarId, target: VarId) -> Made {
        let e = self.square_error(x, target)?;
        self.reduce(Reduction::Mean, e, &[], false)
    }

    #[track_caller]
    pub fn top_k(&mut self, x: VarId, k: usize) -> Result<(VarId, VarId), GraphError> {
        let both = self.op(TopK { k }, &[x])?;
        Ok((both[0], both[1]))
    }

    /// Which part of the labels is among the k highest scores. NaN is above all numbers, and never right.
    #[track_caller]
    pub fn accuracy(&mut self, scores: VarId, labels: VarId, k: usize) -> Made {
        let layer = AccuracyLayer { k };
        self.layer1(LayerName::same("accuracy"), layer, &[scores, labels])
    }
}
