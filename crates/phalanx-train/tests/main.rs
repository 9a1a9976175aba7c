//! The tests of this crate, as one program. It is also a rank of the worlds that its tests start.

mod deaths;
#[path = "../examples/material/digits.rs"]
mod digits;
mod events;
mod examples;
mod hogwild;
#[path = "../examples/material/packed.rs"]
mod packed;
mod parallax;
mod parallax_auto;
mod parallax_clip;
mod parallax_faults;
mod parallax_search;
#[path = "../examples/material/plot.rs"]
mod plot;
mod processes;
mod sent;
mod session;
#[path = "../examples/material/text.rs"]
mod text;
mod worlds;
