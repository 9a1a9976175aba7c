//! Attention with several heads, made of products and a softmax.

use super::{DraftValue, LayerDraft, LayerFault, fixed, shape};
use crate::{
    ir::{Dim, Shape, Sig},
    op::{
        Arith, Binary, Dropout, Func, MASKED, MaskScores, MatMul, Reshape, Samples, Softmax, Transpose, Unary,
    },
};
use serde::{Deserialize, Serialize};

/// What each of `[n, t, width]` finds in `[n, s, any]`, by scaled products. Its inputs are both, then the mask, which is
/// added to the scores, then the lengths of what is attended to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionLayer {
    pub heads: i64,
    /// Nothing attends to what comes after it.
    pub causal: bool,
    pub mask: bool,
    pub ragged: bool,
    /// With which probability a weight is dropped, and which random numbers decide it.
    pub dropout: Option<(f64, u32)>,
}

/// Sizes that all of it depends on.
struct Sizes {
    n: Dim,
    time: usize,
    width: usize,
    heads: usize,
    each: usize,
}

impl AttentionLayer {
    pub(super) fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
        let sizes = self.sizes(inputs)?;
        let (query, source) = (DraftValue::Input(0), DraftValue::Input(1));
        let (length, width) = (fixed(inputs, 1, 1)?, fixed(inputs, 1, 2)?);
        let mut draft = LayerDraft::default();
        let q = draft.heads(query, sizes.width, sizes.time, &sizes);
        let k = draft.heads(source, width, length, &sizes);
        let v = draft.heads(source, width, length, &sizes);
        let mut scores = draft.alone("matmul", MatMul { trans_a: false, trans_b: true }, &[q, k]);
        let down = 1.0 / libm::sqrt(sizes.each as f64);
        if down != 1.0 {
            scores = draft.alone("scale", Unary(Func::Scale { a: down, b: 0.0 }), &[scores]);
        }
        if self.mask {
            let axis = 4usize.saturating_sub(shape(inputs, 2)?.rank());
            let mask = DraftValue::Input(2);
            scores = draft.alone("elementwise_add", Binary { op: Arith::Add, axis }, &[scores, mask]);
        }
        if self.causal || self.ragged {
            // It replaces scores and does not add to them: whatever lies behind an end, it must not show (SEQ-1).
            let kind = MaskScores { causal: self.causal, ragged: self.ragged, value: MASKED };
            let mut takes = vec![scores];
            takes.extend(self.ragged.then_some(DraftValue::Input(2 + usize::from(self.mask))));
            scores = draft.alone("attention", kind, &takes);
        }
        let mut weights = draft.alone("softmax", Softmax { log: false }, &[scores]);
        if let Some((probability, stream)) = self.dropout {
            let dims = [sizes.n, sizes.heads.into(), sizes.time.into(), length.into()];
            let samples = Samples::of(&Shape::from(dims));
            weights = draft.alone("dropout", Dropout { probability, stream, samples }, &[weights]);
        }
        let mixed = draft.alone("matmul", MatMul { trans_a: false, trans_b: false }, &[weights, v]);
        let mixed = draft.alone("transpose", Transpose { order: vec![0, 2, 1, 3] }, &[mixed]);
        let joined = Shape::from([sizes.n, sizes.time.into(), sizes.width.into()]);
        let mixed = draft.alone("reshape", Reshape { shape: joined }, &[mixed]);
        let y = draft.connected(mixed, [sizes.width, sizes.width]);
        Ok(draft.giving(y))
    }

    fn sizes(&self, inputs: &[Sig]) -> Result<Sizes, LayerFault> {
        for input in [0, 1] {
            if shape(inputs, input)?.rank() != 3 {
                return Err(LayerFault::Takes { input, wanted: "[n, t, width]" });
            }
        }
        let (n, time, width) = (shape(inputs, 0)?.dims()[0], fixed(inputs, 0, 1)?, fixed(inputs, 0, 2)?);
        match usize::try_from(self.heads) {
            Ok(heads) if heads > 0 && width % heads == 0 => {
                Ok(Sizes { n, time, width, heads, each: (width / heads).max(1) })
            }
            _ => Err(LayerFault::Heads { input: 0, width, heads: self.heads }),
        }
    }
}

impl LayerDraft {
    /// A sequence times weights, the result split into heads: `[n, heads, time, width / heads]`.
    fn heads(&mut self, x: DraftValue, width: usize, time: usize, sizes: &Sizes) -> DraftValue {
        let y = self.connected(x, [width, sizes.width]);
        let split = [sizes.n, time.into(), sizes.heads.into(), (sizes.width / sizes.heads).into()];
        let y = self.alone("reshape", Reshape { shape: Shape::from(split) }, &[y]);
        self.alone("transpose", Transpose { order: vec![0, 2, 1, 3] }, &[y])
    }
}
