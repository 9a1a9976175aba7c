//! The file of `PHALANX_EXPLORE`: what was found on which hosts, as JSON lines. Pure.
//!
//! - EXPLORE-2: a file is used on the hosts it was made on, and refused on others: a network of others is another network.

use crate::plan::step::CollectiveOp;
use phalanx_core::{Tiers, Way};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// What was found for one size of one shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub tiers: Tiers,
    pub op: CollectiveOp,
    /// The power of two up to which it holds.
    pub bytes: u64,
    pub ways: Vec<Way>,
    pub us: f64,
}

/// A host's name and its number of ranks.
pub(crate) type HostLine = (String, u32);

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    explored: u32,
    hosts: Vec<HostLine>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    tiers: String,
    op: String,
    bytes: u64,
    ways: String,
    us: f64,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExploreError {
    #[error("PHALANX_EXPLORE: cannot read {path}: {why}")]
    Unreadable { path: String, why: String },
    #[error(
        "PHALANX_EXPLORE: {path} line {line} is not what exploring writes: remove the file, or name another one"
    )]
    Garbled { path: String, line: usize },
    #[error(
        "PHALANX_EXPLORE: {path} was made on {theirs}, and this world has {ours}: remove the file, or name another one"
    )]
    OtherHosts { path: String, theirs: String, ours: String },
    #[error(
        "PHALANX_EXPLORE is set, but these options do not explore: write -mode p:SHAPE without PHALANX_WAYS, or unset it"
    )]
    Unused,
}

/// The text of a file.
pub(crate) fn write(hosts: &[HostLine], entries: &[Entry]) -> String {
    let head = Head { explored: VERSION, hosts: hosts.to_vec() };
    let mut text = serde_json::to_string(&head).unwrap_or_default() + "\n";
    for entry in entries {
        let line = Line {
            tiers: entry.tiers.to_string(),
            op: entry.op.name().to_string(),
            bytes: entry.bytes,
            ways: Way::show(&entry.ways),
            us: (entry.us * 1e3).round() / 1e3,
        };
        text += &(serde_json::to_string(&line).unwrap_or_default() + "\n");
    }
    text
}

/// What a file says, if it is for these hosts (EXPLORE-2).
pub(crate) fn read(text: &str, path: &str, ours: &[HostLine]) -> Result<Vec<Entry>, ExploreError> {
    let garbled = |line: usize| ExploreError::Garbled { path: path.to_string(), line };
    let mut lines = text.lines();
    let head: Head = lines.next().and_then(|l| serde_json::from_str(l).ok()).ok_or_else(|| garbled(1))?;
    if head.explored != VERSION {
        return Err(garbled(1));
    }
    if head.hosts != ours {
        return Err(ExploreError::OtherHosts {
            path: path.to_string(),
            theirs: shown(&head.hosts),
            ours: shown(ours),
        });
    }
    lines.zip(2..).map(|(line, number)| entry(line).ok_or_else(|| garbled(number))).collect()
}

fn entry(line: &str) -> Option<Entry> {
    let line: Line = serde_json::from_str(line).ok()?;
    let tiers: Tiers = line.tiers.parse().ok()?;
    let ways = Way::list(&line.ways).ok()?;
    let is_sound = ways.len() == tiers.dims().len() && line.bytes.is_power_of_two() && line.us > 0.0;
    is_sound.then_some(())?;
    Some(Entry { tiers, op: line.op.parse().ok()?, bytes: line.bytes, ways, us: line.us })
}

/// What is written: the new entries, and those that the file had for other shapes.
pub(crate) fn merged(new: &[Entry], old: &[Entry]) -> Vec<Entry> {
    let replaced =
        |old: &&Entry| !new.iter().any(|n| (&n.tiers, n.op, n.bytes) == (&old.tiers, old.op, old.bytes));
    new.iter().chain(old.iter().filter(replaced)).cloned().collect()
}

fn shown(hosts: &[HostLine]) -> String {
    hosts.iter().map(|(name, n)| format!("{name}:{n}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(names: &str) -> Vec<HostLine> {
        names.split(',').map(|name| (name.to_string(), 4)).collect()
    }

    fn found(tiers: &str, bytes: u64, ways: &str) -> Entry {
        let (tiers, ways) = (tiers.parse().unwrap(), Way::list(ways).unwrap());
        Entry { tiers, op: CollectiveOp::Allreduce, bytes, ways, us: 12.5 }
    }

    #[test]
    fn what_is_written_is_read_on_the_same_hosts_only() {
        let entries = [found("4x3", 1024, "arena,direct"), found("2x6", 4096, "ring,ring")];
        let text = write(&hosts("a,b,c"), &entries);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                r#"{"explored":1,"hosts":[["a",4],["b",4],["c",4]]}"#,
                r#"{"tiers":"4x3","op":"allreduce","bytes":1024,"ways":"arena,direct","us":12.5}"#,
                r#"{"tiers":"2x6","op":"allreduce","bytes":4096,"ways":"ring,ring","us":12.5}"#,
            ]
        );
        assert_eq!(read(&text, "f", &hosts("a,b,c")).unwrap(), entries);
        assert_eq!(
            read(&text, "f", &hosts("a,b,d")).unwrap_err().to_string(),
            "PHALANX_EXPLORE: f was made on a:4,b:4,c:4, and this world has a:4,b:4,d:4: remove the file, or name another one",
            "EXPLORE-2"
        );
        let new = [found("4x3", 1024, "arena,ring")];
        assert_eq!(merged(&new, &entries), [new[0].clone(), entries[1].clone()]);
    }

    #[test]
    fn what_was_not_written_by_us_is_named_with_its_line() {
        let good = write(&hosts("a"), &[found("4x3", 1024, "arena,ring")]);
        for (text, line) in [
            (String::new(), 1),
            ("hello\n".into(), 1),
            (good.replace("1024", "1000"), 2),
            (good.replace("arena,ring", "arena"), 2),
            (good.replace("arena,ring", "arena,rong"), 2),
            (good.clone() + "{}\n", 3),
        ] {
            let garbled = ExploreError::Garbled { path: "f".into(), line };
            assert_eq!(read(&text, "f", &hosts("a")), Err(garbled), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,60}", at in 0usize..120) {
            let good = write(&hosts("a"), &[found("4x3", 1024, "arena,ring")]);
            let cut = good.floor_char_boundary(at.min(good.len()));
            let spliced = format!("{}{text}{}", &good[..cut], &good[cut..]);
            if let Err(why) = read(&spliced, "f", &hosts("a")) {
                prop_assert!(!why.to_string().is_empty());
            }
        }
    }
}
