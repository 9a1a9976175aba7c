//! Every algorithm proved on every small world (see `verify` for what that means), and the verifier proved to notice.

mod cost;
mod mutants;
mod worlds;

use super::{
    Algorithm, Memory, PlanRequest, build,
    step::{CollectiveOp, Layout, Plan},
    verify::{PlanCost, verify},
};
use phalanx_core::{Rank, Topology};
use std::sync::Arc;

fn request(op: CollectiveOp, layout: Layout, topology: Topology) -> PlanRequest {
    PlanRequest {
        op,
        layout,
        topology: Arc::new(topology),
        tiers: None,
        elem_bytes: 4,
        in_place: false,
        memory: Memory::Private,
        slot_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        links_only: false,
    }
}

fn named(name: &str) -> Algorithm {
    name.parse().expect("a name of the table")
}

fn plans(algorithm: Algorithm, request: &PlanRequest) -> Vec<Plan> {
    (0..request.n_ranks()).map(|r| build(algorithm, request, Rank(r))).collect()
}

fn prove(algorithm: Algorithm, request: &PlanRequest) -> PlanCost {
    verify(request, &plans(algorithm, request)).unwrap_or_else(|fault| {
        panic!("PLAN-1, PLAN-2, PLAN-3, ARENA-1, ARENA-2, ARENA-3: {algorithm}: {fault}\n{request:?}")
    })
}
