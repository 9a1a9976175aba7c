//! Which lanes this rank uses, and which it may reuse.
//!
//! - TENANT-1: communicators that have a rank in common never have a lane in common, unless every member of the earlier one has dropped it.
//!
//! A rank knows only its own lanes. When a new communicator is made and no unused lane is left, each of its ranks lists the lanes that it
//! still needs; a lane that none of them lists is free.

use super::MAX_LANES;
use phalanx_core::Rank;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The lanes of one rank.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    /// A lock because communicators are made and dropped on any thread.
    lanes: Mutex<BTreeMap<u32, Vec<Past>>>,
}

/// A communicator that has, or had, a lane.
#[derive(Debug)]
struct Past {
    members: Vec<Rank>,
    is_here: bool,
}

impl Tenants {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<Past>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A communicator of these members has the lane until the tenancy is dropped.
    pub fn enter(self: &Arc<Tenants>, lane: u32, members: &[Rank]) -> Tenancy {
        self.lock().entry(lane).or_default().push(Past { members: members.to_vec(), is_here: true });
        Tenancy { tenants: self.clone(), lane, owner: std::process::id() }
    }

    /// For each lane whether this rank minds if some of these ranks, of which it is one, have it: it has the lane itself, or had it together with
    /// somebody else, who cannot be asked now.
    pub fn minded(&self, askers: &[Rank]) -> Vec<bool> {
        let mut minded = vec![false; MAX_LANES as usize];
        for (lane, pasts) in &*self.lock() {
            let minds = |past: &Past| past.is_here || !past.members.iter().all(|m| askers.contains(m));
            minded[*lane as usize] = pasts.iter().any(minds);
        }
        minded
    }

    /// Nobody minds any more who has, or had, this lane.
    pub fn forget(&self, lane: u32) {
        self.lock().remove(&lane);
    }
}

/// A lane in use.
#[derive(Debug)]
pub(super) struct Tenancy {
    tenants: Arc<Tenants>,
    lane: u32,
    owner: u32,
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // A forked child may have inherited the lock from a thread that it has not.
            return;
        }
        // TENANT-1: of those that had it, one at most is still here.
        if let Some(past) =
            self.tenants.lock().get_mut(&self.lane).and_then(|pasts| pasts.iter_mut().find(|p| p.is_here))
        {
            past.is_here = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_minds_what_it_has_and_what_it_had_with_somebody_who_is_not_asked() {
        let tenants = Arc::new(Tenants::default());
        let ranks = |list: &[u32]| list.iter().copied().map(Rank).collect::<Vec<_>>();
        let minded = |askers: &[u32]| {
            let all = tenants.minded(&ranks(askers));
            (0..MAX_LANES).filter(|l| all[*l as usize]).collect::<Vec<_>>()
        };
        let (three, five) = (tenants.enter(3, &ranks(&[0, 1])), tenants.enter(5, &ranks(&[0, 2])));
        assert_eq!(minded(&[0, 1, 2]), [3, 5], "TENANT-1");
        drop(three);
        assert_eq!(minded(&[0, 1, 2]), [5]);
        assert_eq!(minded(&[0, 2]), [3, 5], "rank 1 may still read there");
        drop(five);
        assert!(minded(&[0, 1, 2]).is_empty());
        tenants.forget(3);
        let again = tenants.enter(3, &ranks(&[0, 2]));
        assert_eq!(minded(&[0, 1, 2]), [3]);
        drop(again);
        assert!(minded(&[0, 2]).is_empty());
    }
}
