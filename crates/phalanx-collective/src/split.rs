//! Sub-communicators: some of the ranks, with an order of their own.

use crate::{
    communicator::{Communicator, CommunicatorId},
    error::Error,
};
use phalanx_core::{Rank, ReduceOp};
use phalanx_net::arena::MAX_LANES;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a rank says instead of the first rank of its group: it wants none, its list is wrong, another of its threads splits.
const NOBODY: i64 = -1;
const WRONG: i64 = -2;
const BUSY: i64 = -3;

impl Communicator {
    /// Makes a communicator of some of these ranks. Every rank of this communicator calls it, each with the list of the group it wants to be in
    /// (an empty list for none); members of one group give the same list, which is also their order. Groups do not overlap.
    /// There is room for 1023 of them at a time; where it is used up, every rank gets the same error, and dropping one on all of its ranks makes room.
    pub fn split(&mut self, ranks: &[Rank]) -> Result<Option<Communicator>, Error> {
        let world = self.world.clone();
        let turn = world.begin_split();
        let wrong = self.wrong_list(ranks);
        let n = self.members.len();
        let mut hasher = DefaultHasher::new();
        ranks.hash(&mut hasher);
        // Also a rank with a wrong list takes part, so that nobody waits for it.
        let first = match (&turn, &wrong) {
            (None, _) => BUSY,
            (_, Some(_)) => WRONG,
            _ => ranks.first().map_or(NOBODY, |r| i64::from(r.0)),
        };
        let mine = [first, hasher.finish() as i64, i64::from(self.world.next_communicator())];
        let mut all = vec![0i64; 3 * n];
        self.allgather(&mine, &mut all, &vec![3; n])?;
        let rows: Vec<&[i64]> = all.chunks(3).collect();
        if let Some(busy) = rows.iter().position(|row| row[0] == BUSY) {
            return Err(Error::Split(format!(
                "two threads of rank {busy} split communicators at the same time: split one after the other, in the same order on all ranks"
            )));
        }
        let base = rows.iter().map(|row| row[2]).max().unwrap_or(1) as u32;
        let mut firsts: Vec<i64> = rows.iter().map(|row| row[0]).filter(|&f| f >= 0).collect();
        firsts.sort_unstable();
        firsts.dedup();
        self.world.take_communicators_below(base + firsts.len() as u32);
        let group = ranks.first().and_then(|leader| firsts.binary_search(&i64::from(leader.0)).ok());
        let lanes = self.lanes(base, firsts.len(), group.filter(|_| wrong.is_none()))?;
        if let Some(why) = wrong {
            return Err(Error::Split(why));
        }
        let Some(lanes) = lanes else { return Err(Error::Split(no_room())) };
        let Some(group) = group else { return Ok(None) };
        for &rank in ranks {
            if rows[rank.index()][..2] != mine[..2] {
                let (me, list) = (self.me, show(ranks));
                return Err(Error::Split(format!(
                    "rank {me} splits into {list}, but rank {rank} of that list named another group"
                )));
            }
        }
        let place = CommunicatorId { number: base + group as u32, lane: lanes[group] };
        let members = ranks.iter().map(|r| self.members[r.index()]).collect();
        Communicator::of(self.world.clone(), place, members).map(Some)
    }

    /// A lane for each of `n` groups, of which this rank may be in one; `None` if there are not enough. All ranks get the same.
    fn lanes(&mut self, base: u32, n: usize, mine: Option<usize>) -> Result<Option<Vec<u32>>, Error> {
        let next = base..base + n as u32;
        if next.end <= MAX_LANES || n == 0 {
            return Ok(Some(next.collect()));
        }
        // No lane is left that nobody ever had: ask all ranks which ones they mind (TENANT-1).
        let arena = self.world.arena().cloned();
        let minded = arena.as_ref().map(|arena| arena.minded_lanes(&self.members));
        let mut minded = minded.unwrap_or_else(|| vec![false; MAX_LANES as usize]);
        self.allreduce(&mut minded, ReduceOp::Max)?;
        let free: Vec<u32> = (1..MAX_LANES).filter(|lane| !minded[*lane as usize]).take(n).collect();
        if free.len() < n {
            return Ok(None);
        }
        if let (Some(arena), Some(mine)) = (&arena, mine) {
            arena.renew_lane(free[mine]);
        }
        self.barrier()?;
        Ok(Some(free))
    }

    fn wrong_list(&self, ranks: &[Rank]) -> Option<String> {
        let list = show(ranks);
        if let Some(rank) = ranks.iter().find(|r| r.0 >= self.size()) {
            return Some(format!(
                "rank {rank} of {list} does not exist in a communicator of {} ranks",
                self.size()
            ));
        }
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|p| p[0] == p[1]) {
            return Some(format!("rank {} is listed twice in {list}", pair[0]));
        }
        (!ranks.is_empty() && !ranks.contains(&self.me))
            .then(|| format!("rank {} names the group {list}, but is not in it", self.me))
    }
}

fn no_room() -> String {
    let most = MAX_LANES - 1;
    format!(
        "too many communicators: ranks of one host can have {most} at a time, besides that of all ranks. Drop \
         communicators that are not needed any more, on all of their ranks (for an engine, remove process sets)"
    )
}

pub(crate) fn show(ranks: &[Rank]) -> String {
    format!("[{}]", ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}
