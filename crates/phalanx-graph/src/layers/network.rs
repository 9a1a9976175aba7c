//! Layers with parameters.

use super::{Act, Builder, Made};
use crate::{
    ir::{Dim, GraphError, Init, Learn, Misfit, Shape, Site, VarId},
    op::{Arith, BatchNorm, Binary, Conv2d, Dropout, Embedding, LayerNorm, Pool, Pool2d, Samples, Softmax},
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
    /// So many square filters, stride 1, no padding.
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
    /// The size of a dimension that a parameter depends on.
    #[track_caller]
    pub(super) fn width(&self, op: &'static str, x: VarId, axis: usize) -> Result<usize, GraphError> {
        let why = match self.shape(x).dims().get(axis) {
            Some(Dim::Fixed(n)) => return Ok(*n),
            Some(Dim::Batch(_)) => Misfit::Symbolic { slot: 0, axis },
            None => Misfit::Rank { slot: 0, wanted: "more", got: self.shape(x) },
        };
        let inputs = format!("{}: {}", self.program.var(x).name, self.program.sig(x));
        Err(GraphError::Misfit { op, site: Site::here(), inputs, why })
    }

    /// Every output from every input of the last dimension.
    #[track_caller]
    pub fn fc(&mut self, x: VarId, n: usize, act: Act) -> Made {
        let last = self.shape(x).rank().wrapping_sub(1);
        let width = self.width("fc", x, last)?;
        let w = self.parameter("fc.w", [width, n], Init::Xavier)?;
        let b = self.parameter("fc.b", [n], Init::Constant(0.0))?;
        let y = self.matmul(x, w, false, false)?;
        let y = self.add(y, b)?;
        self.act(y, act)
    }

    /// Images `[n, c, h, w]`.
    #[track_caller]
    pub fn conv2d(&mut self, x: VarId, options: ConvOptions) -> Made {
        let channels = self.width("conv2d", x, 1)?;
        let ConvOptions { filters, kernel: [kh, kw], stride, padding, groups, bias, act } = options;
        // As in Paddle, filters of groups begin as those that see all channels do.
        let std = libm::sqrt(2.0 / (channels * kh * kw).max(1) as f64);
        let init = if groups > 1 { Init::Normal { mean: 0.0, std } } else { Init::Msra };
        let w = self.parameter("conv.w", [filters, channels / groups.max(1), kh, kw], init)?;
        let mut y = self.op1(Conv2d { stride, padding, dilation: [1, 1], groups }, &[x, w])?;
        if bias {
            let b = self.parameter("conv.b", [filters], Init::Constant(0.0))?;
            y = self.op1(Binary { op: Arith::Add, axis: 1 }, &[y, b])?;
        }
        self.act(y, act)
    }

    #[track_caller]
    pub fn pool2d(&mut self, x: VarId, op: Pool, side: usize, stride: usize) -> Made {
        self.op1(Pool2d { op, kernel: [side; 2], stride: [stride; 2], padding: [0; 2] }, &[x])
    }

    /// Normalises each channel (axis 1) over the batch.
    #[track_caller]
    pub fn batch_norm(&mut self, x: VarId, options: BatchNormOptions) -> Made {
        let c = self.width("batch_norm", x, 1)?;
        let scale = self.parameter("bn.scale", [c], Init::Constant(1.0))?;
        let shift = self.parameter("bn.shift", [c], Init::Constant(0.0))?;
        let mean = self.state("bn.mean", [c], Init::Constant(0.0))?;
        let var = self.state("bn.var", [c], Init::Constant(1.0))?;
        let site = Site::here();
        let BatchNormOptions { epsilon, momentum, act } = options;
        let sig = self.program.sig(x).clone();
        let each = self.program.sig(scale).clone();
        let mut temp = |name: &str, sig| {
            let name = self.program.fresh(name);
            self.program.declare(&name, sig, crate::ir::VarKind::Temp, site.clone())
        };
        let y = temp("batch_norm", sig)?;
        let (batch_mean, batch_inv) = (temp("bn.batch_mean", each.clone())?, temp("bn.batch_inv", each)?);
        let (inputs, outputs) = ([x, scale, shift, mean, var], [y, mean, var, batch_mean, batch_inv]);
        let op = BatchNorm { epsilon, momentum };
        self.program.append_to(op, &inputs, &outputs, crate::ir::Role::Forward, site)?;
        self.act(y, act)
    }

    /// Normalises everything from `axis` on.
    #[track_caller]
    pub fn layer_norm(&mut self, x: VarId, axis: usize) -> Made {
        let shape = self.shape(x);
        let inner = Shape(shape.dims().get(axis..).unwrap_or_default().to_vec());
        let scale = self.parameter("ln.scale", inner.clone(), Init::Constant(1.0))?;
        let shift = self.parameter("ln.shift", inner, Init::Constant(0.0))?;
        self.op1(LayerNorm { axis, epsilon: 1e-5 }, &[x, scale, shift])
    }

    /// Rows of a learned table, by number.
    #[track_caller]
    pub fn embedding(&mut self, ids: VarId, height: usize, width: usize, options: EmbeddingOptions) -> Made {
        let learn = Learn::from(Init::Normal { mean: 0.0, std: 0.05 });
        let table = self.parameter("embedding.w", [height, width], learn)?;
        self.lookup(table, ids, options)
    }

    /// Rows of a table that other layers may share.
    #[track_caller]
    pub fn lookup(&mut self, table: VarId, ids: VarId, options: EmbeddingOptions) -> Made {
        self.op1(Embedding { sparse: options.sparse, padding: options.padding }, &[table, ids])
    }

    #[track_caller]
    pub fn dropout(&mut self, x: VarId, probability: f64) -> Made {
        let stream = self.stream();
        let samples = Samples::of(&self.shape(x));
        self.op1(Dropout { probability, stream, samples }, &[x])
    }

    /// Attention of `[n, t, width]` to itself with so many heads; the mask is added to the scores.
    #[track_caller]
    pub fn attention(&mut self, x: VarId, heads: usize, mask: Option<VarId>) -> Made {
        let (time, width) = (self.width("attention", x, 1)?, self.width("attention", x, 2)?);
        let batch = self.shape(x).dims()[0];
        let each = width / heads.max(1);
        let part = |b: &mut Builder| -> Made {
            let y = b.fc(x, width, Act::None)?;
            let y = b.reshape(y, [batch, time.into(), heads.into(), each.into()])?;
            b.transpose(y, &[0, 2, 1, 3])
        };
        let (q, k, v) = (part(self)?, part(self)?, part(self)?);
        let scores = self.matmul(q, k, false, true)?;
        let mut scores = self.scale(scores, 1.0 / libm::sqrt(each.max(1) as f64), 0.0)?;
        if let Some(mask) = mask {
            scores = self.add(scores, mask)?;
        }
        let weights = self.op1(Softmax { log: false }, &[scores])?;
        let mixed = self.matmul(weights, v, false, false)?;
        let mixed = self.transpose(mixed, &[0, 2, 1, 3])?;
        let mixed = self.reshape(mixed, [batch, time.into(), width.into()])?;
        self.fc(mixed, width, Act::None)
    }
}
