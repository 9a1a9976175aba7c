//! Attention with several heads, made of products and a softmax.

use super::{Act, Builder, Made};
use crate::{
    ir::VarId,
    op::{MASKED, MaskScores, Softmax},
};

#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions {
    pub heads: usize,
    /// Nothing attends to what comes after it.
    pub causal: bool,
    /// Lengths `[n]` of what is attended to: nothing attends to what lies behind the ends (SEQ-1).
    pub lengths: Option<VarId>,
    /// With which probability a weight is dropped.
    pub dropout: f64,
}

impl AttentionOptions {
    pub fn new(heads: usize) -> AttentionOptions {
        AttentionOptions { heads, causal: false, lengths: None, dropout: 0.0 }
    }
}

impl Builder {
    /// What each of `[n, t, width]` finds in `[n, s, any]`, by scaled products: itself, or another sequence. A
    /// sequence of length 0 is attended to evenly.
    #[track_caller]
    pub fn attend(&mut self, query: VarId, source: VarId, options: AttentionOptions) -> Made {
        let AttentionOptions { heads, causal, lengths, dropout } = options;
        let (t, width) = (self.width("attend", query, 1)?, self.width("attend", query, 2)?);
        let s = self.width("attend", source, 1)?;
        let q = self.heads(query, heads, width, t)?;
        let (k, v) = (self.heads(source, heads, width, s)?, self.heads(source, heads, width, s)?);
        let scores = self.matmul(q, k, false, true)?;
        let each = (width / heads.max(1)).max(1);
        let mut scores = self.scale(scores, 1.0 / libm::sqrt(each as f64), 0.0)?;
        if causal || lengths.is_some() {
            let mut inputs = vec![scores];
            inputs.extend(lengths);
            scores = self.op1(MaskScores { causal, ragged: lengths.is_some(), value: MASKED }, &inputs)?;
        }
        let mut weights = self.op1(Softmax { log: false }, &[scores])?;
        if dropout > 0.0 {
            weights = self.dropout(weights, dropout)?;
        }
        let mixed = self.matmul(weights, v, false, false)?;
        let mixed = self.transpose(mixed, &[0, 2, 1, 3])?;
        let n = self.shape(query).dims()[0];
        let mixed = self.reshape(mixed, [n, t.into(), width.into()])?;
        self.fc(mixed, width, Act::None)
    }

    /// A sequence times weights, `width` split into heads: `[n, heads, time, width / heads]`.
    #[track_caller]
    fn heads(&mut self, x: VarId, heads: usize, width: usize, time: usize) -> Made {
        let y = self.fc(x, width, Act::None)?;
        let n = self.shape(x).dims()[0];
        let y = self.reshape(y, [n, time.into(), heads.into(), (width / heads.max(1)).into()])?;
        self.transpose(y, &[0, 2, 1, 3])
    }
}
