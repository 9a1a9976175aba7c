//! Reads a rank file of Open MPI: `rank 3=host slot=0-1`, one rank a line. Pure; which cores a host has, its agent knows.
//!
//! ```text
//! line := "rank" N "=" HOST [ "slot" "=" slots ] [ "#" ... ]
//! slots := span { "," span }
//! span := CORE [ "-" CORE ] | SOCKET ":" ( CORE [ "-" CORE ] | "*" )
//! ```
//! - RANKFILE-1: every rank from 0 on is named once. What is wrong is said with the line.

use crate::{
    hosts::{self, HostSlots},
    numbers,
    wire::{CoreSpan, NamedCores},
};

/// Most ranks that are read: a world cannot have more.
const MOST: u32 = 1 << 16;

/// A rank file, read: the ranks from 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFile {
    pub ranks: Vec<PlacedRank>,
}

/// Where one rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedRank {
    pub host: String,
    pub line: usize,
    /// None: the line has no slots.
    pub cores: Option<NamedCores>,
}

/// What is wrong with a rank file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRankFile {
    #[error("{place}: {text:?} is not understood; write e.g. rank 3=node1 slot=0-1")]
    BadLine { place: String, text: String },
    #[error("{place}: {text:?} is not a rank; ranks are whole numbers from 0 to {}", MOST - 1)]
    BadRank { place: String, text: String },
    #[error(
        "{place}: {text:?} is not a host name; use letters, digits and . - _ @ : only, and do not begin with -"
    )]
    BadHost { place: String, text: String },
    #[error(
        "{place}: {text:?} are not cores; write e.g. slot=2, slot=0-3, slot=0,2, or slot=1:0-3 for those of socket 1"
    )]
    BadCores { place: String, text: String },
    #[error("{place}: rank {rank} is named already in line {first}")]
    Twice { place: String, rank: u32, first: usize },
    #[error("{path} names ranks up to {last}, but not rank {missing}; write a line for each rank from 0 on")]
    Missing { path: String, missing: String, last: u32 },
    #[error("rank file {path} does not name a rank; write e.g. rank 0=node1 slot=0")]
    Empty { path: String },
    #[error("{place}: host {host} is not among the hosts of {flag}: {known}")]
    UnknownHost { place: String, host: String, flag: &'static str, known: String },
    #[error("{place}: rank {rank} is number {n} on host {host}, which has {slots} slots in {flag}")]
    Crowded { place: String, rank: u32, n: u32, host: String, slots: u32, flag: &'static str },
    #[error("-np {np}, but {path} names {have} ranks; leave -np out, or write the same number")]
    WrongNumber { np: u32, path: String, have: u32 },
}

impl RankFile {
    pub fn parse(text: &str, path: &str) -> Result<RankFile, BadRankFile> {
        let mut ranks: Vec<Option<PlacedRank>> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let place = format!("{path} line {line}");
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let (rank, host, slots) = words(text, &place)?;
            let cores = slots.map(|slots| cores(slots, &place)).transpose()?;
            if ranks.len() <= rank as usize {
                ranks.resize(rank as usize + 1, None);
            }
            if let Some(known) = &ranks[rank as usize] {
                return Err(BadRankFile::Twice { place, rank, first: known.line });
            }
            ranks[rank as usize] = Some(PlacedRank { host, line, cores });
        }
        if ranks.is_empty() {
            return Err(BadRankFile::Empty { path: path.to_string() });
        }
        let missing = (0..).zip(&ranks).filter(|(_, line)| line.is_none()).map(|(rank, _)| rank);
        let missing = numbers::runs(missing);
        if !missing.is_empty() {
            let last = ranks.len() as u32 - 1;
            return Err(BadRankFile::Missing { path: path.to_string(), missing, last });
        }
        Ok(RankFile { ranks: ranks.into_iter().flatten().collect() })
    }

    /// The hosts of the file in the order of their lowest ranks, with a slot for each rank.
    pub fn hosts(&self) -> Vec<HostSlots> {
        let mut hosts: Vec<HostSlots> = Vec::new();
        for PlacedRank { host, .. } in &self.ranks {
            match hosts.iter_mut().find(|known| known.name == *host) {
                Some(known) => known.slots += 1,
                None => hosts.push(HostSlots { name: host.clone(), slots: 1 }),
            }
        }
        hosts
    }

    /// Checks that the hosts are among those that a flag names, and have room.
    pub fn check(&self, known: &[HostSlots], flag: &'static str, path: &str) -> Result<(), BadRankFile> {
        let mut n_on = vec![0; known.len()];
        for (rank, PlacedRank { host, line, .. }) in (0..).zip(&self.ranks) {
            let place = format!("{path} line {line}");
            let Some(i) = known.iter().position(|one| one.name == *host) else {
                let known = known.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(BadRankFile::UnknownHost { place, host: host.clone(), flag, known });
            };
            n_on[i] += 1;
            let (n, slots) = (n_on[i], known[i].slots);
            if n > slots {
                return Err(BadRankFile::Crowded { place, rank, n, host: host.clone(), slots, flag });
            }
        }
        Ok(())
    }
}

