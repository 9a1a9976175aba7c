//! What control groups, user limits and the kernel allow this process. Reading is thin code; the arithmetic is pure.

use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What binds; `None` where nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostLimits {
    pub cores: Option<f64>,
    pub memory_bytes: Option<u64>,
}

/// Something there is too little of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub needed: u64,
    pub left: u64,
    /// Which limit binds, as its owner calls it.
    pub limit: String,
}

/// What binds this process.
pub fn read() -> HostLimits {
    let mut limits = HostLimits::default();
    for dir in groups() {
        let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        limits.cores = least(limits.cores, parse_cpu_max(&text("cpu.max")));
        limits.memory_bytes = least(limits.memory_bytes, text("memory.max").trim().parse().ok());
    }
    let root = Path::new(ROOT);
    let number = |file: &str| fs::read_to_string(root.join(file)).ok()?.trim().parse::<u64>().ok();
    let quota = number("cpu/cpu.cfs_quota_us").zip(number("cpu/cpu.cfs_period_us"));
    limits.cores = least(limits.cores, quota.filter(|(_, p)| *p > 0).map(|(q, p)| q as f64 / p as f64));
    // Version 1 says "no limit" with a number near 2^63.
    let memory = number("memory/memory.limit_in_bytes").filter(|bytes| *bytes < 1 << 60);
    limits.memory_bytes = least(limits.memory_bytes, memory);
    limits
}

/// Bytes of memory that this process and its children can still have; `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    least(meminfo_bytes(&meminfo, "MemAvailable:"), read().memory_bytes)
}

/// One line of `/proc/meminfo`.
pub fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().split(' ').next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Whether `n` more processes and threads can be started.
pub fn check_tasks(needed: u64) -> Result<(), Shortage> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut bounds = Vec::new();
    for dir in groups() {
        let file = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        if let Some((most, now)) = file("pids.max").zip(file("pids.current")) {
            bounds.push((most.saturating_sub(now), format!("the control group's pids.max is {most}")));
        }
    }
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let n_tasks = n_tasks(&loads).unwrap_or(0);
    for name in ["threads-max", "pid_max"] {
        if let Some(most) = number(&format!("/proc/sys/kernel/{name}")) {
            bounds.push((most.saturating_sub(n_tasks), format!("kernel.{name} is {most}")));
        }
    }
    // The kernel does not hold root to it.
    let of_user = getrlimit(Resource::Nproc).current.filter(|_| !getuid().is_root());
    if let Some(most) = of_user {
        bounds.push((most.saturating_sub(n_tasks_of_user(most, needed)), format!("ulimit -u is {most}")));
    }
    judge(needed, bounds)
}

/// Raises the number of files that may be open to what is needed, as far as the user may.
pub fn raise_files(needed: u64) -> Result<(), Shortage> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    if let Some(hard) = now.maximum.filter(|hard| *hard < needed) {
        return Err(Shortage { needed, left: hard, limit: format!("ulimit -Hn is {hard}") });
    }
    let wanted = Rlimit { current: Some(needed), maximum: now.maximum };
    setrlimit(Resource::Nofile, wanted).map_err(|_| {
        let soft = now.current.unwrap_or(0);
        Shortage { needed, left: soft, limit: format!("ulimit -n is {soft}") }
    })
}

fn judge(needed: u64, bounds: Vec<(u64, String)>) -> Result<(), Shortage> {
    match bounds.into_iter().min() {
        Some((left, limit)) if left < needed => Err(Shortage { needed, left, limit }),
        _ => Ok(()),
    }
}

const ROOT: &str = "/sys/fs/cgroup";

/// The control groups of this process, version 2, walking up to the root as the kernel does. Of version 1 only the files where containers
/// put them are read.
fn groups() -> Vec<PathBuf> {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Path::new(group).ancestors().map(|dir| Path::new(ROOT).join(dir)).collect()
}

/// Processes and threads of the whole machine: the fourth word of `/proc/loadavg` is `running/all`.
fn n_tasks(loadavg: &str) -> Option<u64> {
    loadavg.split(' ').nth(3)?.split_once('/')?.1.parse().ok()
}

/// Processes and threads of this user. Counting them takes a walk through `/proc`, which a job that asks for little is spared.
fn n_tasks_of_user(most: u64, needed: u64) -> u64 {
    if needed < most / 16 {
        return 0;
    }
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let me = getuid().as_raw();
    let of_process = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        threads_of(&fs::read_to_string(entry.path().join("status")).ok()?, me)
    };
    entries.filter_map(|entry| of_process(entry.ok()?)).sum()
}

/// The number of threads in a `/proc/N/status`, if the process belongs to this user.
fn threads_of(status: &str, user: u32) -> Option<u64> {
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
    let owner: u32 = field("Uid:")?.parse().ok()?;
    field("Threads:")?.parse().ok().filter(|_| owner == user)
}

/// `max 100000` or `150000 100000`.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then_some(quota / period)
}

fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a < b { a } else { b }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_cores() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1.5));
        assert_eq!(parse_cpu_max(""), None);
        assert_eq!(parse_cpu_max("1 0"), None);
        assert_eq!(least(Some(2), Some(1)), Some(1));
        assert_eq!(least(None, Some(1)), Some(1));
    }

    #[test]
    fn the_tightest_limit_is_named() {
        let bounds = || vec![(500, "a is 1000".to_string()), (90, "b is 100".to_string())];
        assert_eq!(judge(90, bounds()), Ok(()));
        let shortage = Shortage { needed: 91, left: 90, limit: "b is 100".to_string() };
        assert_eq!(judge(91, bounds()), Err(shortage));
        assert_eq!(judge(u64::MAX, Vec::new()), Ok(()));
        assert_eq!(check_tasks(1), Ok(()), "one more always fits where tests run");
        assert!(check_tasks(u64::MAX).is_err());
    }

    #[test]
    fn what_proc_says_is_read() {
        assert_eq!(n_tasks("0.1 0.2 0.3 2/345 6789\n"), Some(345));
        assert_eq!(n_tasks(""), None);
        let status = "Name:\tx\nUid:\t7\t8\t8\t8\nThreads:\t5\n";
        assert_eq!((threads_of(status, 7), threads_of(status, 8)), (Some(5), None));
        assert_eq!(meminfo_bytes("MemTotal: 9 kB\nMemAvailable:   4 kB\n", "MemAvailable:"), Some(4096));
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn files_beyond_what_the_user_may_have_are_refused() {
        let Some(hard) = getrlimit(Resource::Nofile).maximum else { return };
        let shortage = raise_files(hard + 1).unwrap_err();
        assert_eq!((shortage.needed, shortage.left), (hard + 1, hard));
        assert_eq!(raise_files(1), Ok(()));
    }
}
