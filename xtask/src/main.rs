//! `cargo xtask`: the project's own commands.
fn main() {}