/// The rank, its host, and its slots, if there are any.
fn words<'a>(text: &'a str, place: &str) -> Result<(u32, String, Option<&'a str>), BadRankFile> {
    let bad = || BadRankFile::BadLine { place: place.to_string(), text: text.to_string() };
    let rest =
        text.strip_prefix("rank").filter(|rest| rest.starts_with(char::is_whitespace)).ok_or_else(bad)?;
    let (number, rest) = rest.split_once('=').ok_or_else(bad)?;
    let number = number.trim();
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let rank = number.parse().ok().filter(|rank| is_number && *rank < MOST);
    let bad_rank = || BadRankFile::BadRank { place: place.to_string(), text: number.to_string() };
    let rank = rank.ok_or_else(bad_rank)?;
    let rest = rest.trim_start();
    let (host, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !hosts::is_name(host) {
        return Err(BadRankFile::BadHost { place: place.to_string(), text: host.to_string() });
    }
    let rest = rest.trim();
    if rest.is_empty() {
        return Ok((rank, host.to_string(), None));
    }
    let (key, slots) = rest.split_once('=').ok_or_else(bad)?;
    if !matches!(key.trim_end(), "slot" | "slots") {
        return Err(bad());
    }
    Ok((rank, host.to_string(), Some(slots.trim())))
}

fn cores(text: &str, place: &str) -> Result<NamedCores, BadRankFile> {
    let spans = text.split(',').map(|part| span(part.trim())).collect::<Option<Vec<_>>>();
    let bad = || BadRankFile::BadCores { place: place.to_string(), text: text.to_string() };
    Ok(NamedCores { place: place.to_string(), spans: spans.ok_or_else(bad)? })
}

fn span(part: &str) -> Option<CoreSpan> {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (socket, cores) = match part.split_once(':') {
        Some((socket, cores)) => (Some(number(socket)?), cores),
        None => (None, part),
    };
    if socket.is_some() && cores == "*" {
        return Some(CoreSpan { socket, first: 0, last: None });
    }
    let (first, last) = match cores.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(cores)?, number(cores)?),
    };
    (first <= last).then_some(CoreSpan { socket, first, last: Some(last) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rankfile::written;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<RankFile, String> {
        RankFile::parse(text, "f.rf").map_err(|e| e.to_string())
    }

    fn spans(slots: &str) -> Vec<(Option<u32>, u32, Option<u32>)> {
        let file = read(&format!("rank 0=a slot={slots}")).unwrap();
        let cores = file.ranks[0].cores.clone().unwrap();
        cores.spans.iter().map(|s| (s.socket, s.first, s.last)).collect()
    }

    #[test]
    fn lines_name_ranks_hosts_and_cores_in_any_order() {
        let file =
            read("# mine\nrank 1=b slot=2-4\n\nrank 0=a # first\n rank  2 = me@a  slots = 0:*,1:0-1\n")
                .unwrap();
        let hosts: Vec<&str> = file.ranks.iter().map(|r| r.host.as_str()).collect();
        assert_eq!(hosts, ["a", "b", "me@a"]);
        assert_eq!(file.ranks.iter().map(|r| r.line).collect::<Vec<_>>(), [4, 2, 5]);
        assert_eq!(file.ranks[0].cores, None);
        assert_eq!(file.ranks[1].cores.as_ref().unwrap().place, "f.rf line 2");
        assert_eq!(spans("3"), [(None, 3, Some(3))]);
        assert_eq!(spans("0,2-3"), [(None, 0, Some(0)), (None, 2, Some(3))]);
        assert_eq!(spans("1:0-3,0:*"), [(Some(1), 0, Some(3)), (Some(0), 0, None)]);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_line() {
        for (text, says) in [
            ("", "rank file f.rf does not name a rank; write e.g. rank 0=node1 slot=0"),
            ("rank 0=a\nrank 0=b", "f.rf line 2: rank 0 is named already in line 1"),
            (
                "rank 0=a\nrank 3=a\nrank 5=a",
                "f.rf names ranks up to 5, but not rank 1-2,4; write a line for each rank from 0 on",
            ),
            (
                "rank 0=a\nrnk 1=a",
                "f.rf line 2: \"rnk 1=a\" is not understood; write e.g. rank 3=node1 slot=0-1",
            ),
            ("rank 0 a", "f.rf line 1: \"rank 0 a\" is not understood; write e.g. rank 3=node1 slot=0-1"),
            (
                "rank 0=a cpu=3",
                "f.rf line 1: \"rank 0=a cpu=3\" is not understood; write e.g. rank 3=node1 slot=0-1",
            ),
            ("rank -1=a", "f.rf line 1: \"-1\" is not a rank; ranks are whole numbers from 0 to 65535"),
            ("rank 65536=a", "f.rf line 1: \"65536\" is not a rank; ranks are whole numbers from 0 to 65535"),
            (
                "rank 0=+n0 slot=0",
                "f.rf line 1: \"+n0\" is not a host name; use letters, digits and . - _ @ : only, and do not begin with -",
            ),
            (
                "rank 0=-oProxyCommand=x slot=0",
                "f.rf line 1: \"-oProxyCommand=x\" is not a host name; use letters, digits and . - _ @ : only, and do not begin with -",
            ),
            (
                "rank 0=a slot=3-1",
                "f.rf line 1: \"3-1\" are not cores; write e.g. slot=2, slot=0-3, slot=0,2, or slot=1:0-3 for those of socket 1",
            ),
            (
                "rank 0=a slot=p0",
                "f.rf line 1: \"p0\" are not cores; write e.g. slot=2, slot=0-3, slot=0,2, or slot=1:0-3 for those of socket 1",
            ),
            (
                "rank 0=a slot=",
                "f.rf line 1: \"\" are not cores; write e.g. slot=2, slot=0-3, slot=0,2, or slot=1:0-3 for those of socket 1",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), says, "RANKFILE-1: {text}");
        }
    }

    #[test]
    fn hosts_must_be_known_and_have_room_where_a_flag_names_them() {
        let file = read("rank 0=a\nrank 1=b\nrank 2=a").unwrap();
        let known = |list: &str| hosts::parse_list(list).unwrap();
        let says = |list: &str| file.check(&known(list), "-H", "f.rf").unwrap_err().to_string();
        assert_eq!(file.check(&known("b:1,a:2,c:9"), "-H", "f.rf"), Ok(()));
        assert_eq!(says("a:2,c"), "f.rf line 2: host b is not among the hosts of -H: a, c");
        assert_eq!(says("a,b"), "f.rf line 3: rank 2 is number 2 on host a, which has 1 slots in -H");
        assert_eq!(file.hosts(), known("a:2,b:1"));
    }

    proptest! {
        /// What `phalanx rankfile` writes is read as it was meant.
        #[test]
        fn what_is_written_is_read(each in 1u32..9, n_hosts in 1u32..9, more in 0u32..20) {
            let names: Vec<String> = (0..n_hosts).map(|i| format!("n{i}")).collect();
            let text = written(&format!("{each}x{n_hosts}"), &names, Some(each + more)).unwrap();
            let file = read(&text).unwrap();
            prop_assert_eq!(file.ranks.len() as u32, each * n_hosts);
            for (rank, line) in (0..).zip(&file.ranks) {
                prop_assert_eq!(&line.host, &names[(rank / each) as usize]);
                let spans = &line.cores.as_ref().unwrap().spans;
                prop_assert!(spans.len() == 1 && spans[0].last.unwrap() < each + more);
            }
            let cores = |line: &PlacedRank| line.cores.as_ref().unwrap().spans[0];
            for pair in file.ranks[..each as usize].windows(2) {
                prop_assert_eq!(cores(&pair[0]).last.unwrap() + 1, cores(&pair[1]).first);
            }
        }

        /// Whatever a file says, it is read or refused in one line; nothing that is read has a rank twice or a name that is an option.
        #[test]
        fn any_text_is_read_or_refused(text in "([rank 0-9=a:*,slot#\\-]|\\n|rank |slot=|.){0,80}") {
            match RankFile::parse(&text, "f") {
                Ok(file) => prop_assert!(file.ranks.iter().all(|r| hosts::is_name(&r.host))),
                Err(why) => prop_assert_eq!(why.to_string().lines().count(), 1),
            }
        }
    }
}
