//! Who writes the shards of a checkpoint, and how they get to the chief if that is the chief alone.
//!
//! Shards travel through the engine in rounds: in each of them every other rank sends the next piece of its shard, and the chief says
//! whether it still can write. So the chief never holds more than one piece of each rank, and a disk that is full ends the save early.
//!
//! - SENT-1: where ranks have no common directory, the chief has the checkpoint that all ranks together would have written.
//! - SENT-2: if the chief cannot write, or a rank is lost, the save fails on all ranks, and older checkpoints stay.

use super::{
    error::SessionError,
    peers::Peers,
    writer::{Told, guarded},
};
use phalanx_checkpoint::{
    CheckpointDraft, CheckpointError, Copied, ReceivedShard, ShardId, ShardRecord, ShardStream,
};
use phalanx_core::Rank;
use std::{fmt, num::NonZeroUsize};

/// What all ranks together send in a round. Steps of the training wait for a round that has begun.
const ROUND_BYTES: usize = 4 << 20;
/// Less than this is not worth a round.
const LEAST_PIECE: usize = 64 << 10;

/// Who writes the shards of a checkpoint. The same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardWriters {
    /// Each rank its own, into a directory that all of them see.
    #[default]
    Each,
    /// The chief all of them; the others send theirs, and need no directory.
    Chief {
        /// What each rank sends at a time; `None`: as much as fits the number of ranks.
        piece_bytes: Option<NonZeroUsize>,
    },
}

impl ShardWriters {
    /// The chief, with pieces that fit the number of ranks.
    pub fn chief() -> ShardWriters {
        ShardWriters::Chief { piece_bytes: None }
    }
}

impl fmt::Display for ShardWriters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardWriters::Each => write!(f, "shards of each rank"),
            ShardWriters::Chief { piece_bytes: None } => write!(f, "shards sent to rank 0"),
            ShardWriters::Chief { piece_bytes: Some(n) } => {
                write!(f, "shards sent to rank 0 in pieces of {n} bytes")
            }
        }
    }
}

/// What the chief says in each round.
const GOES_ON: u8 = 0;
const GIVES_UP: u8 = 1;

/// A save in which the chief writes.
pub struct Sending<'a> {
    pub peers: &'a Peers,
    pub step: u64,
    pub id: ShardId,
    /// Or why there is no copy.
    pub copied: Result<&'a Copied, &'a str>,
    pub piece_bytes: Option<NonZeroUsize>,
}

impl Sending<'_> {
    /// Puts all shards into the chief's draft. What this rank has to say of its own; the chief's error speaks for all of them.
    pub fn run(&self, draft: Option<&CheckpointDraft>) -> Result<Told<ShardRecord>, SessionError> {
        match draft {
            Some(draft) => self.receive(draft),
            None => self.send(),
        }
    }

    fn piece(&self) -> usize {
        let even = ROUND_BYTES / (self.id.of as usize - 1).max(1);
        self.piece_bytes.map_or(even.max(LEAST_PIECE), NonZeroUsize::get)
    }

    /// How many rounds the longest shard takes. What keeps a rank from sending is told to all before any byte travels.
    fn n_rounds(&self, own: Told<u64>) -> Result<u64, SessionError> {
        let mut longest = 0;
        for (rank, told) in self.peers.gather("save.lengths", &own)?.into_iter().enumerate() {
            let failed = |why| SessionError::Save { step: self.step, rank: Rank::at(rank), why };
            longest = longest.max(told.map_err(failed)?);
        }
        Ok(longest.div_ceil(self.piece() as u64))
    }

    fn send(&self) -> Result<Told<ShardRecord>, SessionError> {
        let stream = guarded(|| ShardStream::new(self.id, self.copied?).map_err(|why| why.to_string()));
        let n = self.n_rounds(stream.as_ref().map(ShardStream::bytes).map_err(String::clone))?;
        let Ok(mut stream) = stream else {
            return Err(SessionError::Ended);
        };
        for _ in 0..n {
            let piece = stream.take(self.piece());
            if self.peers.send_to_chief("save.piece", piece)? != GOES_ON {
                return Ok(Err("rank 0 has given up".to_string()));
            }
        }
        Ok(Ok(stream.record()))
    }

    fn receive(&self, draft: &CheckpointDraft) -> Result<Told<ShardRecord>, SessionError> {
        let written = guarded(|| {
            let written = draft.write_copied(self.id, self.copied?);
            written.and_then(|record| Ok((record, self.files(draft)?))).map_err(|why| why.to_string())
        });
        let n = self.n_rounds(written.as_ref().map(|_| 0).map_err(String::clone))?;
        let Ok((record, files)) = written else {
            return Err(SessionError::Ended);
        };
        let mut files = Ok(files);
        for _ in 0..n {
            let says = if files.is_ok() { GOES_ON } else { GIVES_UP };
            let (bytes, counts) = self.peers.receive_from_all("save.piece", says)?;
            files = files.and_then(|files| put(files, &bytes, &counts));
            if says == GIVES_UP {
                break;
            }
        }
        let ended = files.and_then(|files| files.into_iter().try_for_each(ReceivedShard::end));
        Ok(ended.map(|()| record).map_err(|why| why.to_string()))
    }

    /// The files of all ranks but the chief.
    fn files(&self, draft: &CheckpointDraft) -> Result<Vec<ReceivedShard>, CheckpointError> {
        (1..self.id.of).map(|index| draft.receive_shard(index, self.id.of)).collect()
    }
}

/// Writes what ranks have sent, the first of which is the chief, who sends nothing.
fn put(
    mut files: Vec<ReceivedShard>,
    bytes: &[u8],
    counts: &[usize],
) -> Result<Vec<ReceivedShard>, CheckpointError> {
    let mut rest = bytes;
    for (file, &n) in files.iter_mut().zip(&counts[1..]) {
        let (own, behind) = rest.split_at(n);
        file.put(own)?;
        rest = behind;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_sends_at_a_time_shrinks_with_the_number_of_ranks() {
        let peers = Peers::new(Rank(0), 2, 0, Box::new(|| None));
        let piece = |of: u32, piece_bytes: Option<NonZeroUsize>| {
            let (id, copied) = (ShardId { index: 0, of, rank: 0 }, Copied::new());
            Sending { peers: &peers, step: 1, id, copied: Ok(&copied), piece_bytes }.piece()
        };
        assert_eq!((piece(1, None), piece(2, None), piece(5, None)), (4 << 20, 4 << 20, 1 << 20));
        assert_eq!((piece(1000, None), piece(1000, NonZeroUsize::new(7))), (64 << 10, 7));
    }
}
