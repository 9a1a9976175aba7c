//! The vocabulary of plans: what one rank does in one collective, as data.
//!
//! A plan names buffers, ranks and element ranges; it knows nothing of links, memory, threads or time.
//! `verify` proves plans, `simulate` prices them, `run` executes them.
//!
//! Two kinds of steps move data. **Link steps** (`Exchange`) move elements between two ranks over an unbuffered
//! wire. **Arena steps** move them through the memory that the ranks of one host share:
//! every rank of the group owns a ring of `N_SLOTS` slots; a *turn* is the number of one use of a slot, counted
//! from 0 in each plan and the same for all ranks of the group (turn t uses slot t mod `N_SLOTS`).
//! - ARENA-1: a rank publishes turns in ascending order; a rank that has nothing to publish in a turn skips it.
//! - ARENA-2: turn t is published only when every rank of the group has released turn t - `N_SLOTS`.
//! - ARENA-3: a rank releases turn t only after it has done all its reading of turns <= t; the end of the plan releases all.

use phalanx_core::Rank;
use smallvec::SmallVec;

/// Slots in each rank's ring: as many as a lane has, so that what is proved of plans holds where they run.
pub use phalanx_net::arena::N_SLOTS;

/// The operation a plan carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CollectiveOp {
    Allreduce,
    ReduceScatter,
    Allgather,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    Alltoall,
    Barrier,
}

impl CollectiveOp {
    pub const ALL: [CollectiveOp; 9] = [
        CollectiveOp::Allreduce,
        CollectiveOp::ReduceScatter,
        CollectiveOp::Allgather,
        CollectiveOp::Broadcast,
        CollectiveOp::Reduce,
        CollectiveOp::Gather,
        CollectiveOp::Scatter,
        CollectiveOp::Alltoall,
        CollectiveOp::Barrier,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            CollectiveOp::Allreduce => "allreduce",
            CollectiveOp::ReduceScatter => "reduce_scatter",
            CollectiveOp::Allgather => "allgather",
            CollectiveOp::Broadcast => "broadcast",
            CollectiveOp::Reduce => "reduce",
            CollectiveOp::Gather => "gather",
            CollectiveOp::Scatter => "scatter",
            CollectiveOp::Alltoall => "alltoall",
            CollectiveOp::Barrier => "barrier",
        }
    }
}

impl std::fmt::Display for CollectiveOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CollectiveOp {
    type Err = UnknownOp;

    fn from_str(name: &str) -> Result<CollectiveOp, UnknownOp> {
        CollectiveOp::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| UnknownOp(name.to_string()))
    }
}

/// A name that is no collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown collective {0:?}; known: allreduce reduce_scatter allgather broadcast reduce gather scatter alltoall barrier"
)]
pub struct UnknownOp(pub String);

/// One of the caller's buffers. In place, `In` and `Out` are the same memory where the operation says so
/// (see `Layout`); a plan for out-of-place use never writes `In`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buf {
    In,
    Out,
    /// Private to the executor; its size is `Plan::scratch_len`.
    Scratch,
}

/// A range of elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub buf: Buf,
    pub at: u64,
    pub len: u64,
}

impl Span {
    pub fn of(buf: Buf, at: u64, len: u64) -> Span {
        Span { buf, at, len }
    }

    pub fn end(&self) -> u64 {
        self.at + self.len
    }

    pub fn overlaps(&self, other: &Span) -> bool {
        self.buf == other.buf && self.at < other.end() && other.at < self.end()
    }
}

