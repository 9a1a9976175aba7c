//! The tests of this crate, as one program.

mod agreement;
mod changes;
mod decoders;
mod faults;
mod letters;
mod memory;
mod rows;
mod schedules;
mod worlds;
