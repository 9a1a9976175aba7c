//! Layers over sequences `[n, time, width]`. Where lengths `[n]` are given, what lies behind the end of a sequence
//! influences nothing (SEQ-1).

use super::{Builder, Made};
use crate::{
    ir::{GraphError, Init, VarId},
    op::{
        CrfDecoding, Gru, LinearChainCrf, Lstm, OpKind, SequenceExpand, SequenceMask, SequenceOp,
        SequencePool,
    },
};

#[derive(Clone, Copy, Debug)]
pub struct RnnOptions {
    /// Of the state.
    pub width: usize,
    /// From the end of each sequence to its front.
    pub reverse: bool,
    pub lengths: Option<VarId>,
}

impl RnnOptions {
    /// From the front, all sequences equally long.
    pub fn new(width: usize) -> RnnOptions {
        RnnOptions { width, reverse: false, lengths: None }
    }
}

/// What an LSTM gives: hidden states `[n, time, width]`, and the last hidden and cell state `[n, width]` of each sequence.
#[derive(Clone, Copy, Debug)]
pub struct LstmStates {
    pub all: VarId,
    pub hidden: VarId,
    pub cell: VarId,
}

/// What a GRU gives: states `[n, time, width]`, and the last one `[n, width]` of each sequence.
#[derive(Clone, Copy, Debug)]
pub struct GruStates {
    pub all: VarId,
    pub last: VarId,
}

impl Builder {
    /// Long short-term memory; its states begin with zeros or with what is given (hidden, cell). Parameters have PyTorch's
    /// shapes and order of gates: `w_ih [4h, in]`, `w_hh [4h, h]`, `b_ih [4h]`, `b_hh [4h]`.
    #[track_caller]
    pub fn lstm(
        &mut self,
        x: VarId,
        options: RnnOptions,
        first: Option<(VarId, VarId)>,
    ) -> Result<LstmStates, GraphError> {
        let (x, w, b) = self.projected("lstm", x, options.width, 4)?;
        let x = self.add(x, b)?;
        let first = first.map(|(hidden, cell)| [hidden, cell]);
        let op = Lstm { reverse: options.reverse, ragged: options.lengths.is_some() };
        let out = self.recurrent(op, &[x, w], options, first)?;
        Ok(LstmStates { all: out[0], hidden: out[1], cell: out[2] })
    }

    /// Gated recurrent units; the state begins with zeros or with what is given. Parameters have PyTorch's shapes and order
    /// of gates: `w_ih [3h, in]`, `w_hh [3h, h]`, `b_ih [3h]`, `b_hh [3h]`.
    #[track_caller]
    pub fn gru(
        &mut self,
        x: VarId,
        options: RnnOptions,
        first: Option<VarId>,
    ) -> Result<GruStates, GraphError> {
        let (x, w, b) = self.projected("gru", x, options.width, 3)?;
        let op = Gru { reverse: options.reverse, ragged: options.lengths.is_some() };
        let out = self.recurrent(op, &[x, w, b], options, first.map(|first| [first]))?;
        Ok(GruStates { all: out[0], last: out[1] })
    }

    /// Inputs times their weights, and weights and bias of the state.
    #[track_caller]
    fn projected(
        &mut self,
        op: &'static str,
        x: VarId,
        h: usize,
        gates: usize,
    ) -> Result<(VarId, VarId, VarId), GraphError> {
        let width = self.width(op, x, 2)?;
        let limit = 1.0 / libm::sqrt(h.max(1) as f64);
        let init = Init::Uniform { low: -limit, high: limit };
        let wide = gates.saturating_mul(h);
        let w_ih = self.parameter(&format!("{op}.w_ih"), [wide, width], init)?;
        let w_hh = self.parameter(&format!("{op}.w_hh"), [wide, h], init)?;
        let b_ih = self.parameter(&format!("{op}.b_ih"), [wide], init)?;
        let b_hh = self.parameter(&format!("{op}.b_hh"), [wide], init)?;
        let x = self.matmul(x, w_ih, false, true)?;
        Ok((self.add(x, b_ih)?, w_hh, b_hh))
    }

    /// The operation itself: of projected inputs and parameters, `N` first states (zeros unless given), and lengths.
    #[track_caller]
    fn recurrent<const N: usize>(
        &mut self,
        op: impl Into<OpKind>,
        projected: &[VarId],
        options: RnnOptions,
        first: Option<[VarId; N]>,
    ) -> Result<Vec<VarId>, GraphError> {
        let mut inputs = projected.to_vec();
        match first {
            Some(first) => inputs.extend(first),
            None => {
                for _ in 0..N {
                    inputs.push(self.first_state(projected[0], options.width)?);
                }
            }
        }
        inputs.extend(options.lengths);
        self.op(op, &inputs)
    }

    #[track_caller]
    fn first_state(&mut self, x: VarId, h: usize) -> Made {
        let (n, dtype) = (self.shape(x).dims()[0], self.program.sig(x).dtype);
        self.fill(dtype, [n, h.into()], 0.0)
    }

    /// One row `[n, width]` from each sequence; zeros from an empty one.
    #[track_caller]
    pub fn sequence_pool(&mut self, x: VarId, op: SequenceOp, lengths: Option<VarId>) -> Made {
        let mut inputs = vec![x];
        inputs.extend(lengths);
        self.op1(SequencePool { op, ragged: lengths.is_some() }, &inputs)
    }

    /// Each row `[n, width]` over so much time; zeros behind the ends.
    #[track_caller]
    pub fn sequence_expand(&mut self, x: VarId, time: usize, lengths: Option<VarId>) -> Made {
        let mut inputs = vec![x];
        inputs.extend(lengths);
        self.op1(SequenceExpand { time, ragged: lengths.is_some() }, &inputs)
    }

    /// Ones before and zeros behind the ends: `[n, time]`, of the builder's type.
    #[track_caller]
    pub fn sequence_mask(&mut self, lengths: VarId, time: usize) -> Made {
        self.op1(SequenceMask { time, dtype: self.dtype }, &[lengths])
    }

    /// From scores `[n, time, tags]` and tags `[n, time]`: minus the logarithm of each tagging's probability `[n]`, and the
    /// learned weights `[tags + 2, tags]`: of beginning with a tag, of ending with it, of going from one to another.
    #[track_caller]
    pub fn linear_chain_crf(
        &mut self,
        scores: VarId,
        tags: VarId,
        lengths: Option<VarId>,
    ) -> Result<(VarId, VarId), GraphError> {
        let n_tags = self.width("linear_chain_crf", scores, 2)?;
        let init = Init::Uniform { low: -0.1, high: 0.1 };
        let w = self.parameter("crf.w", [n_tags.saturating_add(2), n_tags], init)?;
        let mut inputs = vec![scores, w, tags];
        inputs.extend(lengths);
        Ok((self.op1(LinearChainCrf { ragged: lengths.is_some() }, &inputs)?, w))
    }

    /// The likeliest tags `[n, time]` under the weights of a `linear_chain_crf`; 0 behind the ends.
    #[track_caller]
    pub fn crf_decoding(&mut self, scores: VarId, weights: VarId, lengths: Option<VarId>) -> Made {
        let mut inputs = vec![scores, weights];
        inputs.extend(lengths);
        self.op1(CrfDecoding { ragged: lengths.is_some() }, &inputs)
    }
}
