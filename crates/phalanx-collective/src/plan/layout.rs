//! Arithmetic on layouts: how many elements each rank has, and where.

use super::{
    Extent, PlanRequest,
    step::{CollectiveOp, Layout},
};
use phalanx_core::Rank;

impl Layout {
    /// Elements of the vector; for counts, of all together.
    pub fn len(&self) -> u64 {
        match self {
            Layout::Whole { len } | Layout::Rooted { len, .. } => *len,
            Layout::Counts { counts } | Layout::RootedCounts { counts, .. } => counts.iter().sum(),
            Layout::Matrix { matrix, .. } => matrix.iter().sum(),
            Layout::Empty => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn root(&self) -> Option<Rank> {
        match self {
            Layout::Rooted { root, .. } | Layout::RootedCounts { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// The count of each rank, where the layout has one.
    pub fn counts(&self) -> &[u64] {
        match self {
            Layout::Counts { counts } | Layout::RootedCounts { counts, .. } => counts,
            _ => &[],
        }
    }

    /// Each rank's elements in the buffer that holds every rank's.
    pub fn extents(&self) -> Vec<Extent> {
        in_a_row(self.counts().iter().copied())
    }

    /// Elements that p sends to q in an alltoall.
    pub fn cell(&self, p: Rank, q: Rank) -> u64 {
        match self {
            Layout::Matrix { n_ranks, matrix } => matrix[p.index() * *n_ranks as usize + q.index()],
            _ => 0,
        }
    }

    /// Where the elements for each rank are in `In` of `me`.
    pub fn row(&self, me: Rank) -> Vec<Extent> {
        self.matrix_line(|other| self.cell(me, other))
    }

    /// Where the elements from each rank go in `Out` of `me`.
    pub fn column(&self, me: Rank) -> Vec<Extent> {
        self.matrix_line(|other| self.cell(other, me))
    }

    fn matrix_line(&self, cell: impl Fn(Rank) -> u64) -> Vec<Extent> {
        match self {
            Layout::Matrix { n_ranks, .. } => in_a_row((0..*n_ranks).map(|r| cell(Rank(r)))),
            _ => Vec::new(),
        }
    }
}

/// Ranges of these lengths, one behind the other.
fn in_a_row(lens: impl Iterator<Item = u64>) -> Vec<Extent> {
    lens.scan(0, |next, len| {
        let at = *next;
        *next += len;
        Some(Extent { at, len })
    })
    .collect()
}

impl PlanRequest {
    /// Elements of `In` on this rank.
    pub fn in_len(&self, me: Rank) -> u64 {
        let is_root = self.layout.root() == Some(me);
        match self.op {
            CollectiveOp::Allreduce | CollectiveOp::Reduce | CollectiveOp::ReduceScatter => self.layout.len(),
            CollectiveOp::Broadcast | CollectiveOp::Scatter if is_root => self.layout.len(),
            CollectiveOp::Broadcast | CollectiveOp::Scatter | CollectiveOp::Barrier => 0,
            CollectiveOp::Allgather | CollectiveOp::Gather => self.layout.counts()[me.index()],
            CollectiveOp::Alltoall => self.layout.row(me).iter().map(|e| e.len).sum(),
        }
    }

    /// Elements of `Out` on this rank.
    pub fn out_len(&self, me: Rank) -> u64 {
        let is_root = self.layout.root() == Some(me);
        match self.op {
            CollectiveOp::Allreduce | CollectiveOp::Broadcast | CollectiveOp::Allgather => self.layout.len(),
            CollectiveOp::Reduce | CollectiveOp::Gather if is_root => self.layout.len(),
            CollectiveOp::Reduce | CollectiveOp::Gather | CollectiveOp::Barrier => 0,
            CollectiveOp::ReduceScatter | CollectiveOp::Scatter => self.layout.counts()[me.index()],
            CollectiveOp::Alltoall => self.layout.column(me).iter().map(|e| e.len).sum(),
        }
    }

    /// Bytes of the larger of the buffers that hold every rank's elements: what thresholds are about.
    pub fn bytes(&self) -> u64 {
        self.layout.len() * u64::from(self.elem_bytes)
    }
}
