//! The tests of this crate, as one program.

mod decoders;
mod launch;
