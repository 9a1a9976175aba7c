//! Allreduce along a tier in the arena and one over links, segment by segment: while shares of one segment travel between hosts, the ranks of a host
//! reduce the next one and fetch the one before.
//!
//! Each rank has a share of the vector, as in the plan without segments; a segment is the next piece of every rank's share. It takes `TURNS` turns to be reduced in the arena and
//! one to be gathered. Before a rank exchanges a segment it has copied the next one in, and it fetches the segment before only afterwards: it waits for
//! other ranks of its host neither when it begins nor when it ends an exchange, so ranks of a host may be one segment apart and the network has
//! something to do at all times.

use super::{
    super::{
        Draft, Extent, PlanRequest,
        arena::{Lanes, Parts},
        step::{Buf, CollectiveOp, N_SLOTS, Step},
    },
    climb::{legs, n_arena_tiers},
    way::Leg,
};
use phalanx_core::{Rank, Way};

/// Turns in which a segment is reduced. Two segments, and one turn each in which they are gathered, fit into the slots.
const TURNS: u32 = (N_SLOTS - 2) / 2;

pub fn supports(request: &PlanRequest) -> bool {
    request.op == CollectiveOp::Allreduce && request.has_arena() && cut(request, Rank::ZERO).is_some()
}

/// The tier over links, if there is one only and the arena is all below it.
fn leg(request: &PlanRequest, me: Rank) -> Option<Leg> {
    let topology = &request.topology;
    topology.even().filter(|each| *each > 1)?;
    match &request.tiers {
        Some(_) if n_arena_tiers(request) == 0 => None,
        Some(_) => {
            let mut legs = legs(request, me);
            legs.pop().filter(|_| legs.is_empty())
        }
        None => {
            let local = topology.local_of(me) as usize;
            let seats: Vec<Rank> = topology.hosts().iter().map(|host| host[local]).collect();
            (seats.len() > 1).then(|| Leg { way: Way::Ring, place: topology.host_of(me), seats })
        }
    }
}

/// The vector in segments.
#[derive(Clone, Debug)]
struct Cut {
    leg: Leg,
    lanes: Lanes,
    /// The share of each rank of the host.
    shares: Vec<Extent>,
    n_segments: u32,
}

fn cut(request: &PlanRequest, me: Rank) -> Option<Cut> {
    let leg = leg(request, me)?;
    let n = request.topology.neighbours(me).len() as u32;
    let whole = Extent::new(0, request.layout.len());
    let shares: Vec<Extent> = (0..n).map(|i| whole.part(n, i)).collect();
    let slot_len = request.slot_len();
    // What a rank has of a segment is gathered in one turn.
    let piece_len = request.segment_len().min(slot_len / u64::from(TURNS));
    let lanes = Lanes::new(n, shares[0].len, slot_len, piece_len, request.elem_bytes);
    let n_segments = lanes.n_turns().div_ceil(TURNS);
    // Where a slot has less than one element for each rank, or for each turn, they would need more turns.
    let fits = lanes.owners(0).len() as u32 == n && piece_len > 0;
    fits.then_some(Cut { leg, lanes, shares, n_segments })
}

impl Cut {
    /// The turn of one piece of a segment.
    fn turn_in(&self, segment: u32, piece: u32) -> u32 {
        // Every segment but the first is copied in before the one before it is gathered.
        (segment * (TURNS + 1)).saturating_sub(1) + piece
    }

    /// The turn in which a segment is gathered.
    fn turn_out(&self, segment: u32) -> u32 {
        let after_next = if segment + 1 < self.n_segments { TURNS } else { 0 };
        segment * (TURNS + 1) + TURNS + after_next
    }

    fn n_turns(&self) -> u32 {
        self.n_segments * (TURNS + 1)
    }

    fn piece(&self, segment: u32, piece: u32, owner: u32) -> Extent {
        self.lanes.piece(segment * TURNS + piece, owner, self.shares[owner as usize])
    }

    /// What a rank has of a segment.
    fn range(&self, segment: u32, owner: u32) -> Extent {
        let (first, last) = (self.piece(segment, 0, owner), self.piece(segment, TURNS - 1, owner));
        Extent::between(first.at, last.end())
    }
}

pub fn draft(request: &PlanRequest, me: Rank) -> Draft<'_> {
    let cut = cut(request, me).expect("supports() looks at the same");
    let group = request.topology.neighbours(me);
    let (n, place) = (group.len() as u32, request.topology.local_of(me));
    let (n_turns, n_segments) = (cut.n_turns(), cut.n_segments);
    let copy_in = move |cut: &Cut, segment: u32| -> Vec<Step> {
        let publish = |piece| {
            let others = (0..n).filter(|&owner| owner != place);
            let part = |owner| (cut.piece(segment, piece, owner).of(Buf::In), cut.lanes.slot_at(owner));
            let parts: Parts = others.map(part).filter(|(span, _)| span.len > 0).collect();
            Step::Publish { turn: cut.turn_in(segment, piece), parts }
        };
        (0..TURNS).map(publish).collect()
    };
    let first = copy_in(&cut, 0);
    let steps = (0..n_segments).flat_map(move |segment| {
        let mut steps = if segment + 1 < n_segments { copy_in(&cut, segment + 1) } else { Vec::new() };
        steps.extend((0..TURNS).map(|piece| {
            let own = cut.piece(segment, piece, place);
            Step::ReduceFrom {
                turn: cut.turn_in(segment, piece),
                slot_at: cut.lanes.slot_at(place),
                own: own.of(Buf::In),
                dst: own.of(Buf::Out),
                publish: None,
                last: false,
            }
        }));
        steps.push(Step::Release { turn: cut.turn_in(segment, TURNS - 1) });
        let range = cut.range(segment, place);
        steps.extend(cut.leg.reduce_scatter(range, true));
        steps.extend(cut.leg.all_gather(range));
        let turn = cut.turn_out(segment);
        steps.push(Step::Publish { turn, parts: [(range.of(Buf::Out), 0)].into_iter().collect() });
        let is_last = segment + 1 == n_segments;
        let fetched = segment.saturating_sub(1)..if is_last { segment + 1 } else { segment };
        for gathered in fetched {
            let turn = cut.turn_out(gathered);
            // Every rank begins with the next rank, so that not all read the same slot at once.
            steps.extend((1..n).map(|ahead| {
                let peer = (place + ahead) % n;
                let dst = cut.range(gathered, peer).of(Buf::Out);
                Step::Fetch { turn, peer: group[peer as usize], slot_at: 0, dst }
            }));
            if !is_last {
                steps.push(Step::Release { turn });
            }
        }
        steps
    });
    Draft::in_arena(group, n_turns, 0, first.into_iter().chain(steps))
}
