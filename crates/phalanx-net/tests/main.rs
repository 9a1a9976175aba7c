//! The tests of this crate, as one program.

mod board;
mod builds;
mod decoders;
mod encrypted;
mod forked;
mod inputs;
mod job;
mod naps;
mod strangers;
