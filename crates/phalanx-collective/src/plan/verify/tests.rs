use super::{
    super::{
        Memory, build,
        draft::{recv, send, swap},
        step::{Fold, Layout, Span, Step},
    },
    *,
};
use phalanx_core::Topology;
use std::sync::Arc;

fn request(op: CollectiveOp, layout: Layout, topology: Topology) -> PlanRequest {
    PlanRequest {
        op,
        layout,
        topology: Arc::new(topology),
        tiers: None,
        elem_bytes: 4,
        in_place: true,
        memory: Memory::Arena,
        slot_bytes: 64,
        segment_bytes: 16,
        links_only: false,
    }
}

fn allreduce(n: u32, len: u64) -> PlanRequest {
    request(CollectiveOp::Allreduce, Layout::Whole { len }, Topology::one_host(n))
}

fn plans(name: &str, request: &PlanRequest) -> Vec<Plan> {
    (0..request.n_ranks()).map(|r| build(name.parse().unwrap(), request, Rank(r))).collect()
}

fn over_links(scratch_len: u64, steps: Vec<Step>) -> Plan {
    Plan { name: "test", group: vec![], n_turns: 0, scratch_len, steps }
}

fn out(at: u64, len: u64) -> Span {
    Span::of(Buf::Out, at, len)
}

/// VER-4.
#[test]
fn two_ranks_that_both_send_first_deadlock() {
    let request = allreduce(2, 4);
    let ranks = [(Rank(0), Rank(1)), (Rank(1), Rank(0))];
    let plans = ranks.map(|(me, peer)| {
        let (mine, other) = (out(2 * u64::from(me.0), 2), out(2 * u64::from(peer.0), 2));
        over_links(0, vec![send(peer, mine), recv(peer, other, Fold::Store)])
    });
    let fault = verify(&request, &plans).unwrap_err();
    assert_eq!(fault, PlanFault { rank: Rank(0), step: Some(0), what: What::Deadlock { peer: Rank(1) } });
    assert_eq!(fault.to_string(), "rank 0 at step 0: waits for rank 1 for ever");
}

/// VER-6.
#[test]
fn direct_reductions_need_a_sync_on_both_sides() {
    let request = allreduce(3, 9);
    let without = |turn: u32| {
        let mut plans = plans("arena-direct", &request);
        for plan in &mut plans {
            plan.steps.retain(|step| *step != Step::Sync { turn });
        }
        verify(&request, &plans).unwrap_err().what
    };
    assert_eq!(without(0), What::PeerNotReady { peer: Rank(1) });
    assert!(matches!(without(1), What::EndsEarly { .. }));
}

/// VER-6.
#[test]
fn direct_reductions_of_overlapping_ranges_race() {
    let request = PlanRequest { in_place: false, ..allreduce(2, 8) };
    let mut plans = plans("arena-direct", &request);
    plans[1].steps[1] = Step::ReduceDirect { at: 0, len: 8, last: true };
    let what = verify(&request, &plans).unwrap_err().what;
    assert!(matches!(what, What::Race { .. }), "{what}");
}

/// VER-3.
#[test]
fn input_that_is_not_output_must_not_be_written() {
    let request = PlanRequest { in_place: false, ..allreduce(2, 8) };
    let mut plans = plans("ring", &request);
    let span = Span::of(Buf::In, 0, 8);
    plans[1].steps.insert(0, Step::Scale { span, pre: true, post: false });
    assert_eq!(
        verify(&request, &plans).unwrap_err(),
        PlanFault { rank: Rank(1), step: Some(0), what: What::WritesInput }
    );
}

/// VER-3.
#[test]
fn in_place_buffers_overlap() {
    // Out of place the first half of In can be sent while the first half of Out comes in; in place it cannot.
    let exchange = |peer: Rank| swap(peer, Span::of(Buf::In, 0, 2), peer, out(0, 2), Fold::Store);
    let plans = [over_links(0, vec![exchange(Rank(1))]), over_links(0, vec![exchange(Rank(0))])];
    let what = |in_place| verify(&PlanRequest { in_place, ..allreduce(2, 4) }, &plans).unwrap_err().what;
    assert_eq!(what(true), What::Overlap);
    assert!(matches!(what(false), What::WrongResult { at: 0, .. }));
}

/// VER-1.
#[test]
fn every_scale_is_applied_once() {
    let request = allreduce(2, 8);
    let mut twice = plans("ring", &request);
    let first = twice[0].steps[0].clone();
    twice[0].steps.insert(0, first);
    assert_eq!(verify(&request, &twice).unwrap_err().what, What::CannotScale("prescaled before"));
    let mut never = plans("arena-all", &request);
    for step in &mut never[0].steps {
        if let Step::ReduceFrom { last, .. } = step {
            *last = false;
        }
    }
    assert!(matches!(verify(&request, &never).unwrap_err().what, What::WrongResult { at: 0, .. }));
}

/// VER-2.
#[test]
fn sums_in_different_orders_have_different_bits() {
    let terms = [0, 1, 2].map(|r| memory::Value::input(Rank(r), 0).scaled(true, false).unwrap());
    let left = terms[0].reduced(terms[1], false).unwrap().reduced(terms[2], true).unwrap();
    let right = terms[1].reduced(terms[2], false).unwrap().reduced(terms[0], true).unwrap();
    let swapped = terms[2].reduced(terms[1].reduced(terms[0], false).unwrap(), true).unwrap();
    assert_ne!(left, right);
    assert_eq!(left, swapped, "two operands may change places");

    // Every rank sends its own to every rank, and each adds what it gets in the order of the ring from itself: right sums, unequal bits.
    let request = allreduce(3, 1);
    let (x, own) = (out(0, 1), Span::of(Buf::Scratch, 0, 1));
    let plans: Vec<Plan> = (0..3)
        .map(|r| {
            let (next, prev) = (Rank((r + 1) % 3), Rank((r + 2) % 3));
            over_links(
                1,
                vec![
                    Step::Scale { span: x, pre: true, post: false },
                    Step::Copy { src: x, dst: own },
                    swap(next, own, prev, x, Fold::Reduce),
                    swap(prev, own, next, x, Fold::ReduceLast),
                ],
            )
        })
        .collect();
    let what = verify(&request, &plans).unwrap_err().what;
    assert_eq!(what, What::BitsDiffer { at: 0, other: Rank(0) });
}

/// VER-7.
#[test]
fn a_rank_that_leaves_a_barrier_early_is_named() {
    let request = PlanRequest {
        links_only: true,
        ..request(CollectiveOp::Barrier, Layout::Empty, Topology::one_host(4))
    };
    let mut plans = plans("dissemination", &request);
    for plan in &mut plans {
        plan.steps.truncate(1);
    }
    let what = verify(&request, &plans).unwrap_err().what;
    assert_eq!(what, What::NotHeard { other: Rank(1) });
}

/// VER-5.
#[test]
fn slots_are_not_refilled_while_somebody_reads() {
    // Without releases nobody may publish the turn that needs the first slot again.
    let request = PlanRequest { memory: Memory::Private, ..allreduce(2, 64) };
    let mut late = plans("arena-all", &request);
    late[1].steps.retain(|step| !matches!(step, Step::Release { .. }));
    assert!(matches!(verify(&request, &late).unwrap_err().what, What::Deadlock { .. }));
    let mut early = plans("arena-all", &request);
    let release = early[1].steps.iter().position(|step| matches!(step, Step::Release { .. })).unwrap();
    early[1].steps.swap(release, release - 1);
    assert_eq!(verify(&request, &early).unwrap_err().what, What::ReadsReleased { turn: 0 });
}
