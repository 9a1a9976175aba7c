//! Newtypes for rank and epoch, so that the numbers cannot be swapped.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One process of a world, numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl Rank {
    pub const ZERO: Rank = Rank(0);

    /// The rank as an index into a table of ranks.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank at an index of a table of ranks. Worlds have fewer than 2^32 ranks.
    #[inline]
    pub fn at(index: usize) -> Rank {
        Rank(u32::try_from(index).expect("a world has fewer than 2^32 ranks"))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a world: the first is 0, each rebuilt world adds one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
