//! The other ranks of a session, through the engine.
//!
//! Each exchange of a session has one name for all steps, so that the engine soon runs it without negotiation.

use super::{
    error::SessionError,
    vote::{EndWords, VOTE_BYTES, Vote},
};
use crate::Lent;
use phalanx_collective::engine::{EngineError, EngineTensor, Outcome, Request};
use phalanx_core::{Rank, ReduceOp};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt;

/// Lends the engine while it runs.
type Lender = Box<dyn Fn() -> Option<Lent> + Send + Sync>;

/// The ranks that train together, as one of them sees them.
pub struct Peers {
    pub rank: Rank,
    pub n_ranks: u32,
    lend: Lender,
    /// Tells the exchanges of this session from those of others.
    prefix: String,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers")
            .field("rank", &self.rank)
            .field("n_ranks", &self.n_ranks)
            .finish_non_exhaustive()
    }
}

impl Peers {
    /// Session number `number` of this process; ranks number theirs alike.
    pub fn new(rank: Rank, n_ranks: u32, number: u64, lend: Lender) -> Peers {
        Peers { rank, n_ranks, lend, prefix: format!("session.{number}") }
    }

    pub fn is_chief(&self) -> bool {
        self.rank == Rank::ZERO
    }

    /// What all ranks together want (VOTE-1).
    pub fn vote(&self, vote: Vote) -> Result<Vote, SessionError> {
        if self.n_ranks == 1 {
            return Ok(vote);
        }
        let bytes = EngineTensor::new(vote.to_bytes().to_vec());
        let outcome = self.run("step", Request::allreduce(bytes).op(ReduceOp::Max))?;
        let bytes = outcome.tensor().and_then(EngineTensor::into_vec::<u8>).unwrap_or(vec![0; VOTE_BYTES]);
        Ok(Vote::from_bytes(&bytes))
    }

    /// What each rank wants, and why (VOTE-2).
    pub fn reasons(
        &self,
        vote: Vote,
        why: Option<&EndWords>,
    ) -> Result<Vec<(Vote, Option<EndWords>)>, SessionError> {
        let all: Vec<([u8; VOTE_BYTES], Option<EndWords>)> =
            self.gather("reasons", &(vote.to_bytes(), why.cloned()))?;
        Ok(all.into_iter().map(|(bytes, why)| (Vote::from_bytes(&bytes), why)).collect())
    }

    /// One value of each rank, in their order.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &self,
        of: &str,
        value: &T,
    ) -> Result<Vec<T>, SessionError> {
        let words = |why: serde_json::Error| SessionError::Words { of: of.to_string(), why: why.to_string() };
        let own = serde_json::to_vec(value).map_err(words)?;
        if self.n_ranks == 1 {
            return Ok(vec![serde_json::from_slice(&own).map_err(words)?]);
        }
        // Each with its length before it, because the engine joins what ranks send.
        let mut framed = u32::try_from(own.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        framed.extend(own);
        let outcome = self.run(of, Request::allgather(EngineTensor::new(framed)))?;
        let all = outcome.tensor().and_then(EngineTensor::into_vec::<u8>).unwrap_or_default();
        let mut rest = all.as_slice();
        let mut values = Vec::with_capacity(self.n_ranks as usize);
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let n = u32::from_le_bytes(*length) as usize;
            let (one, next) = after.split_at_checked(n).unwrap_or((after, &[]));
            values.push(serde_json::from_slice(one).map_err(words)?);
            rest = next;
        }
        if values.len() != self.n_ranks as usize {
            let why = format!("{} ranks said something, of {}", values.len(), self.n_ranks);
            return Err(SessionError::Words { of: of.to_string(), why });
        }
        Ok(values)
    }

    /// The value of the chief, which every rank has in the same form.
    pub fn gather_from_chief<T: Serialize, R: DeserializeOwned>(
        &self,
        of: &str,
        value: &T,
    ) -> Result<R, SessionError> {
        let words = |why: serde_json::Error| SessionError::Words { of: of.to_string(), why: why.to_string() };
        let own = if self.is_chief() { serde_json::to_value(value).map_err(words)? } else { Value::Null };
        let chief = self.gather(of, &own)?.swap_remove(0);
        serde_json::from_value(chief).map_err(words)
    }

    /// What the chief has, as many bytes as every other rank gives.
    pub fn from_chief(&self, of: &str, bytes: Vec<u8>) -> Result<Vec<u8>, SessionError> {
        if self.n_ranks == 1 {
            return Ok(bytes);
        }
        let outcome = self.run(of, Request::broadcast(EngineTensor::new(bytes), Rank::ZERO))?;
        Ok(outcome.tensor().and_then(EngineTensor::into_vec::<u8>).unwrap_or_default())
    }

    /// Sends bytes to the chief; what it says to all ranks meanwhile.
    pub fn send_to_chief(&self, of: &str, bytes: Vec<u8>) -> Result<u8, SessionError> {
        let mut splits = vec![0; self.n_ranks as usize];
        splits[0] = bytes.len() as u64;
        let outcome = self.run(of, Request::alltoall(EngineTensor::new(bytes), Some(splits)))?;
        let said = outcome.tensor().and_then(EngineTensor::into_vec::<u8>).unwrap_or_default();
        said.first().copied().ok_or(SessionError::Ended)
    }

    /// The chief's side of it: what each rank sends, in one piece, and how many bytes of it are whose.
    pub fn receive_from_all(&self, of: &str, says: u8) -> Result<(Vec<u8>, Vec<usize>), SessionError> {
        let mut splits = vec![1; self.n_ranks as usize];
        splits[0] = 0;
        let words = EngineTensor::new(vec![says; self.n_ranks as usize - 1]);
        let outcome = self.run(of, Request::alltoall(words, Some(splits)))?;
        let counts: Vec<usize> = outcome.received.iter().map(|&n| n as usize).collect();
        let bytes = outcome.tensor().and_then(EngineTensor::into_vec::<u8>).unwrap_or_default();
        if counts.len() != self.n_ranks as usize || counts.iter().sum::<usize>() != bytes.len() {
            let why = format!("{counts:?} bytes were announced, and {} came", bytes.len());
            return Err(SessionError::Words { of: of.to_string(), why });
        }
        Ok((bytes, counts))
    }

    fn run(&self, of: &str, request: Request) -> Result<Outcome, SessionError> {
        let name = format!("{}.{of}", self.prefix);
        // The engine is given back before the wait: its owner may want to end it meanwhile, which ends the wait.
        let handle = {
            let engine = (self.lend)().ok_or(SessionError::Ended)?;
            (*engine).as_ref().submit(request.name(name))
        };
        let answer = handle.and_then(|handle| handle.wait());
        answer.map_err(|why: EngineError| SessionError::Ranks { during: of.to_string(), why })
    }
}
