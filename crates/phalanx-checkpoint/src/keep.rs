//! Which checkpoints stay. Pure.
//!
//! - KEEP-1: the newest checkpoint and the one that `latest` names are never removed.

/// How many checkpoints stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// This many of the newest; 0 counts as 1.
    pub last: usize,
    /// And those whose step is a multiple of this.
    pub every: Option<u64>,
}

impl Keep {
    /// The steps to remove, in ascending order; `pinned` is the one that `latest` names.
    pub fn to_remove(&self, steps: &[u64], pinned: Option<u64>) -> Vec<u64> {
        let mut steps = steps.to_vec();
        steps.sort_unstable();
        steps.dedup();
        let n_old = steps.len().saturating_sub(self.last.max(1));
        let is_marked = |step: u64| self.every.is_some_and(|every| every > 0 && step.is_multiple_of(every));
        let old = steps.into_iter().take(n_old);
        old.filter(|&step| Some(step) != pinned && !is_marked(step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_ones_and_every_hundredth_stay() {
        let steps = [300, 100, 150, 200, 250, 350];
        let to_remove = |last, every, pinned| Keep { last, every }.to_remove(&steps, pinned);
        assert_eq!(to_remove(2, None, None), [100, 150, 200, 250]);
        assert_eq!(to_remove(2, Some(100), None), [150, 250]);
        assert_eq!(to_remove(2, Some(100), Some(150)), [250]);
        assert_eq!(to_remove(0, Some(0), None), [100, 150, 200, 250, 300]);
        assert_eq!(to_remove(9, None, None), [0; 0]);
    }

    proptest! {
        /// KEEP-1.
        #[test]
        fn the_newest_and_the_pinned_one_stay(
            steps in prop::collection::vec(0u64..50, 1..20),
            last in 0usize..5,
            every in prop::option::of(0u64..7),
            pinned in prop::option::of(0u64..50),
        ) {
            let removed = Keep { last, every }.to_remove(&steps, pinned);
            prop_assert!(!removed.contains(steps.iter().max().unwrap()));
            prop_assert!(pinned.is_none_or(|p| !removed.contains(&p)));
            prop_assert!(removed.iter().all(|r| steps.contains(r)));
        }
    }
}
