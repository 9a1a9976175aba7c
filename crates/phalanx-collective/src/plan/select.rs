//! Which algorithm a call uses by default: a pure function of (operation, bytes, world).
//!
//! The thresholds are where the curves of neighbouring algorithms cross on ordinary hosts and networks; tuning may measure better ones for a
//! particular machine. Every rank makes the same choice because the request is the same.

use super::{Algorithm, Memory, PlanRequest, Wiring, step::CollectiveOp};
use phalanx_core::Way;

/// Shared memory, more than two ranks: up to this many bytes in all slots together every rank reduces everything.
const ARENA_ALL_BYTES: u64 = 16 << 10;
/// Buffers in the arena: below this one synchronisation and a copy cost less than two synchronisations.
const ARENA_DIRECT_BYTES: u64 = 1 << 10;
/// Buffers that only the kernel can read, two ranks: below this its calls cost more than a second copy.
const PEEK_BYTES: u64 = 32 << 10;
/// The same for alltoall among more ranks, where every message has one reader.
const PEEK_ALLTOALL_BYTES: u64 = 256 << 10;
const PEEK_BROADCAST_BYTES: u64 = 1 << 20;
/// Over links: up to this, latency is all and whole vectors are exchanged.
const DOUBLING_BYTES: u64 = 16 << 10;
/// The same for two ranks, where halving takes two messages instead of one and copies less.
const DOUBLING_BYTES_OF_TWO: u64 = 2 << 10;
/// Over links: up to this, few messages matter more than even traffic; only for powers of two, others pay two vectors more.
const HALVING_BYTES: u64 = 1 << 20;
/// Several hosts: up to this, one leader a host.
const TIERS_SMALL_BYTES: u64 = 16 << 10;
/// One tier over links above the arena: from here on segments are in both at once.
const OVERLAP_BYTES: u64 = 2 << 20;
/// Messages between hosts below this are mostly latency.
const OVERLAP_MESSAGE_BYTES: u64 = 16 << 10;
/// Several tiers over links: from here on segments are in several of them at once.
const PIPELINE_BYTES: u64 = 4 << 20;
/// Broadcast over links: from here on segments along a chain.
const CHAIN_BYTES: u64 = 256 << 10;

/// The algorithm for this request.
pub fn select(request: &PlanRequest) -> Algorithm {
    preferences(request)
        .iter()
        .filter_map(|name| Algorithm::named(name))
        .find(|algorithm| algorithm.supports(request))
        .expect("one algorithm of the list of each operation supports every world")
}

/// Best first; the first that supports the request is taken.
fn preferences(request: &PlanRequest) -> &'static [&'static str] {
    if request.n_ranks() == 1 {
        return &["alone"];
    }
    match request.op {
        CollectiveOp::Allreduce => allreduce(request),
        CollectiveOp::Broadcast => broadcast(request),
        CollectiveOp::Gather | CollectiveOp::Scatter => {
            direct_first(request, &["arena-direct", "arena", "tree"], &["arena", "tree"])
        }
        CollectiveOp::Reduce => &["arena", "tree"],
        CollectiveOp::Allgather => {
            direct_first(request, &["arena-direct", "arena", "ring"], &["arena", "ring"])
        }
        CollectiveOp::ReduceScatter => &["arena", "ring"],
        CollectiveOp::Alltoall => {
            direct_first(request, &["arena-direct", "arena", "pairwise"], &["arena", "pairwise"])
        }
        CollectiveOp::Barrier => &["arena", "tiers-rooted", "dissemination"],
    }
}

/// Whether segments that overlap are large enough. Each of them makes a ring of its own between hosts, and one message of that ring is a segment's
/// share of a host: with many hosts it would cost more latency than overlapping saves.
pub(super) fn overlaps(request: &PlanRequest) -> bool {
    let n_each = u64::from(request.topology.even().unwrap_or(1));
    let slot_bytes = request.slot_bytes;
    let piece = request.segment_bytes.min(slot_bytes / 3).min(slot_bytes / n_each);
    3 * piece >= OVERLAP_MESSAGE_BYTES * u64::from(request.topology.n_hosts())
}

