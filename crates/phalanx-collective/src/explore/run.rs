//! Measures what the explorer wants to know, and keeps it in a file.

use super::{
    Explorer, Found,
    saved::{self, Entry, ExploreError, HostLine},
};
use crate::{
    communicator::Communicator,
    error::Error,
    invoke::Ask,
    plan::{Wiring, step::CollectiveOp},
};
use phalanx_core::{Rank, ReduceOp, Way};
use std::{fs, io, path::Path, time::Instant};

/// An explorer, and where what it finds is kept.
#[derive(Debug)]
pub(crate) struct Exploration {
    explorer: Explorer,
    /// On rank 0, if there is a file.
    file: Option<ExploreFile>,
}

#[derive(Debug)]
struct ExploreFile {
    path: String,
    hosts: Vec<HostLine>,
    /// What it said when it was read.
    old: Vec<Entry>,
}

impl Communicator {
    /// From now on the ways of this wiring are tried, unless the file of `PHALANX_EXPLORE` knows the best already. Every rank calls it between the
    /// same calls, after `rewire`.
    pub(crate) fn explore(&mut self, wiring: &Wiring) -> Result<Result<(), ExploreError>, Error> {
        let path = self.world.config().explore.clone();
        let hosts = self.host_lines();
        let text = match &path {
            Some(path) if self.me == Rank::ZERO => content(path),
            _ => Ok(None),
        };
        let old = match self.told_by_rank_0(text)? {
            Ok(Some(text)) => {
                // Rank 0 alone may have the setting.
                let path = path.clone().unwrap_or_else(|| "the file of rank 0".to_string());
                match saved::read(&text, &path, &hosts) {
                    Ok(entries) => entries,
                    Err(why) => return Ok(Err(why)),
                }
            }
            Ok(None) => Vec::new(),
            Err(why) => {
                let path = path.unwrap_or_else(|| "the file of rank 0".to_string());
                return Ok(Err(ExploreError::Unreadable { path, why }));
            }
        };
        let explorer = Explorer::new(wiring.grid.tiers(), &self.topology, &old);
        let file = path.filter(|_| self.me == Rank::ZERO).map(|path| ExploreFile { path, hosts, old });
        self.exploration = Some(Box::new(Exploration { explorer, file }));
        Ok(Ok(()))
    }

    /// The hosts' names and sizes, in the order of the topology.
    fn host_lines(&self) -> Vec<HostLine> {
        let members = self.world.members();
        let name = |rank: Rank| members[self.members[rank.index()].index()].host_name.clone();
        self.topology.hosts().iter().map(|ranks| (name(ranks[0]), ranks.len() as u32)).collect()
    }

    /// What rank 0 has, on all ranks.
    fn told_by_rank_0(
        &mut self,
        mine: Result<Option<String>, String>,
    ) -> Result<Result<Option<String>, String>, Error> {
        let (kind, text) = match mine {
            Ok(None) => (0, String::new()),
            Ok(Some(text)) => (1, text),
            Err(why) => (2, why),
        };
        let mut head = [kind, text.len() as i64];
        self.broadcast(&mut head, Rank::ZERO)?;
        let mut bytes = if self.me == Rank::ZERO { text.into_bytes() } else { vec![0; head[1] as usize] };
        if !bytes.is_empty() {
            self.broadcast(&mut bytes, Rank::ZERO)?;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(match head[0] {
            0 => Ok(None),
            1 => Ok(Some(text)),
            _ => Err(text),
        })
    }

    /// Before a call: whether it is one that is measured. All ranks begin those together, so that nobody's lateness is taken for a slow way.
    pub(crate) fn begin_trial(&mut self, ask: &Ask) -> Result<Option<Instant>, Error> {
        if self.exploration.is_none() || ask.op != CollectiveOp::Allreduce || ask.layout.is_empty() {
            return Ok(None);
        }
        let (op, bytes) = (ask.op, ask.bytes());
        // Taken out, because the labels ask the communicator; nothing returns before it is back.
        let Some(mut exploration) = self.exploration.take() else { return Ok(None) };
        exploration.explorer.meet(op, bytes, |ways| self.label(bytes, ways));
        let is_trying = exploration.explorer.is_trying(op, bytes);
        self.exploration = Some(exploration);
        if !is_trying {
            return Ok(None);
        }
        self.barrier()?;
        Ok(Some(Instant::now()))
    }

    /// After a measured call that succeeded on all ranks.
    pub(crate) fn end_trial(&mut self, ask: &Ask, began: Instant) -> Result<(), Error> {
        let (took, op, bytes) = (began.elapsed(), ask.op, ask.bytes());
        let Some(mut exploration) = self.exploration.take() else { return Ok(()) };
        let times = exploration.explorer.tried(op, bytes, took);
        // This allreduce is not explored itself: the exploration is away meanwhile.
        let agreed = times.map(|mut times| self.allreduce(&mut times, ReduceOp::Max).map(|()| times));
        if let Some(Ok(agreed)) = &agreed
            && let Some(found) = exploration.explorer.settle(op, bytes, agreed)
            && self.me == Rank::ZERO
        {
            self.tell(&found, &exploration);
        }
        self.exploration = Some(exploration);
        agreed.transpose().map(drop)
    }

    fn tell(&self, found: &Found, exploration: &Exploration) {
        let text = found.to_string();
        if !self.world.tell_launcher(&text) {
            phalanx_net::voice::warn(&text);
        }
        if let Some(file) = &exploration.file
            && let Err(why) = file.save(&exploration.explorer.known())
        {
            phalanx_net::voice::warn(&format!("PHALANX_EXPLORE: cannot write {}: {why}", file.path));
        }
    }

    /// The ways that the next call of this size takes, if it is explored, and their number.
    pub(crate) fn explored(&self, ask: &Ask) -> Option<(u16, &[Way])> {
        let exploration = self.exploration.as_deref().filter(|_| ask.op == CollectiveOp::Allreduce)?;
        exploration.explorer.ways(ask.op, ask.bytes())
    }
}

/// The file's text; none if there is no such file yet.
fn content(path: &str) -> Result<Option<String>, String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

impl ExploreFile {
    /// Whole or not at all: a job that ends meanwhile leaves the old file.
    fn save(&self, known: &[Entry]) -> io::Result<()> {
        let text = saved::write(&self.hosts, &saved::merged(known, &self.old));
        let new = format!("{}.new", self.path);
        fs::write(&new, text)?;
        fs::rename(&new, Path::new(&self.path))
    }
}
