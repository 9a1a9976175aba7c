//! Membership and transport: links, the arena, the hub where ranks meet, and which ranks are lost.

pub mod arena;
pub mod auth;
mod board;
mod build_tag;
mod channel;
pub mod cores;
pub mod discover;
mod door;
pub mod ending;
mod error;
mod forks;
pub mod frame;
pub mod hostlist;
pub mod hub;
mod inbox;
pub mod large_pages;
mod link;
pub mod log;
pub mod lost;
pub mod nodes;
pub mod rehearsal;
pub mod resources;
pub mod secret;
mod secret_source;
pub mod socket;
pub mod task;
mod tls;
pub mod voice;
mod watch;
mod whole_file;
mod world;

/// For the fuzz targets only: decoders that nobody else may call.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::board::fuzzing::{board_answer, board_session};
}

pub use channel::{Channel, Terms};
pub use error::{BoardError, NetError};
pub use link::{Link, LinkAddress};
pub use watch::Watch;
pub use world::World;
