//! Collective algorithms as data.

pub mod step;
