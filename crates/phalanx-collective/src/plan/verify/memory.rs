//! Symbols and the memory that holds them.

use super::{
    super::{
        Extent, PlanRequest,
        step::{Buf, CollectiveOp, Span},
    },
    What,
};
use phalanx_core::Rank;
use std::ops::Range;

/// A set of ranks.
pub(super) type RankSet = u128;

pub(super) fn full(n_ranks: u32) -> RankSet {
    if n_ranks == 128 { RankSet::MAX } else { (1 << n_ranks) - 1 }
}

/// What one element holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    Undefined,
    Known(Term),
}

/// How far an element is on its way to a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Raw,
    /// Prescaled.
    Partial,
    /// Postscaled.
    Final,
}

/// The reduction of element `at` of these ranks. Two terms have the same hash if they are computed alike, so equal terms have equal bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub at: u64,
    pub ranks: RankSet,
    pub stage: Stage,
    hash: u64,
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Undefined => f.write_str("undefined"),
            Value::Known(t) => {
                let ranks: Vec<u32> = (0..128).filter(|r| t.ranks >> r & 1 == 1).collect();
                write!(f, "{:?} element {} of ranks {ranks:?}", t.stage, t.at)
            }
        }
    }
}

impl Value {
    pub fn input(rank: Rank, at: u64) -> Value {
        let hash = mix(u64::from(rank.0) + 1, at);
        Value::Known(Term { at, ranks: 1 << rank.0, stage: Stage::Raw, hash })
    }

    pub fn scaled(self, pre: bool, post: bool) -> Result<Value, What> {
        let Value::Known(mut term) = self else { return Err(What::CannotScale("an undefined element")) };
        if pre {
            if term.stage != Stage::Raw {
                return Err(What::CannotScale("prescaled before"));
            }
            term = Term { stage: Stage::Partial, hash: mix(term.hash, 2), ..term };
        }
        if post {
            term = term.finished().map_err(What::CannotScale)?;
        }
        Ok(Value::Known(term))
    }

    /// Two operands; which comes first makes no difference to the bits.
    pub fn reduced(self, other: Value, last: bool) -> Result<Value, What> {
        let (Value::Known(a), Value::Known(b)) = (self, other) else {
            return Err(What::CannotReduce("an undefined element"));
        };
        if a.stage != Stage::Partial || b.stage != Stage::Partial {
            return Err(What::CannotReduce("an element that is not prescaled or is final"));
        }
        let hash = mix(a.hash.min(b.hash), a.hash.max(b.hash));
        let term = join(a, b, hash)?;
        Ok(Value::Known(if last { term.finished().map_err(What::CannotReduce)? } else { term }))
    }

    /// All contributions of a group, in its order, each prescaled on the way.
    pub fn reduced_all(contributions: &[Value], last: bool) -> Result<Value, What> {
        let mut sum: Option<Term> = None;
        for value in contributions {
            let Value::Known(term) = *value else { return Err(What::CannotReduce("an undefined element")) };
            if term.stage != Stage::Raw {
                return Err(What::CannotReduce("an element that was scaled before"));
            }
            sum = Some(match sum {
                None => Term { stage: Stage::Partial, hash: mix(term.hash, 3), ..term },
                Some(sum) => join(sum, term, mix(sum.hash, mix(term.hash, 4)))?,
            });
        }
        let sum = sum.ok_or(What::CannotReduce("no contributions"))?;
        Ok(Value::Known(if last { sum.finished().map_err(What::CannotReduce)? } else { sum }))
    }
}

impl Term {
    fn finished(self) -> Result<Term, &'static str> {
        match self.stage {
            Stage::Partial => Ok(Term { stage: Stage::Final, hash: mix(self.hash, 5), ..self }),
            Stage::Raw => Err("postscaled but not prescaled"),
            Stage::Final => Err("postscaled before"),
        }
    }
}

fn join(a: Term, b: Term, hash: u64) -> Result<Term, What> {
    if a.at != b.at {
        return Err(What::CannotReduce("different elements"));
    }
    if a.ranks & b.ranks != 0 {
        return Err(What::CannotReduce("a contribution that is in already"));
    }
    Ok(Term { ranks: a.ranks | b.ranks, hash, ..a })
}

/// A mixing function without structure (the finaliser of splitmix64).
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x632b_e59b_d9b4_e019);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One rank's buffers in one row: `In` and `Out`, laid over each other as the request says, then scratch.
pub(super) struct RankMemory {
    pub cells: Vec<Value>,
    input: Range<usize>,
    out: Range<usize>,
    scratch: Range<usize>,
}

