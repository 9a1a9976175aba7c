//! For buffers that live in the arena, or that the kernel lets others read: nothing is staged, ranks read and write each other's memory.
//!
//! The first `Sync` means that all inputs are complete, the second that no rank reads or writes a peer's buffer any more.

use super::{
    super::{
        Draft, Extent, Memory, PlanRequest,
        step::{Buf, CollectiveOp, Step},
    },
    cache_line_len,
};
use phalanx_core::Rank;

pub fn supports(request: &PlanRequest) -> bool {
    let op =
        !matches!(request.op, CollectiveOp::Reduce | CollectiveOp::ReduceScatter | CollectiveOp::Barrier);
    let reaches = match request.memory {
        Memory::Private => false,
        // What can only be read cannot take results.
        Memory::Readable => request.op != CollectiveOp::Allreduce,
        Memory::Arena => true,
    };
    op && reaches && request.is_one_arena()
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let between = match request.op {
        CollectiveOp::Allreduce => {
            let whole = Extent::new(0, request.layout.len());
            let grain = cache_line_len(request.elem_bytes);
            let chunk = whole.part_in_grains(request.n_ranks(), me.0, grain);
            vec![Step::ReduceDirect { at: chunk.at, len: chunk.len, last: true }]
        }
        _ => fetches(request, me),
    };
    let steps = std::iter::once(Step::Sync { turn: 0 }).chain(between).chain([Step::Sync { turn: 1 }]);
    Draft::in_arena(request.topology.neighbours(me), 2, 0, steps)
}

/// Copies all that this rank is due, its own part from its own `In` unless it is in place.
fn fetches(request: &PlanRequest, me: Rank) -> Vec<Step> {
    let n = request.n_ranks();
    let layout = &request.layout;
    // (peer, where in its `In`, where in my `Out`)
    let mut due: Vec<(Rank, u64, Extent)> = match request.op {
        CollectiveOp::Broadcast => {
            let root = layout.root().expect("a broadcast has a root");
            vec![(root, 0, Extent::new(0, layout.len()))]
        }
        CollectiveOp::Scatter => {
            let root = layout.root().expect("a scatter has a root");
            let extent = layout.extents()[me.index()];
            vec![(root, extent.at, Extent::new(0, extent.len))]
        }
        CollectiveOp::Gather if layout.root() != Some(me) => Vec::new(),
        CollectiveOp::Gather | CollectiveOp::Allgather => {
            layout.extents().into_iter().enumerate().map(|(p, dst)| (Rank::at(p), 0, dst)).collect()
        }
        CollectiveOp::Alltoall => {
            let dsts = layout.column(me).into_iter().enumerate();
            dsts.map(|(p, dst)| (Rank::at(p), layout.row(Rank::at(p))[me.index()].at, dst)).collect()
        }
        _ => unreachable!("supports() admits no other operation"),
    };
    if due.len() as u32 == n {
        // Every rank begins with itself and goes on with the next rank, so that not all read the same memory at once.
        due.rotate_left(me.index());
    }
    let is_there = |peer: Rank| peer == me && request.in_place;
    let steps = due.into_iter().filter(|&(peer, ..)| !is_there(peer)).map(|(peer, at, dst)| {
        if peer == me {
            Step::Copy { src: Extent::new(at, dst.len).of(Buf::In), dst: dst.of(Buf::Out) }
        } else {
            Step::FetchDirect { peer, at, dst: dst.of(Buf::Out) }
        }
    });
    steps.collect()
}
