//! The family: all processes that descend from this agent, including those in other sessions.
//!
//! The agent is a subreaper: an orphan among its descendants becomes its child instead of a child of init. So the
//! family is the process tree below the agent, and it is empty exactly when `wait` finds no child.

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};
use std::{collections::BTreeSet, fs};

/// From now on orphans stay in the family. Where the kernel refuses, only process groups are ended.
pub fn adopt_orphans() {
    let _ = set_child_subreaper(Some(getpid()));
}

/// Sends a signal to the process groups of these ranks.
pub fn signal_groups(leaders: impl Iterator<Item = Pid>, signal: Signal) {
    for leader in leaders {
        // A group that ended meanwhile is what we want. Between its end and our knowing it no other group can get
        // its number unless the system starts some 4 million processes in that time.
        let _ = kill_process_group(leader, signal);
    }
}

/// Sends a signal to everything that descends from this process.
pub fn signal_all(signal: Signal) {
    let me = getpid().as_raw_nonzero().get();
    for pid in descendants(&process_table(), me) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// (pid, parent) of every process that is not yet dead.
fn process_table() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// Reads `pid (name) state parent …`. The name may hold anything, closing parentheses too.
fn parse_stat(stat: &str) -> Option<(i32, i32)> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let mut after_name = stat.rsplit(") ").next()?.split(' ');
    let state = after_name.next()?;
    let parent = after_name.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some((pid, parent))
}

fn descendants(table: &[(i32, i32)], root: i32) -> BTreeSet<i32> {
    let mut family = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for &(pid, _) in table.iter().filter(|(_, p)| *p == parent) {
            if family.insert(pid) {
                parents.push(pid);
            }
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_whatever_the_name() {
        assert_eq!(parse_stat("12 (sh) S 7 12 12 0"), Some((12, 7)));
        assert_eq!(parse_stat("12 (a) R 3 (b) S 7 12"), Some((12, 7)));
        assert_eq!(parse_stat("12 (sh) Z 7 12 12 0"), None, "a dead process has nothing left to end");
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn the_family_is_the_tree_below() {
        let table = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (2, 2)];
        assert_eq!(descendants(&table, 2), BTreeSet::from([2, 3, 4]));
        assert_eq!(descendants(&table, 5), BTreeSet::from([6]));
        assert_eq!(descendants(&table, 9), BTreeSet::new());
    }
}