fn allreduce(request: &PlanRequest) -> &'static [&'static str] {
    let (n, bytes) = (request.n_ranks(), request.bytes());
    let asks_for_links = |wiring: &Wiring| wiring.n_arena_tiers(&request.topology) == 0;
    if request.is_one_arena() && !request.tiers.as_ref().is_some_and(asks_for_links) {
        let is_small = u64::from(n) * bytes <= ARENA_ALL_BYTES;
        return match request.memory {
            Memory::Arena if bytes > ARENA_DIRECT_BYTES || (n > 2 && !is_small) => &["arena-direct"],
            _ if n == 2 || is_small => &["arena-all"],
            _ => &["arena-split"],
        };
    }
    let n_hosts = request.topology.n_hosts();
    if let Some(wiring) = &request.tiers {
        return match bytes {
            ..=TIERS_SMALL_BYTES if wiring.ways[0] == Way::Arena => &["tiers-small", "doubling"],
            ..=TIERS_SMALL_BYTES => &["doubling"],
            PIPELINE_BYTES.. if overlaps(request) => &["tiers-pipelined", "tiers-overlapped", "tiers"],
            PIPELINE_BYTES.. => &["tiers-pipelined", "tiers"],
            OVERLAP_BYTES.. if overlaps(request) => &["tiers-overlapped", "tiers"],
            _ => &["tiers"],
        };
    }
    if n_hosts > 1 && n > n_hosts {
        return match bytes {
            ..=TIERS_SMALL_BYTES => &["tiers-small", "doubling"],
            OVERLAP_BYTES.. if overlaps(request) => &["tiers-overlapped", "tiers"],
            _ => &["tiers"],
        };
    }
    let doubling_bytes = if n == 2 { DOUBLING_BYTES_OF_TWO } else { DOUBLING_BYTES };
    if bytes <= doubling_bytes {
        &["doubling"]
    } else if n == 2 || (n.is_power_of_two() && bytes <= HALVING_BYTES) {
        &["halving"]
    } else {
        &["ring"]
    }
}

fn broadcast(request: &PlanRequest) -> &'static [&'static str] {
    if request.memory == Memory::Readable && request.is_one_arena() {
        // Above that, staging wins: the root does half of the copying while the others do theirs.
        let is_short = (PEEK_BYTES..=PEEK_BROADCAST_BYTES).contains(&request.bytes());
        return if request.n_ranks() == 2 && is_short { &["arena-direct"] } else { &["arena"] };
    }
    match request.bytes() {
        ..=ARENA_DIRECT_BYTES => &["arena", "tiers-rooted", "tree"],
        CHAIN_BYTES.. if request.n_ranks() > 2 => &["arena-direct", "arena", "tiers-rooted", "chain"],
        _ => &["arena-direct", "arena", "tiers-rooted", "tree"],
    }
}

/// For buffers in the arena that are worth the second synchronisation, the first list.
fn direct_first(
    request: &PlanRequest,
    direct: &'static [&'static str],
    staged: &'static [&'static str],
) -> &'static [&'static str] {
    let least = match (request.memory, request.n_ranks(), request.op) {
        (Memory::Readable, 2, _) => PEEK_BYTES,
        (Memory::Readable, _, CollectiveOp::Alltoall) => PEEK_ALLTOALL_BYTES,
        // One copy into a slot serves many readers; the kernel would be asked by each.
        (Memory::Readable, ..) => return staged,
        _ => ARENA_DIRECT_BYTES,
    };
    if request.bytes() > least { direct } else { staged }
}

#[cfg(test)]
mod tests {
    use super::{
        super::step::{Layout, Step},
        *,
    };
    use phalanx_core::{Rank, Topology};
    use std::sync::Arc;

    fn request(op: CollectiveOp, sizes: &[u32], bytes: u64) -> PlanRequest {
        let n = sizes.iter().sum::<u32>() as usize;
        let root = Rank::ZERO;
        let layout = match op {
            CollectiveOp::Allreduce => Layout::Whole { len: bytes },
            CollectiveOp::Broadcast | CollectiveOp::Reduce => Layout::Rooted { root, len: bytes },
            CollectiveOp::ReduceScatter | CollectiveOp::Allgather => {
                Layout::Counts { counts: vec![bytes; n] }
            }
            CollectiveOp::Gather | CollectiveOp::Scatter => {
                Layout::RootedCounts { root, counts: vec![bytes; n] }
            }
            CollectiveOp::Alltoall => Layout::Matrix { n_ranks: n as u32, matrix: vec![bytes; n * n] },
            CollectiveOp::Barrier => Layout::Empty,
        };
        PlanRequest {
            op,
            layout,
            topology: Arc::new(Topology::of_sizes(sizes)),
            tiers: None,
            elem_bytes: 1,
            in_place: false,
            memory: Memory::Private,
            slot_bytes: 1 << 20,
            segment_bytes: 64 << 10,
            links_only: false,
        }
    }

