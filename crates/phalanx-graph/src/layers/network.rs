//! Layers with parameters.

use super::{
    Act, Builder, Made,
    draft::{BatchNormLayer, ConvLayer, DropoutLayer, EmbeddingLayer, FcLayer, LayerNormLayer},
    written::LayerName,
};
use crate::{
    ir::{Init, VarId},
    op::{Embedding, Pool, Pool2d},
};

#[derive(Clone, Copy, Debug)]
pub struct ConvOptions {
    pub filters: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub groups: usize,
    pub bias: bool,
    pub act: Act,
}

impl ConvOptions {
    /// Square filters, stride 1, no padding.
    pub fn new(filters: usize, side: usize) -> ConvOptions {
        let (kernel, stride) = ([side, side], [1, 1]);
        ConvOptions { filters, kernel, stride, padding: [0, 0], groups: 1, bias: true, act: Act::None }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions {
    pub epsilon: f64,
    pub momentum: f64,
    pub act: Act,
}

impl Default for BatchNormOptions {
    fn default() -> BatchNormOptions {
        BatchNormOptions { epsilon: 1e-5, momentum: 0.9, act: Act::None }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct EmbeddingOptions {
    pub sparse: bool,
    pub padding: Option<i64>,
}

impl Builder {
    /// Every output from every input of the last dimension.
    #[track_caller]
    pub fn fc(&mut self, x: VarId, n: usize, act: Act) -> Made {
        let flatten = self.shape(x).rank().saturating_sub(1) as i64;
        let layer = FcLayer { size: n as i64, flatten, bias: true, act: act.name() };
        self.layer1(LayerName::same("fc"), layer, &[x])
    }

    /// Images `[n, c, h, w]`.
    #[track_caller]
    pub fn conv2d(&mut self, x: VarId, options: ConvOptions) -> Made {
        let ConvOptions { filters, kernel, stride, padding, groups, bias, act } = options;
        let (filters, groups, act, dilation) = (filters as i64, groups as i64, act.name(), [1, 1]);
        let layer = ConvLayer { filters, kernel, stride, padding, dilation, groups, bias, act };
        self.layer1(LayerName { op: "conv2d", as_name: "conv" }, layer, &[x])
    }

    #[track_caller]
    pub fn pool2d(&mut self, x: VarId, op: Pool, side: usize, stride: usize) -> Made {
        self.op1(Pool2d { op, kernel: [side; 2], stride: [stride; 2], padding: [0; 2] }, &[x])
    }

    /// Normalises each channel (axis 1) over the batch.
    #[track_caller]
    pub fn batch_norm(&mut self, x: VarId, options: BatchNormOptions) -> Made {
        let BatchNormOptions { epsilon, momentum, act } = options;
        let layer = BatchNormLayer { epsilon, momentum, fixed: false, act: act.name() };
        self.layer1(LayerName { op: "batch_norm", as_name: "bn" }, layer, &[x])
    }

    /// Normalises everything from `axis` on.
    #[track_caller]
    pub fn layer_norm(&mut self, x: VarId, axis: usize) -> Made {
        let layer = LayerNormLayer { axis: axis as i64, epsilon: 1e-5, act: None };
        self.layer1(LayerName { op: "layer_norm", as_name: "ln" }, layer, &[x])
    }

    /// Rows of a learned table, by number.
    #[track_caller]
    pub fn embedding(&mut self, ids: VarId, height: usize, width: usize, options: EmbeddingOptions) -> Made {
        let EmbeddingOptions { sparse, padding } = options;
        let (height, width) = (height as i64, width as i64);
        let begin = Init::Normal { mean: 0.0, std: 0.05 };
        let layer = EmbeddingLayer { height, width, sparse, padding, squeeze: false, begin };
        self.layer1(LayerName::same("embedding"), layer, &[ids])
    }

    /// Rows of a table that other layers may share.
    #[track_caller]
    pub fn lookup(&mut self, table: VarId, ids: VarId, options: EmbeddingOptions) -> Made {
        self.op1(Embedding { sparse: options.sparse, padding: options.padding }, &[table, ids])
    }

    #[track_caller]
    pub fn dropout(&mut self, x: VarId, probability: f64) -> Made {
        let stream = self.stream();
        let layer = DropoutLayer { probability, stream, downscale: false, testing: false };
        self.layer1(LayerName::same("dropout"), layer, &[x])
    }
}
