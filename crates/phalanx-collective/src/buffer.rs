//! Vectors in shared memory: peers reduce directly from them, without staging.

use crate::{bytes, error::Error};
use phalanx_core::Element;
use phalanx_net::{World, arena::Block};
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// A vector of zeros that the ranks of this host can read and write during collectives. Where a host has only
/// one rank it is ordinary memory.
pub struct ArenaVec<T: Element> {
    memory: Backing<T>,
    len: usize,
}

enum Backing<T> {
    Shared(Block, PhantomData<T>),
    Private(Vec<T>),
}

impl<T: Element> ArenaVec<T> {
    pub(crate) fn zeros(world: &World, len: usize) -> Result<ArenaVec<T>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::ArenaFull { bytes: u64::MAX })?;
        match world.arena() {
            Some(arena) => {
                let block = arena.alloc(bytes).ok_or(Error::ArenaFull { bytes: bytes as u64 })?;
                Ok(ArenaVec::shared(block, len))
            }
            None => Ok(ArenaVec::private(vec![bytes::zero::<T>(); len])),
        }
    }

    fn shared(block: Block, len: usize) -> ArenaVec<T> {
        assert!(block.len() >= len * size_of::<T>() && block.address().cast::<T>().is_aligned());
        ArenaVec { memory: Backing::Shared(block, PhantomData), len }
    }

    fn private(zeros: Vec<T>) -> ArenaVec<T> {
        let len = zeros.len();
        ArenaVec { memory: Backing::Private(zeros), len }
    }

    /// Whether peers can reach it.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Backing::Shared(..))
    }
}

impl<T: Element> Deref for ArenaVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.memory {
            // SAFETY: the block is zeroed or written by elements, aligned and long enough (checked in `shared`), and lives as long as
            // `self`. Peers touch it only inside collectives, for which the caller lends it mutably.
            Backing::Shared(block, _) => unsafe {
                std::slice::from_raw_parts(block.address().cast(), self.len)
            },
            Backing::Private(vec) => vec,
        }
    }
}

impl<T: Element> DerefMut for ArenaVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            // SAFETY: as in `deref`; `&mut self` makes it the only view in this process.
            Backing::Shared(block, _) => unsafe {
                std::slice::from_raw_parts_mut(block.address().cast(), self.len)
            },
            Backing::Private(vec) => vec,
        }
    }
}

impl<T: Element> fmt::Debug for ArenaVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaVec<{}>({}, shared: {})", T::DTYPE, self.len, self.is_shared())
    }
}
