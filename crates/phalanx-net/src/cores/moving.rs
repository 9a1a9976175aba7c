//! Moves a running process to other cores, and says how busy cores are.

use rustix::{
    process::Pid,
    thread::{CpuSet, sched_setaffinity},
};
use std::{collections::BTreeMap, env, fs, io};

/// Names the cores of the launcher, where it gave this rank some of them: `0-3,8`.
pub const MOVABLE: &str = "PHALANX_CORES";

/// Cores that this process may be moved to: its launcher's, where that bound it, or those it may use now.
pub fn movable() -> Vec<u32> {
    env::var(MOVABLE).ok().and_then(|text| list(&text)).unwrap_or_else(super::allowed)
}

fn list(text: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last as usize >= CpuSet::MAX_CPU {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// The time that each core has worked so far, in ticks of the kernel; empty where it does not tell.
pub fn busy() -> BTreeMap<u32, u64> {
    fs::read_to_string("/proc/stat").map(|text| busy_in(&text)).unwrap_or_default()
}

/// The lines `cpuN user nice system idle iowait irq softirq steal ...`.
fn busy_in(text: &str) -> BTreeMap<u32, u64> {
    let of_core = |line: &str| {
        // The first line is the sum of all cores and has no number.
        let numbered =
            line.strip_prefix("cpu").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
        let mut words = numbered.split_whitespace();
        let core = words.next()?.parse().ok()?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let is_work = |i: &usize| !matches!(i, 3 | 4);
        Some((core, ticks.iter().take(8).enumerate().filter(|(i, _)| is_work(i)).map(|(_, t)| t).sum()))
    };
    text.lines().filter_map(of_core).collect()
}

/// Lets all threads of this process run on these cores only.
pub fn move_to(cores: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core as usize));
    for task in fs::read_dir("/proc/self/task")? {
        let name = task?.file_name();
        let Some(thread) = name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        match sched_setaffinity(Some(thread), &set) {
            // A thread may end meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_and_their_work_are_read() {
        assert_eq!(list("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!([list(""), list("3-1"), list("a"), list("0-99999999")], [const { None }; 4]);
        let text = "cpu  9 9 9 9\ncpu0 10 1 2 500 30 4 5 6 70 8\ncpu11 1 0 0 9\nintr 5\n";
        assert_eq!(
            busy_in(text),
            BTreeMap::from([(0, 28), (11, 1)]),
            "idle, waiting and guests do not count"
        );
        assert!(!busy().is_empty() && !movable().is_empty());
    }
}
