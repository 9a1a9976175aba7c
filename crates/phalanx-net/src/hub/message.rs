//! What ranks and the hub say to each other, as frames.

use crate::{
    link::{LinkAddress, few},
    lost::{Doom, Lost},
};
use phalanx_core::Rank;
use serde::{Deserialize, Serialize};

/// The longest frame either side accepts: a roster of 4,096 ranks fits.
pub const MAX_FRAME: usize = 4 << 20;

/// What a rank says about itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub rank: Rank,
    pub n_ranks: u32,
    /// Ranks with equal keys share memory.
    pub host_key: u64,
    pub host_name: String,
    pub pid: u32,
    /// Cores it may run on, and how many it may use at once.
    pub cores: Vec<u32>,
    pub core_quota: u32,
    /// Where its links are accepted.
    #[serde(deserialize_with = "few")]
    pub addresses: Vec<LinkAddress>,
    /// The memory it offers for its host's arena.
    pub arena_fd: i32,
    pub arena_heap_bytes: u64,
    /// Where others of its host may try to read its memory.
    pub trial_address: u64,
    /// Version and settings that must be equal everywhere, as text.
    pub build: String,
    pub settings: String,
}

/// From a rank to the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    Join(Member),
    Alive,
    /// It ends in order and will take part in nothing more.
    Leave,
    /// An operation failed here for this reason; everybody should know.
    Doomed(Doom),
}

/// From the hub to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// Everybody is here.
    Roster(Vec<Member>),
    /// This rank cannot take part.
    Refused(String),
    Lost(Lost),
    Doomed(Doom),
    Alive,
    /// The hub is alive and waits for these ranks before the world can form.
    Missing(Vec<Rank>),
}
