//! The messages between ranks and the hub, as frames.

use crate::{
    link::{LinkAddress, few},
    lost::{Doom, Lost},
};
use phalanx_core::{Rank, TaskRole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest frame either side accepts: a roster of 4,096 ranks fits.
pub const MAX_FRAME: usize = 4 << 20;

/// What a rank says about itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub rank: Rank,
    pub n_ranks: u32,
    /// Ranks of the launcher's world that stay out of it: the last of them, as evaluators.
    pub n_aside: u32,
    /// A worker or a server: evaluators do not join.
    pub role: TaskRole,
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
    /// An operation failed here for this reason; every rank should know.
    Doomed(Doom),
    /// For the person before the launcher, not for other ranks.
    Words(Words),
    /// Something it wanted cannot be had because that rank had left in order. Nobody's failure, unless it makes this rank fail.
    Missed(Rank),
}

/// What the ranks hold to be the reason of a failure, for the launcher, which saw their processes end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why the world is over, as all that were left were told.
    pub doom: Option<Doom>,
    /// Whom each rank missed first.
    pub missed: BTreeMap<Rank, Rank>,
}

/// What a rank says to the person before the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Words {
    /// Something to show now.
    Notice(String),
    /// Why this rank is about to end, to be shown if it is the first that failed.
    Failure { kind: FailureKind, text: String },
}

/// Whose failure it is, as far as the rank itself can tell. The later ones are better reasons than the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureKind {
    /// It failed because another rank did.
    FollowsAnother,
    /// One thread of the program failed; the others went on.
    OfThread,
    Own,
}

/// More than a person reads: the longest text of a rank's words.
pub const MAX_WORDS: usize = 16 << 10;

impl Words {
    /// As a terminal may show it: no longer than [`MAX_WORDS`] bytes, and no control characters but ends of lines and tabs. What is left out of a
    /// long text is its middle.
    pub fn plain(self) -> Words {
        match self {
            Words::Notice(text) => Words::Notice(plain(&text)),
            Words::Failure { kind, text } => Words::Failure { kind, text: plain(&text) },
        }
    }
}

fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    let text: String = text.chars().map(plain).collect();
    if text.len() <= MAX_WORDS {
        return text;
    }
    let whole = |i: &usize| text.is_char_boundary(*i);
    let head = (0..=MAX_WORDS / 4).rev().find(whole).unwrap_or(0);
    let tail = (text.len() - MAX_WORDS / 2..text.len()).find(whole).unwrap_or(text.len());
    format!("{}\n... {} bytes are left out ...\n{}", &text[..head], tail - head, &text[tail..])
}

/// From the hub to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// Every rank is here.
    Roster(Vec<Member>),
    /// This rank cannot take part.
    Refused(String),
    Lost(Lost),
    Doomed(Doom),
    Alive,
    /// The hub is alive and waits for these ranks before the world can form.
    Missing(Vec<Rank>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_made_short_and_plain() {
        let text = format!("first\x1b[2J\r\n\t{}last", "ä".repeat(MAX_WORDS));
        let Words::Notice(said) = Words::Notice(text).plain() else { panic!("a notice stays one") };
        assert!(said.len() <= MAX_WORDS, "{}", said.len());
        assert!(said.starts_with("first\u{fffd}[2J\u{fffd}\n\tä") && said.ends_with("last"), "{said}");
        assert!(said.contains("bytes are left out"));
    }
}
