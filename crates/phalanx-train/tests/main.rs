//! The tests of this crate, as one program. It is also a rank of the worlds that its tests start.

mod deaths;
mod examples;
mod hogwild;
mod worlds;
