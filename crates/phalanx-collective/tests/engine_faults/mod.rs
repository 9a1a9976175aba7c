//! Ranks die, panic, freeze, stall and shut down while others wait for their engines' answers: every operation is answered, and says why.

mod deaths;
mod ends;
mod forked;
mod stalls;
pub mod worker;
