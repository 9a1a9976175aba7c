//! Sub-communicators: some of the ranks, with an order of their own.

use crate::{communicator::Communicator, error::Error};
use phalanx_core::Rank;
use phalanx_net::arena::MAX_LANES;
use std::hash::{DefaultHasher, Hash, Hasher};

impl Communicator {
    /// Makes a communicator of some of these ranks. Every rank of this communicator calls it, each with the list of the group it wants to be in
    /// (an empty list for none); members of one group give the same list, which is also their order. Groups do not overlap.
    pub fn split(&mut self, ranks: &[Rank]) -> Result<Option<Communicator>, Error> {
        let wrong = self.wrong_list(ranks);
        let n = self.members.len();
        let mut hasher = DefaultHasher::new();
        ranks.hash(&mut hasher);
        // Also a rank with a wrong list takes part, so that nobody waits for it.
        let first = if wrong.is_some() { -2 } else { ranks.first().map_or(-1, |r| i64::from(r.0)) };
        let mine = [first, hasher.finish() as i64, i64::from(self.world.next_communicator())];
        let mut all = vec![0i64; 3 * n];
        self.allgather(&mine, &mut all, &vec![3; n])?;
        let rows: Vec<&[i64]> = all.chunks(3).collect();
        let base = rows.iter().map(|row| row[2]).max().unwrap_or(1) as u32;
        let mut firsts: Vec<i64> = rows.iter().map(|row| row[0]).filter(|&f| f >= 0).collect();
        firsts.sort_unstable();
        firsts.dedup();
        self.world.take_communicators_below(base + firsts.len() as u32);
        if let Some(why) = wrong {
            return Err(Error::Split(why));
        }
        let Some(leader) = ranks.first() else { return Ok(None) };
        for &rank in ranks {
            if rows[rank.index()][..2] != mine[..2] {
                let (me, list) = (self.me, show(ranks));
                return Err(Error::Split(format!(
                    "rank {me} splits into {list}, but rank {rank}, which is in that list, asked for another group"
                )));
            }
        }
        let number =
            base + firsts.iter().position(|&f| f == i64::from(leader.0)).expect("it is among them") as u32;
        if number >= MAX_LANES {
            return Err(Error::Split(format!("a world makes at most {MAX_LANES} communicators in its life")));
        }
        let members = ranks.iter().map(|r| self.members[r.index()]).collect();
        Communicator::of(self.world.clone(), number, members).map(Some)
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
            return Some(format!("rank {} stands twice in {list}", pair[0]));
        }
        (!ranks.is_empty() && !ranks.contains(&self.me))
            .then(|| format!("rank {} asks for the group {list}, which it is not in", self.me))
    }
}

fn show(ranks: &[Rank]) -> String {
    format!("[{}]", ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}
