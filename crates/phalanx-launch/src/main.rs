//! The `phalanx` command.
fn main() {}
