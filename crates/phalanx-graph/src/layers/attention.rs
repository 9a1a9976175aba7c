//! Attention with several heads.

use super::{Builder, Made, draft::AttentionLayer, written::LayerName};
use crate::ir::VarId;

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
        let dropout = (dropout > 0.0).then(|| (dropout, self.stream()));
        let (heads, ragged) = (heads as i64, lengths.is_some());
        let layer = AttentionLayer { heads, causal, mask: false, ragged, dropout };
        let mut inputs = vec![query, source];
        inputs.extend(lengths);
        self.layer1(LayerName::same("attend"), layer, &inputs)
    }

    /// Attention of `[n, t, width]` to itself with several heads; the mask is added to the scores.
    #[track_caller]
    pub fn attention(&mut self, x: VarId, heads: usize, mask: Option<VarId>) -> Made {
        let (heads, causal, ragged) = (heads as i64, false, false);
        let layer = AttentionLayer { heads, causal, mask: mask.is_some(), ragged, dropout: None };
        let mut inputs = vec![x, x];
        inputs.extend(mask);
        self.layer1(LayerName::same("attention"), layer, &inputs)
    }
}