    #[test]
    fn every_call_in_every_world_has_an_algorithm() {
        for op in CollectiveOp::ALL {
            for sizes in [&[1][..], &[2], &[5], &[1, 1], &[3, 1], &[1, 1, 4], &[4, 4, 4, 4]] {
                for bytes in [0, 1, 4 << 10, 64 << 10, 16 << 20] {
                    for (links_only, memory) in
                        [(false, Memory::Private), (true, Memory::Private), (false, Memory::Arena)]
                    {
                        let request = PlanRequest { links_only, memory, ..request(op, sizes, bytes) };
                        assert!(select(&request).supports(&request), "{request:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn allreduce_goes_from_latency_to_bandwidth_as_it_grows() {
        let choice = |sizes: &[u32], bytes| select(&request(CollectiveOp::Allreduce, sizes, bytes)).name();
        assert_eq!([64, 64 << 10, 64 << 20].map(|b| choice(&[2], b)), ["arena-all"; 3]);
        assert_eq!([64, 64 << 10].map(|b| choice(&[4], b)), ["arena-all", "arena-split"]);
        assert_eq!(
            [64, 64 << 10, 64 << 20].map(|b| choice(&[4, 4], b)),
            ["tiers-small", "tiers", "tiers-overlapped"]
        );
        assert_eq!(choice(&[8; 128], 64 << 20), "tiers", "messages of segments would be too small");
        assert_eq!(choice(&[4, 3], 64 << 20), "tiers", "shares of uneven hosts have different borders");
        assert_eq!(
            [64, 64 << 10, 64 << 20].map(|b| choice(&[1, 1, 1, 1], b)),
            ["doubling", "halving", "ring"]
        );
        assert_eq!([64, 4 << 10].map(|b| choice(&[1, 1], b)), ["doubling", "halving"]);
        assert_eq!(choice(&[1, 1, 1], 64 << 10), "ring");
    }

    /// All but a call's last segment, which has what is left.
    #[test]
    fn segments_overlap_only_where_their_messages_are_worth_a_round_trip() {
        let mut overlapped = Vec::new();
        for n_hosts in [2, 4, 8, 12, 16, 32, 128] {
            let request = request(CollectiveOp::Allreduce, &vec![8; n_hosts], 64 << 20);
            let algorithm = select(&request);
            if algorithm.name() != "tiers-overlapped" {
                continue;
            }
            overlapped.push(n_hosts);
            let draft = algorithm.draft(&request, Rank::ZERO);
            let sent = draft.steps.flat_map(|step| match step {
                Step::Exchange { sends, .. } => sends.iter().map(|send| send.src.len).collect::<Vec<_>>(),
                _ => Vec::new(),
            });
            let sent: Vec<u64> = sent.collect();
            let all_but_last = &sent[..sent.len() - 2 * (n_hosts - 1)];
            assert!(!all_but_last.is_empty());
            let least = all_but_last.iter().min().copied().unwrap_or(0);
            assert!(least >= OVERLAP_MESSAGE_BYTES, "{n_hosts} hosts: messages of {least} bytes");
        }
        assert_eq!(overlapped, [2, 4, 8, 12], "of hosts with 8 ranks");
    }

    /// Ways that were asked for count on one host, too.
    #[test]
    fn on_one_host_the_ways_of_a_shape_decide_between_its_memory_and_links() {
        let choice = |shape: &str, ways: Option<&str>, bytes| {
            let base = request(CollectiveOp::Allreduce, &[4], bytes);
            let ways = ways.map(|ways| Way::list(ways).unwrap());
            let wiring = Wiring::new(&shape.parse().unwrap(), &base.topology, ways.as_deref()).unwrap();
            select(&PlanRequest { tiers: Some(wiring), ..base }).name()
        };
        for shape in ["4", "2x2"] {
            assert_eq!([64, 64 << 10].map(|b| choice(shape, None, b)), ["arena-all", "arena-split"]);
        }
        assert_eq!(choice("2x2", Some("arena,arena"), 64 << 10), "arena-split");
        assert_eq!([64, 64 << 10].map(|b| choice("4", Some("ring"), b)), ["doubling", "tiers"]);
        assert_eq!(choice("2x2", Some("ring,direct"), 8 << 20), "tiers-pipelined");
        assert_eq!(choice("2x2", Some("arena,ring"), 64 << 10), "tiers");
    }

    #[test]
    fn broadcast_goes_from_a_tree_to_a_chain_as_it_grows() {
        let choice = |sizes: &[u32], bytes, links_only| {
            select(&PlanRequest { links_only, ..request(CollectiveOp::Broadcast, sizes, bytes) }).name()
        };
        assert_eq!([64, 1 << 20].map(|b| choice(&[4], b, true)), ["tree", "chain"]);
        assert_eq!([64, 1 << 20].map(|b| choice(&[2, 2], b, true)), ["tree", "chain"]);
        assert_eq!([64, 1 << 20].map(|b| choice(&[2, 2], b, false)), ["tiers-rooted"; 2]);
        assert_eq!([64, 1 << 20].map(|b| choice(&[4], b, false)), ["arena"; 2]);
    }

    #[test]
    fn buffers_in_the_arena_are_not_staged_unless_tiny() {
        let choice = |bytes| {
            select(&PlanRequest { memory: Memory::Arena, ..request(CollectiveOp::Allreduce, &[2], bytes) })
                .name()
        };
        assert_eq!([1 << 10, 64 << 10].map(choice), ["arena-all", "arena-direct"]);
    }
}
