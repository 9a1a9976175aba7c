//! The tests of this crate, as one program.

mod flips;
mod following;
mod full_disk;
mod hostile;
mod kills;
mod saving;
mod support;
