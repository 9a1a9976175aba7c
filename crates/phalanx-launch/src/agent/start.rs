//! Starts the ranks of this host from a [`Prepare`] message.

use super::{Agent, check, cores, feed::InputWriter, pump, reap, secret_fd, spawn};
use crate::{
    environment::{DEFAULTS, SECRET_FD, is_foreign},
    limits::{self, Shortage},
    numbers,
    wire::{NamedCores, OutputStream, Prepare, RankStart, StartRefusal, ToLauncher},
};
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
    process::Child,
    sync::Arc,
};

type Env = BTreeMap<OsString, OsString>;

/// A rank, the thread that watches for it, and our two threads that carry its output; one that reads has a third.
const TASKS_OF_RANK: u64 = 4;
/// Our ends of a rank's output, and of its input; a rank has no more for each of its neighbours.
const FILES_OF_RANK: u64 = 3;
/// Descriptors that do not depend on the number of ranks.
const FILES: u64 = 64;

/// Whether the ranks could start here.
pub fn check(prepare: &Prepare) -> Result<(), StartRefusal> {
    let env = environment(prepare, &[]);
    let path = env.get(OsStr::new("PATH")).map(OsString::as_os_str);
    check::check(Path::new(OsStr::from_bytes(&prepare.cwd)), program(prepare), path)?;
    let allowed = phalanx_net::cores::allowed();
    prepare.ranks.iter().try_for_each(|rank| named_cores(rank, &allowed).map(drop))?;
    room(prepare.ranks.len() as u32)
}

/// The cores that a rank file gives a rank; none: no file does.
fn named_cores(rank: &RankStart, allowed: &[u32]) -> Result<Vec<u32>, StartRefusal> {
    let Some(NamedCores { place, spans }) = &rank.cores else { return Ok(Vec::new()) };
    cores::named(spans, allowed, cores::socket_of).map_err(|core| StartRefusal::NoCore {
        place: place.clone(),
        rank: rank.rank,
        core,
        have: numbers::runs(allowed.iter().copied()),
    })
}

/// Whether the system lets this number of ranks live here. Ranks inherit the limit on files that this raises: each watches all others.
fn room(n_ranks: u32) -> Result<(), StartRefusal> {
    let refuse = |what: &str, short: Shortage| StartRefusal::NoRoom {
        n_ranks,
        needed: short.needed,
        what: what.to_string(),
        left: short.left,
        limit: short.limit,
    };
    limits::check_tasks(u64::from(n_ranks) * TASKS_OF_RANK)
        .map_err(|short| refuse("processes and threads", short))?;
    limits::raise_files(u64::from(n_ranks) * FILES_OF_RANK + FILES)
        .map_err(|short| refuse("open files", short))
}

impl Agent {
    /// Starts every rank; after a failure the launcher ends those that did start.
    pub fn start(&mut self) {
        let Some(prepare) = self.prepared.take() else { return };
        let (over_reader, over) = match pipe_with(PipeFlags::CLOEXEC) {
            Ok(ends) => ends,
            Err(error) => {
                return self.say(ToLauncher::Refused(refusal(&prepare, &prepare.ranks[0], &error.into())));
            }
        };
        self.over = Some(over);
        let over_reader = Arc::new(over_reader);
        for (local_rank, rank) in prepare.ranks.iter().enumerate() {
            match start_rank(&prepare, rank, local_rank) {
                Ok(child) => self.watch(child, rank, &over_reader),
                Err(error) => {
                    self.say(ToLauncher::Refused(refusal(&prepare, rank, &error)));
                    break;
                }
            }
        }
        if !self.running.is_empty() {
            self.family_gone = false;
            reap(self.events.clone());
        }
    }

    fn watch(&mut self, mut child: Child, rank: &RankStart, over: &Arc<OwnedFd>) {
        let rank = rank.rank;
        self.running.push((Pid::from_child(&child), rank));
        self.say(ToLauncher::Started { rank, pid: child.id() });
        if let Some(stdin) = child.stdin.take() {
            self.feeds.push(InputWriter::start(rank, stdin, self.events.clone()));
        }
        let Some(voice) = &self.voice else { return };
        let stdout = child.stdout.take().map(|pipe| (OutputStream::Stdout, OwnedFd::from(pipe)));
        let stderr = child.stderr.take().map(|pipe| (OutputStream::Stderr, OwnedFd::from(pipe)));
        for (stream, pipe) in stdout.into_iter().chain(stderr) {
            pump::start(rank, stream, pipe, over.clone(), (voice.clone(), self.events.clone()));
            self.n_streams += 1;
        }
    }
}

fn start_rank(prepare: &Prepare, rank: &RankStart, local_rank: usize) -> io::Result<Child> {
    let n_local = prepare.ranks.len();
    let allowed = phalanx_net::cores::allowed();
    // One core is no choice: either nothing would change, or the system does not tell which there are.
    let binds = prepare.bind && allowed.len() > 1;
    let named = named_cores(rank, &allowed).map_err(|gone| io::Error::other(gone.to_string()))?;
    let share = match binds {
        _ if !named.is_empty() => &named[..],
        true => cores::share(&allowed, local_rank, n_local),
        false => &[],
    };
    let n_threads = if share.is_empty() { cores::n_usable() / n_local as u32 } else { share.len() as u32 };
    let secret = secret_fd::create(&prepare.secret.0)?;
    let mut env = environment(prepare, &rank.env);
    env.insert(SECRET_FD.into(), secret.as_raw_fd().to_string().into());
    if !share.is_empty() {
        // Where it may be moved to: its own mask does not tell any more.
        env.insert(phalanx_net::cores::MOVABLE.into(), numbers::runs(allowed.iter().copied()).into());
    }
    env.entry("OMP_NUM_THREADS".into()).or_insert_with(|| n_threads.max(1).to_string().into());
    for (name, value) in DEFAULTS {
        env.entry(name.into()).or_insert_with(|| value.into());
    }
    let argv: Vec<OsString> =
        rank.argv.as_ref().unwrap_or(&prepare.argv).iter().map(|a| OsString::from_vec(a.clone())).collect();
    spawn::spawn(spawn::RankProcess {
        argv: &argv,
        cwd: Path::new(OsStr::from_bytes(&prepare.cwd)),
        env: env.into_iter().collect(),
        secret,
        reads: rank.reads,
        cores: cores::mask(share),
    })
}

/// The agent's own environment without other launchers' ranks, then what the launcher gave, then the rank's.
fn environment(prepare: &Prepare, rank: &[(String, String)]) -> Env {
    let mut env: Env = env::vars_os().filter(|(name, _)| !is_foreign(name.as_bytes())).collect();
    let given =
        prepare.env.iter().map(|(n, v)| (OsString::from_vec(n.clone()), OsString::from_vec(v.clone())));
    env.extend(given);
    env.extend(rank.iter().map(|(n, v)| (n.into(), v.into())));
    env
}

fn program(prepare: &Prepare) -> &OsStr {
    OsStr::from_bytes(prepare.argv.first().map_or(&[], Vec::as_slice))
}

fn refusal(prepare: &Prepare, rank: &RankStart, error: &io::Error) -> StartRefusal {
    check::explain(error, program(prepare), rank.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_than_the_system_has_room_for_are_refused_with_the_limit() {
        assert_eq!(room(1), Ok(()));
        let refusal = room(u32::MAX).unwrap_err().to_string();
        assert!(
            refusal.starts_with("4294967295 ranks need 17179869180 processes and threads, but "),
            "{refusal}"
        );
        assert!(refusal.contains("raise that limit, lower -np, or spread"), "{refusal}");
    }
}