impl RankMemory {
    pub fn new(request: &PlanRequest, me: Rank, scratch_len: u64) -> RankMemory {
        let (in_len, out_len) = (request.in_len(me) as usize, request.out_len(me) as usize);
        let (input, out) = bases(request, me);
        let (input, out) = (input..input + in_len, out..out + out_len);
        let scratch_at = input.end.max(out.end);
        let scratch = scratch_at..scratch_at + scratch_len as usize;
        let mut cells = vec![Value::Undefined; scratch.end];
        for (at, cell) in cells[input.clone()].iter_mut().enumerate() {
            *cell = Value::input(me, at as u64);
        }
        RankMemory { cells, input, out, scratch }
    }

    pub fn out(&self) -> &[Value] {
        &self.cells[self.out.clone()]
    }

    /// The cells of a span.
    pub fn locate(&self, span: Span) -> Result<Range<usize>, What> {
        let buffer = match span.buf {
            Buf::In => &self.input,
            Buf::Out => &self.out,
            Buf::Scratch => &self.scratch,
        };
        let len = buffer.len() as u64;
        if span.at.checked_add(span.len).is_none_or(|end| end > len) {
            let (at, end) = (span.at, span.at.saturating_add(span.len));
            return Err(What::OutOfBounds { buf: span.buf, at, end, len });
        }
        let at = buffer.start + span.at as usize;
        Ok(at..at + span.len as usize)
    }

    /// The cells of a span that may be written.
    pub fn locate_to_write(&self, span: Span) -> Result<Range<usize>, What> {
        let cells = self.locate(span)?;
        let within = |buffer: &Range<usize>| buffer.start <= cells.start && cells.end <= buffer.end;
        if within(&self.out) || within(&self.scratch) { Ok(cells) } else { Err(What::WritesInput) }
    }
}

/// Where `In` and `Out` begin; see the table at `Layout`.
fn bases(request: &PlanRequest, me: Rank) -> (usize, usize) {
    let is_root = request.layout.root() == Some(me);
    let displacement = || request.layout.extents()[me.index()].at as usize;
    match request.op {
        CollectiveOp::Allreduce if request.in_place => (0, 0),
        CollectiveOp::Reduce | CollectiveOp::Broadcast if request.in_place && is_root => (0, 0),
        CollectiveOp::ReduceScatter if request.in_place => (0, displacement()),
        CollectiveOp::Scatter if request.in_place && is_root => (0, displacement()),
        CollectiveOp::Allgather if request.in_place => (displacement(), 0),
        CollectiveOp::Gather if request.in_place && is_root => (displacement(), 0),
        _ => (0, request.in_len(me) as usize),
    }
}

/// What the operation should leave in one rank's `Out`.
pub(super) struct Expected<'a> {
    request: &'a PlanRequest,
    me: Rank,
    /// Where each rank's elements are in `Out`.
    parts: Vec<Extent>,
}

impl Expected<'_> {
    pub fn new(request: &PlanRequest, me: Rank) -> Expected<'_> {
        let parts = match request.op {
            CollectiveOp::Alltoall => request.layout.column(me),
            _ => request.layout.extents(),
        };
        Expected { request, me, parts }
    }

    pub fn is_met(&self, at: u64, value: &Value) -> bool {
        let Value::Known(term) = *value else { return false };
        let everybody = full(self.request.n_ranks());
        let sum_of = |at| term.stage == Stage::Final && term.at == at && term.ranks == everybody;
        let layout = &self.request.layout;
        match self.request.op {
            CollectiveOp::Allreduce | CollectiveOp::Reduce => sum_of(at),
            CollectiveOp::ReduceScatter => sum_of(self.parts[self.me.index()].at + at),
            CollectiveOp::Broadcast => {
                *value == Value::input(layout.root().expect("a broadcast has a root"), at)
            }
            CollectiveOp::Scatter => {
                let root = layout.root().expect("a scatter has a root");
                *value == Value::input(root, self.parts[self.me.index()].at + at)
            }
            CollectiveOp::Allgather | CollectiveOp::Gather | CollectiveOp::Alltoall => {
                let p = self.parts.iter().position(|part| part.at <= at && at < part.end());
                let p = p.expect("parts cover Out");
                let base = match self.request.op {
                    CollectiveOp::Alltoall => layout.row(Rank::at(p))[self.me.index()].at,
                    _ => 0,
                };
                *value == Value::input(Rank::at(p), base + at - self.parts[p].at)
            }
            CollectiveOp::Barrier => true,
        }
    }
}
