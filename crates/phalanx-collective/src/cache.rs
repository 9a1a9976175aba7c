//! Plans this communicator made before, found again without building them.

use crate::{
    meter,
    plan::{
        Memory, PlanRequest,
        step::{CollectiveOp, Layout, Plan, Step},
    },
};
use phalanx_core::Rank;
use phalanx_net::arena::Lane;
use std::sync::Arc;

/// What a plan depends on besides the communicator itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub op: CollectiveOp,
    pub layout: Layout,
    pub elem_bytes: u32,
    pub in_place: bool,
    pub memory: Memory,
    /// Which ways are tried; 0 where nothing is explored.
    pub ways: u16,
}

/// A plan and what the executor wants to know about it.
#[derive(Debug)]
pub(crate) struct Made {
    pub plan: Plan,
    /// Every slot's data fit beside its sequence word. Decided from the request, so all ranks decide alike.
    pub inline: bool,
    /// Bytes and messages that this rank sends along each tier.
    pub sent: [(u64, u64); meter::N_TIERS],
    /// The tier of each step.
    pub tiers: Vec<u8>,
}

impl Made {
    pub fn new(plan: Plan, request: &PlanRequest, me: Rank) -> Made {
        let bytes = match request.layout {
            Layout::Whole { len } | Layout::Rooted { len, .. } => len * u64::from(request.elem_bytes),
            _ => u64::MAX,
        };
        // Plans of one turn put the whole vector at the start of the slot.
        let inline = plan.n_turns == 1 && request.topology.n_hosts() == 1 && Lane::fits_inline(bytes);
        let exchanges = plan.steps.iter().any(|s| matches!(s, Step::Exchange { .. }));
        let (sent, tiers) = (meter::sent(&plan, request, me), meter::tiers(&plan, request, me));
        Made { plan, inline: inline && !exchanges, sent, tiers }
    }
}

/// A small table in which a newer plan replaces an older one with the same place.
#[derive(Debug)]
pub(crate) struct Cache {
    places: Vec<Option<(Key, Arc<Made>)>>,
}

const N_PLACES: usize = 256;

impl Cache {
    pub fn new() -> Cache {
        Cache { places: (0..N_PLACES).map(|_| None).collect() }
    }

    #[inline]
    pub fn get(&self, key: &Key) -> Option<&Arc<Made>> {
        match &self.places[place(key)] {
            Some((known, plan)) if known == key => Some(plan),
            _ => None,
        }
    }

    pub fn put(&mut self, key: Key, plan: Arc<Made>) {
        let at = place(&key);
        self.places[at] = Some((key, plan));
    }
}

fn place(key: &Key) -> usize {
    let (a, b) = match &key.layout {
        Layout::Whole { len } => (*len, 0),
        Layout::Rooted { root, len } => (*len, u64::from(root.0)),
        Layout::Counts { counts } => (counts.iter().sum(), 1),
        Layout::RootedCounts { root, counts } => (counts.iter().sum(), u64::from(root.0)),
        Layout::Matrix { matrix, .. } => (matrix.iter().sum(), 2),
        Layout::Empty => (0, 3),
    };
    let mixed =
        a ^ b << 40 ^ (key.op as u64) << 50 ^ u64::from(key.elem_bytes) << 55 ^ u64::from(key.in_place) << 60;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % N_PLACES
}
