//! Phalanx: write it for one device; march it on many.
pub use phalanx_core as core;
