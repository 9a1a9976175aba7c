//! What the numbers were measured on.

use crate::process::{Output, Shell};
use std::{fs, time::Duration};

/// Lines for the page: processor, memory, kernel, network, versions, date, and how busy the machine was when the last round ended.
pub fn describe(shell: &Shell) -> Vec<(&'static str, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let said = |program: &str, args: &[&str]| {
        let done = shell.run(shell.command(program).args(args), Output::Kept, Duration::from_secs(10));
        let line =
            done.ok().filter(|d| d.check().is_ok()).and_then(|d| Some(d.stdout.lines().next()?.to_string()));
        line.unwrap_or_else(|| "unknown".into())
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    vec![
        ("processor", field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into())),
        ("vector instructions", vectors(&read("/proc/cpuinfo"))),
        ("cores", cores.to_string()),
        ("memory", field(&read("/proc/meminfo"), "MemTotal").unwrap_or_else(|| "unknown".into())),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_string()),
        ("TCP congestion control", read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_string()),
        ("load average of 1, 5 and 15 minutes", words(&read("/proc/loadavg"), 3)),
        ("rustc", said("rustc", &["--version"])),
        ("Open MPI", said("mpirun", &["--version"])),
        ("commit", said("git", &["describe", "--always", "--dirty"])),
        ("date", said("date", &["-u", "+%F %H:%M UTC"])),
    ]
}

/// Those that kernels ask for.
fn vectors(cpuinfo: &str) -> String {
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    let found: Vec<String> = ["avx2", "f16c", "avx512f"]
        .map(|flag| if has(flag) { flag.to_string() } else { format!("no {flag}") })
        .to_vec();
    found.join(", ")
}

fn words(text: &str, n: usize) -> String {
    text.split_whitespace().take(n).collect::<Vec<_>>().join(" ")
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: Abacus 9000\nmodel name\t: other\n";
        assert_eq!(field(text, "model name"), Some("Abacus 9000".into()));
        assert_eq!(field(text, "flags"), None);
        assert_eq!(vectors("flags : fpu avx2 f16c\n"), "avx2, f16c, no avx512f");
        assert_eq!(words("0.1 0.2 0.3 1/84 5893\n", 3), "0.1 0.2 0.3");
    }
}