/// What happens to elements that arrive over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// They replace what is there.
    Store,
    /// They are reduced into what is there.
    Reduce,
    /// As `Reduce`, and the result is final: the postscale (and Average's division) is applied.
    ReduceLast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Send {
    pub to: Rank,
    pub src: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recv {
    pub from: Rank,
    pub dst: Span,
    pub fold: Fold,
}

/// One thing a rank does. A step ends before the next begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Copies within this rank's buffers. `src` and `dst` have equal lengths; where they are the same memory it does nothing.
    Copy { src: Span, dst: Span },
    /// Applies scale factors in place: `pre` to elements that no other step will prescale, `post` to final ones.
    Scale { span: Span, pre: bool, post: bool },
    /// Transfers that progress together, in any order between different peers and in list order for one peer.
    /// Nothing is buffered: a send ends when the peer's matching receive has taken it. Empty spans are not sent.
    Exchange { sends: SmallVec<[Send; 2]>, recvs: SmallVec<[Recv; 2]> },
    /// Copies each part into this rank's slot of this turn, at the given element, then lets the group read it.
    Publish { turn: u32, parts: SmallVec<[(Span, u64); 2]> },
    /// Waits until every rank in the group but this rank has published `turn`, then reduces in group order: this rank contributes `own`
    /// (unscaled), every other one the elements from `slot_at` of its slot (unscaled). Prescale is applied to every contribution,
    /// postscale if `last`. The result goes to `dst` and, with `publish = Some((turn, at))`, in the same
    /// pass into this rank's own slot of that turn, which is then published with just these elements.
    ReduceFrom { turn: u32, slot_at: u64, own: Span, dst: Span, publish: Option<(u32, u64)>, last: bool },
    /// Waits until `peer` has published `turn`, then copies from its slot.
    Fetch { turn: u32, peer: Rank, slot_at: u64, dst: Span },
    /// Lets the group re-use slots: this rank has read all it will of turns up to and including `turn`.
    Release { turn: u32 },
    /// Publishes an empty turn and waits until every rank in the group has published it.
    Sync { turn: u32 },
    /// Arena memory only (every rank's `In` and `Out` are visible to the group): reduces the range `at..at+len` of every rank's
    /// `In` in group order, prescaled, postscaled if `last`, and stores the result into every rank's `Out`.
    ReduceDirect { at: u64, len: u64, last: bool },
    /// Arena or readable memory only: copies from the peer's `In` into this rank's buffer.
    FetchDirect { peer: Rank, at: u64, dst: Span },
}

/// What one rank does in one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm's name, as benchmarks and traces show it.
    pub name: &'static str,
    /// The ranks that share memory with this one, itself included, in ascending order; empty if the plan has no arena steps.
    pub group: Vec<Rank>,
    /// How many turns the plan uses; equal on all ranks of the group.
    pub n_turns: u32,
    /// Elements of scratch the executor must provide.
    pub scratch_len: u64,
    pub steps: Vec<Step>,
}

/// Counts and roots of one collective, the same on every rank. All counts are in elements.
///
/// | op | `In` | `Out` | in place |
/// |---|---|---|---|
/// | Allreduce | n | n | In = Out |
/// | Reduce | n | n (root; others: none) | root: In = Out |
/// | Broadcast | n (root; others: none) | n | In = Out on every rank |
/// | ReduceScatter | sum(counts) | counts[me] | Out = In[displacement(me)..] |
/// | Allgather | counts[me] | sum(counts) | In = Out[displacement(me)..] |
/// | Gather | counts[me] | sum(counts) (root; others: none) | root: In = Out[displacement(me)..] |
/// | Scatter | sum(counts) (root; others: none) | counts[me] | root: Out = In[displacement(me)..] |
/// | Alltoall | sum over q of matrix[me][q] | sum over q of matrix[q][me] | never |
/// | Barrier | none | none | |
///
/// A plan of a rooted operation may read and write only buffers that exist on its rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Allreduce.
    Whole { len: u64 },
    /// Broadcast, Reduce.
    Rooted { root: Rank, len: u64 },
    /// ReduceScatter, Allgather: one count a rank.
    Counts { counts: Vec<u64> },
    /// Gather, Scatter.
    RootedCounts { root: Rank, counts: Vec<u64> },
    /// Alltoall: `matrix[p * n + q]` elements go from p to q.
    Matrix { n_ranks: u32, matrix: Vec<u64> },
    /// Barrier.
    Empty,
}
