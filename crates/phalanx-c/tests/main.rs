//! The tests of this crate, as one program.

mod header;
mod programs;
