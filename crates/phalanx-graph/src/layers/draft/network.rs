//! Layers of weights: full connections, filters, tables; and dropout.

use super::{DraftValue, LayerDraft, LayerFault, Naming, fixed, shape, size};
use crate::{
    ir::{Dim, Init, Shape, Sig},
    op::{
        Arith, Assign, Binary, Conv2d, Dropout, Embedding, Func, MatMul, Pool, Pool2d, Reshape, Samples, Sum,
        Unary,
    },
};
use serde::{Deserialize, Serialize};

/// Every output from all inputs. Dimensions from `flatten` on are taken as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FcLayer {
    pub size: i64,
    pub flatten: i64,
    pub bias: bool,
    pub act: Option<String>,
}

impl FcLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (mut draft, n) = (LayerDraft::default(), size("size", self.size)?);
        let flatten = size("num_flatten_dims", self.flatten)?;
        let mut products = Vec::with_capacity(inputs.len());
        for (input, sig) in inputs.iter().enumerate() {
            let dims = sig.shape.dims();
            if dims.len() <= flatten {
                return Err(LayerFault::NoneLeft { input, axis: flatten });
            }
            let mut width = 1usize;
            for axis in flatten..dims.len() {
                width = width.saturating_mul(fixed(inputs, input, axis)?);
            }
            let mut x = DraftValue::Input(input);
            if dims.len() != flatten + 1 {
                let mut flat = dims[..flatten].to_vec();
                flat.push(Dim::Fixed(width));
                x = draft.op(Naming::Layer, Reshape { shape: Shape(flat) }, &[x]);
            }
            products.push(draft.product(Naming::Layer, x, [width, n]));
        }
        let mut y = match products[..] {
            [] => return Err(LayerFault::Missing { input: 0 }),
            [one] => one,
            _ => draft.op(Naming::Layer, Sum, &products),
        };
        if self.bias {
            y = draft.biased(Naming::Layer, y, n, flatten);
        }
        draft.activated(y, self.act.as_deref())
    }
}

impl LayerDraft {
    /// Times weights of this shape.
    fn product(&mut self, naming: Naming, x: DraftValue, weights: [usize; 2]) -> DraftValue {
        let w = self.parameter(naming, "w", weights, Init::Xavier);
        self.op(naming, MatMul { trans_a: false, trans_b: false }, &[x, w])
    }

    /// Plus a bias along an axis.
    pub(super) fn biased(&mut self, naming: Naming, x: DraftValue, n: usize, axis: usize) -> DraftValue {
        let b = self.parameter(naming, "b", [n], Init::Constant(0.0));
        self.op(naming, Binary { op: Arith::Add, axis }, &[x, b])
    }

    /// A layer within a layer: every output from the last of three dimensions.
    pub(super) fn connected(&mut self, x: DraftValue, weights: [usize; 2]) -> DraftValue {
        let part = self.part("fc");
        let y = self.product(part, x, weights);
        self.biased(part, y, weights[1], 2)
    }
}

/// Filters over images `[n, c, h, w]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvLayer {
    pub filters: i64,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: i64,
    pub bias: bool,
    pub act: Option<String>,
}

impl ConvLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (channels, filters) = (fixed(inputs, 0, 1)?, size("num_filters", self.filters)?);
        let ConvLayer { kernel: [kh, kw], stride, padding, dilation, .. } = *self;
        let groups = match usize::try_from(self.groups) {
            Ok(n) if n > 0 && channels % n == 0 && filters % n == 0 => n,
            _ => return Err(LayerFault::Groups { channels, filters, groups: self.groups }),
        };
        // As in Paddle, filters of groups begin as those that see all channels do.
        let std = libm::sqrt(2.0 / channels.saturating_mul(kh).saturating_mul(kw).max(1) as f64);
        let begin = if groups > 1 { Init::Normal { mean: 0.0, std } } else { Init::Msra };
        let mut draft = LayerDraft::default();
        let w = draft.parameter(Naming::Layer, "w", [filters, channels / groups, kh, kw], begin);
        let kind = Conv2d { stride, padding, dilation, groups };
        let mut y = draft.op(Naming::Layer, kind, &[DraftValue::Input(0), w]);
        if self.bias {
            y = draft.biased(Naming::Layer, y, filters, 1);
        }
        draft.activated(y, self.act.as_deref())
    }
}

/// Rows of a learned table, by number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingLayer {
    pub height: i64,
    pub width: i64,
    pub sparse: bool,
    pub padding: Option<i64>,
    /// Numbers may come in rows of one.
    pub squeeze: bool,
    pub begin: Init,
}

impl EmbeddingLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (mut draft, mut ids) = (LayerDraft::default(), DraftValue::Input(0));
        let table = [size("the height", self.height)?, size("the width", self.width)?];
        if let (true, [outer @ .., Dim::Fixed(1)]) = (self.squeeze, shape(inputs, 0)?.dims())
            && !outer.is_empty()
        {
            ids = draft.op(Naming::Layer, Reshape { shape: Shape(outer.to_vec()) }, &[ids]);
        }
        let w = draft.parameter(Naming::Layer, "w", table, self.begin);
        let kind = Embedding { sparse: self.sparse, padding: self.padding };
        let y = draft.op(Naming::Layer, kind, &[w, ids]);
        Ok(draft.giving(y))
    }
}

/// Zeroes elements with a probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropoutLayer {
    pub probability: f64,
    /// Which random numbers it draws.
    pub stream: u32,
    /// Elements are scaled down when testing, and not up when training.
    pub downscale: bool,
    pub testing: bool,
}

impl DropoutLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let (mut draft, x) = (LayerDraft::default(), DraftValue::Input(0));
        let down = Unary(Func::Scale { a: 1.0 - self.probability, b: 0.0 });
        let y = match (self.testing, self.downscale) {
            (true, true) => draft.op(Naming::Layer, down, &[x]),
            (true, false) => draft.op(Naming::Layer, Assign, &[x]),
            (false, _) => {
                let samples = Samples::of(shape(inputs, 0)?);
                let kind = Dropout { probability: self.probability, stream: self.stream, samples };
                draft.op(Naming::Layer, kind, &[x])
            }
        };
        let is_scaled = self.downscale && !self.testing;
        let y = if is_scaled { draft.op(Naming::Layer, down, &[y]) } else { y };
        Ok(draft.giving(y))
    }
}

/// The highest, or the mean, of each window of images `[n, c, h, w]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolLayer {
    pub op: Pool,
    /// Without one, the window is the image.
    pub kernel: Option<[usize; 2]>,
    pub stride: [usize; 2],
    pub padding: [usize; 2],
}

impl PoolLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let PoolLayer { op, stride, padding, .. } = *self;
        let kernel = match self.kernel {
            Some(kernel) => kernel,
            None => [fixed(inputs, 0, 2)?, fixed(inputs, 0, 3)?],
        };
        let mut draft = LayerDraft::default();
        let kind = Pool2d { op, kernel, stride, padding };
        let y = draft.op(Naming::Layer, kind, &[DraftValue::Input(0)]);
        Ok(draft.giving(y))
    }
}
