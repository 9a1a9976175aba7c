//! Which samples each rank trains on.

mod sampler;
mod shuffle;

pub use sampler::{Ends, Indices, Sampler, SamplerError, SamplerState};
