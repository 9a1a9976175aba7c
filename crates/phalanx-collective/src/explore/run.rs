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
use phalanx_core::{Config, Rank, ReduceOp, Transport, Way};
use std::{
    fs, io, mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Whether a communicator explores.
#[derive(Debug)]
pub(crate) enum Exploring {
    Not,
    /// A file is named, and nothing has asked to explore so far.
    Named,
    Explores(Box<Exploration>),
}

/// What is said where a file is named and nothing explores.
pub(crate) const UNUSED_FILE: &str = "PHALANX_EXPLORE has no effect here: only DDL explores. Start the program with ddl.init(mode=\"-mode p:SHAPE\") \
     (Rust: Ddl::init, C: ddl_init), or unset it";

impl Exploring {
    /// Of a new communicator: the file belongs to rank 0 of the communicator of all workers.
    pub fn new(config: &Config, number: u32, me: Rank) -> Exploring {
        let is_named = config.explore.is_some() && number == 0 && me == Rank::ZERO;
        if is_named { Exploring::Named } else { Exploring::Not }
    }

    /// From now on nothing is tried.
    pub fn stop(&mut self) {
        drop(self.take());
    }

    /// What explores, which is away until it is put back.
    fn take(&mut self) -> Option<Box<Exploration>> {
        match mem::replace(self, Exploring::Not) {
            Exploring::Explores(exploration) => Some(exploration),
            other => {
                *self = other;
                None
            }
        }
    }

    /// An allreduce runs. What a person should know, once.
    fn unused_file(&mut self) -> Option<&'static str> {
        let is_named = matches!(self, Exploring::Named);
        is_named.then(|| {
            *self = Exploring::Not;
            UNUSED_FILE
        })
    }
}

/// What reports call the way of a tier of which several are tried, and of one that sizes have different ways for.
const TRYING: &str = "exploring";
const SEVERAL: &str = "several";

/// The way of each tier as exploring has found it, for reports: another thread reads it. A lock because names change together; held for moments.
#[derive(Clone, Debug)]
pub struct ExploredWays(Arc<Mutex<Vec<&'static str>>>);

impl ExploredWays {
    fn new(n_tiers: usize) -> ExploredWays {
        ExploredWays(Arc::new(Mutex::new(vec![TRYING; n_tiers])))
    }

    pub fn now(&self) -> Vec<&'static str> {
        self.names().clone()
    }

    fn names(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `kept` has what the tiers do for each size, if all sizes are settled.
    fn show(&self, kept: Option<Vec<Vec<Way>>>) {
        for (tier, name) in self.names().iter_mut().enumerate() {
            *name = match kept.as_deref() {
                None | Some([]) => TRYING,
                Some([first, rest @ ..]) if rest.iter().all(|ways| ways[tier] == first[tier]) => {
                    first[tier].name()
                }
                Some(_) => SEVERAL,
            };
        }
    }
}

/// An explorer, and where what it finds is kept.
#[derive(Debug)]
pub(crate) struct Exploration {
    explorer: Explorer,
    kept: ExploredWays,
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
        let kept = ExploredWays::new(wiring.n_tiers());
        let exploration = Exploration { explorer, kept, file };
        self.show_kept(&exploration);
        self.exploring = Exploring::Explores(Box::new(exploration));
        Ok(Ok(()))
    }

    /// The ways that are found, where they are explored.
    pub(crate) fn kept(&self) -> Option<ExploredWays> {
        match &self.exploring {
            Exploring::Explores(exploration) => Some(exploration.kept.clone()),
            _ => None,
        }
    }

    fn show_kept(&self, exploration: &Exploration) {
        let Some(Wiring { grid, .. }) = &self.wiring else { return };
        let has_arena = self.world.config().transport == Transport::Auto;
        let used =
            |ways: &[Way]| Wiring { grid: grid.clone(), ways: ways.to_vec() }.used(&self.topology, has_arena);
        let kept = exploration.explorer.kept();
        exploration.kept.show(kept.map(|kept| kept.into_iter().map(used).collect()));
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
        if matches!(self.exploring, Exploring::Not)
            || ask.op != CollectiveOp::Allreduce
            || ask.layout.is_empty()
        {
            return Ok(None);
        }
        if let Some(text) = self.exploring.unused_file() {
            phalanx_net::voice::warn(text);
        }
        let (op, bytes) = (ask.op, ask.bytes());
        // Taken out, because the labels ask the communicator; nothing returns before it is back.
        let Some(mut exploration) = self.exploring.take() else { return Ok(None) };
        let is_new = exploration.explorer.meet(op, bytes, |ways| self.label(bytes, ways));
        if is_new {
            self.show_kept(&exploration);
        }
        let is_trying = exploration.explorer.is_trying(op, bytes);
        self.exploring = Exploring::Explores(exploration);
        if !is_trying {
            return Ok(None);
        }
        self.barrier()?;
        Ok(Some(Instant::now()))
    }

    /// After a measured call that succeeded on all ranks.
    pub(crate) fn end_trial(&mut self, ask: &Ask, began: Instant) -> Result<(), Error> {
        let (took, op, bytes) = (began.elapsed(), ask.op, ask.bytes());
        let Some(mut exploration) = self.exploring.take() else { return Ok(()) };
        let times = exploration.explorer.tried(op, bytes, took);
        // This allreduce is not explored itself: the exploration is away meanwhile.
        let agreed = times.map(|mut times| self.allreduce(&mut times, ReduceOp::Max).map(|()| times));
        if let Some(Ok(agreed)) = &agreed
            && let Some(found) = exploration.explorer.settle(op, bytes, agreed)
        {
            self.show_kept(&exploration);
            if self.me == Rank::ZERO {
                self.tell(&found, &exploration);
            }
        }
        self.exploring = Exploring::Explores(exploration);
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
        match &self.exploring {
            Exploring::Explores(exploration) if ask.op == CollectiveOp::Allreduce => {
                exploration.explorer.ways(ask.op, ask.bytes())
            }
            _ => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nothing_uses_is_said_once_by_rank_0() {
        let mut config = Config::default();
        assert!(matches!(Exploring::new(&config, 0, Rank(0)), Exploring::Not));
        config.set("PHALANX_EXPLORE", "/tmp/found").expect("a setting");
        for (number, rank) in [(0, 1), (3, 0)] {
            assert!(matches!(Exploring::new(&config, number, Rank(rank)), Exploring::Not));
        }
        let mut exploring = Exploring::new(&config, 0, Rank(0));
        // Another shape explores as little as none.
        exploring.stop();
        assert_eq!([exploring.unused_file(), exploring.unused_file()], [Some(UNUSED_FILE), None]);
    }

    #[test]
    fn reports_show_what_all_sizes_have_in_common() {
        let kept = ExploredWays::new(2);
        assert_eq!(kept.now(), ["exploring", "exploring"]);
        let ways = |list: &str| Way::list(list).unwrap();
        kept.show(Some(vec![ways("arena,ring"), ways("arena,direct")]));
        assert_eq!(kept.now(), ["arena", "several"]);
        kept.show(Some(vec![ways("direct,ring")]));
        assert_eq!(kept.now(), ["direct", "ring"]);
        kept.show(None);
        assert_eq!(kept.now(), ["exploring", "exploring"], "one size more is tried");
    }
}
