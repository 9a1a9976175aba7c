//! The tests of this crate, as one program.

mod agreement;
mod faults;
mod rows;
mod schedules;
mod worlds;
