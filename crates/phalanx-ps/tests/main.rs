//! The tests of this crate, as one program.

mod agreement;
mod faults;
mod letters;
mod rows;
mod schedules;
mod worlds;
