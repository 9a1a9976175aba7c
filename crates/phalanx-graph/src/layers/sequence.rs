//! Layers over sequences `[n, time, width]`. Where lengths `[n]` are given, what lies behind the end of a sequence
//! influences nothing (SEQ-1).

use super::{
    Builder, Made,
    draft::{CrfDecodingLayer, CrfLayer, RecurrentLayer, RnnCell, SequencePoolLayer, SequenceSoftmaxLayer},
    written::LayerName,
};
use crate::{
    ir::{GraphError, Init, VarId},
    op::{SequenceExpand, SequenceMask, SequenceOp},
};

/// Far beyond what memory holds, yet all gates together can be counted.
const MOST_WIDE: usize = 1 << 60;

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
        let first = first.map_or([None; 2], |(hidden, cell)| [Some(hidden), Some(cell)]);
        let out = self.recurrent(RnnCell::Lstm, x, options, first)?;
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
        let out = self.recurrent(RnnCell::Gru, x, options, [first, None])?;
        Ok(GruStates { all: out[0], last: out[1] })
    }

    #[track_caller]
    fn recurrent(
        &mut self,
        cell: RnnCell,
        x: VarId,
        options: RnnOptions,
        first: [Option<VarId>; 2],
    ) -> Result<Vec<VarId>, GraphError> {
        let (op, gates) = match cell {
            RnnCell::Lstm => ("lstm", 4),
            RnnCell::Gru => ("gru", 3),
        };
        let RnnOptions { width, reverse, lengths } = options;
        let size = gates * width.min(MOST_WIDE) as i64;
        let (is_given, ragged) = (first.map(|state| state.is_some()), lengths.is_some());
        let layer = RecurrentLayer { cell, size, reverse, first: is_given, ragged };
        let inputs: Vec<VarId> = [Some(x)].into_iter().chain(first).chain([lengths]).flatten().collect();
        self.layer(LayerName::same(op), layer, &inputs)
    }

    /// One row `[n, width]` from each sequence; zeros from an empty one.
    #[track_caller]
    pub fn sequence_pool(&mut self, x: VarId, op: SequenceOp, lengths: Option<VarId>) -> Made {
        let layer = SequencePoolLayer { op, by_root: false, ragged: lengths.is_some() };
        let inputs: Vec<VarId> = [x].into_iter().chain(lengths).collect();
        self.layer1(LayerName::same("sequence_pool"), layer, &inputs)
    }

    /// Softmax over each sequence of numbers, `[n, time]` or `[n, time, 1]`; zeros behind the ends.
    #[track_caller]
    pub fn sequence_softmax(&mut self, x: VarId, lengths: VarId) -> Made {
        let layer = SequenceSoftmaxLayer {};
        self.layer1(LayerName::same("sequence_softmax"), layer, &[x, lengths])
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
        let begin = Init::Uniform { low: -0.1, high: 0.1 };
        let layer = CrfLayer { begin, ragged: lengths.is_some() };
        let inputs: Vec<VarId> = [scores, tags].into_iter().chain(lengths).collect();
        let called = LayerName { op: "linear_chain_crf", as_name: "crf" };
        let out = self.layer(called, layer, &inputs)?;
        Ok((out[0], out[1]))
    }

    /// The likeliest tags `[n, time]` under the weights of a `linear_chain_crf`; 0 behind the ends.
    #[track_caller]
    pub fn crf_decoding(&mut self, scores: VarId, weights: VarId, lengths: Option<VarId>) -> Made {
        let layer = CrfDecodingLayer { label: false, ragged: lengths.is_some() };
        let inputs: Vec<VarId> = [scores, weights].into_iter().chain(lengths).collect();
        self.layer1(LayerName::same("crf_decoding"), layer, &inputs)
    }
}
