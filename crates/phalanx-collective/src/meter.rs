//! What a rank sends along each tier, and how long its steps there take.
//!
//! Bytes and messages are those of the plan, counted once a call. Times are taken only while somebody wants them.

use crate::plan::{
    PlanRequest,
    step::{Plan, Step},
};
use phalanx_core::Rank;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

/// Shapes have at most four tiers.
pub(crate) const N_TIERS: usize = 4;

/// One rank's traffic along one tier: 0 inside its host, over links; 1 and up between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTraffic {
    pub bytes: u64,
    pub messages: u64,
    /// How long its steps took, waiting included, while times were taken; in tier 0 also those through the arena.
    pub time: Duration,
}

/// Counters of one communicator. Relaxed: each stands for itself.
#[derive(Debug, Default)]
pub struct Meter {
    is_timing: AtomicBool,
    bytes: [AtomicU64; N_TIERS],
    messages: [AtomicU64; N_TIERS],
    nanos: [AtomicU64; N_TIERS],
}

impl Meter {
    /// From now on times are taken, or not.
    pub fn take_times(&self, on: bool) {
        self.is_timing.store(on, Ordering::Relaxed);
    }

    pub(crate) fn is_timing(&self) -> bool {
        self.is_timing.load(Ordering::Relaxed)
    }

    /// All tiers.
    pub fn read(&self) -> Vec<TierTraffic> {
        (0..N_TIERS)
            .map(|tier| TierTraffic {
                bytes: self.bytes[tier].load(Ordering::Relaxed),
                messages: self.messages[tier].load(Ordering::Relaxed),
                time: Duration::from_nanos(self.nanos[tier].load(Ordering::Relaxed)),
            })
            .collect()
    }

    pub(crate) fn count(&self, sent: &[(u64, u64); N_TIERS]) {
        for (tier, &(bytes, messages)) in sent.iter().enumerate().filter(|(_, sent)| sent.1 > 0) {
            self.bytes[tier].fetch_add(bytes, Ordering::Relaxed);
            self.messages[tier].fetch_add(messages, Ordering::Relaxed);
        }
    }

    pub(crate) fn took(&self, tier: usize, time: Duration) {
        self.nanos[tier].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Bytes and messages that rank `me` sends along each tier in one run of its plan.
pub(crate) fn sent(plan: &Plan, request: &PlanRequest, me: Rank) -> [(u64, u64); N_TIERS] {
    let mut all = [(0, 0); N_TIERS];
    for step in &plan.steps {
        let Step::Exchange { sends, .. } = step else { continue };
        for send in sends {
            let (bytes, messages) = &mut all[request.tier_between(me, send.to)];
            *bytes += send.src.len * u64::from(request.elem_bytes);
            *messages += 1;
        }
    }
    all
}

/// The tier of each step: the highest it sends or receives along; 0 for those inside the host.
pub(crate) fn tiers(plan: &Plan, request: &PlanRequest, me: Rank) -> Vec<u8> {
    let tier = |step: &Step| match step {
        Step::Exchange { sends, recvs } => {
            let peers = sends.iter().map(|s| s.to).chain(recvs.iter().map(|r| r.from));
            peers.map(|peer| request.tier_between(me, peer)).max().unwrap_or(0)
        }
        _ => 0,
    };
    plan.steps.iter().map(|step| tier(step) as u8).collect()
}
