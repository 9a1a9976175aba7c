//! A limit on nesting when programs are read: bytes from outside must not decide how deep the reader's stack gets.

use serde::{Deserialize, Deserializer, de::Error};
use std::cell::Cell;

/// The most programs within one another.
pub const MOST_NESTED: usize = 8;

thread_local! {
    /// How deep this thread is while it reads. `Deserialize` hands nothing down that could count it.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Goes back up however the reading ends.
struct Down(usize);

impl Drop for Down {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

/// Reads what stands within something of its own kind, but not deeper than `MOST_NESTED`.
pub(crate) fn nested<'de, D, T>(from: D) -> Result<Box<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let depth = DEPTH.get();
    if depth >= MOST_NESTED {
        return Err(D::Error::custom(format!("more than {MOST_NESTED} operations within one another")));
    }
    let _up = Down(depth);
    DEPTH.set(depth + 1);
    T::deserialize(from).map(Box::new)
}
