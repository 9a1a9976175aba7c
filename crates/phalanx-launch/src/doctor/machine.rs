//! This machine: cores, memory, shared memory, limits, kernel.

use super::finding::Finding;
use crate::limits::{self, HostLimits};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    io::pwrite,
    process::{Resource, getrlimit},
    system::uname,
};
use std::{fs, io};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub fn check() -> Vec<Finding> {
    let limits = limits::read();
    let online = fs::read_to_string("/proc/cpuinfo").unwrap_or_default().matches("processor\t").count();
    vec![
        kernel(&uname().release().to_string_lossy()),
        cores(online, phalanx_net::cores::allowed().len(), limits),
        features(),
        memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), limits),
        shared_memory(try_shared_memory()),
        file_size(getrlimit(Resource::Fsize).current),
        open_files(getrlimit(Resource::Nofile).current, getrlimit(Resource::Nofile).maximum),
        huge_pages(&fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default()),
    ]
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 3) {
        return Finding::ok("kernel", format!("Linux {release}"));
    }
    Finding::fail(
        "kernel",
        format!("Linux {release}"),
        "kernels before 5.3 have no pidfd, which ranks need to notice that another rank died",
        "use a newer kernel",
    )
}

fn cores(online: usize, allowed: usize, limits: HostLimits) -> Finding {
    let fact = format!("{allowed} of {online} cores may be used");
    match limits.cores {
        Some(quota) if quota < allowed as f64 => Finding::warn(
            "cores",
            format!("{fact}, but a control group limits CPU time to {quota:.1} cores"),
            "the kernel throttles ranks that use more than that for a part of each 100 ms",
            "run at most that many ranks, or raise the container's CPU limit",
        ),
        _ if allowed == 1 => Finding::warn(
            "cores",
            fact,
            "all ranks share one core, so more ranks are not faster",
            "widen the affinity mask (taskset, the scheduler's cpus-per-task)",
        ),
        _ => Finding::ok("cores", fact),
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Finding {
    let all = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    let has: Vec<&str> = all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    if has.contains(&"avx2") {
        return Finding::ok("CPU", has.join(" "));
    }
    Finding::warn(
        "CPU",
        "no avx2",
        "reductions use the portable kernels, which are several times slower for f16 and bf16",
        "on a virtual machine, pass the host's CPU model through",
    )
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Finding {
    Finding::note("CPU", std::env::consts::ARCH)
}

fn memory(meminfo: &str, limits: HostLimits) -> Finding {
    let bytes = |name| limits::meminfo_bytes(meminfo, name);
    let (Some(total), Some(free)) = (bytes("MemTotal:"), bytes("MemAvailable:")) else {
        return Finding::note("memory", "unknown: /proc/meminfo has no MemAvailable or MemTotal");
    };
    let gib = |bytes: u64| bytes as f64 / GIB as f64;
    let mut fact = format!("{:.1} GiB free of {:.1}", gib(free), gib(total));
    let usable = free.min(limits.memory_bytes.unwrap_or(u64::MAX));
    if let Some(limit) = limits.memory_bytes {
        fact.push_str(&format!(", a control group allows {:.1}", gib(limit)));
    }
    if usable >= GIB {
        return Finding::ok("memory", fact);
    }
    Finding::warn(
        "memory",
        fact,
        "the kernel may kill a rank (SIGKILL); shared memory counts against the limit, too",
        "free some memory, or raise the container's memory limit",
    )
}

fn try_shared_memory() -> io::Result<()> {
    let memory = memfd_create("phalanx-doctor", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, MIB)?;
    pwrite(&memory, &[1], MIB - 1)?;
    Ok(())
}

fn shared_memory(tried: io::Result<()>) -> Finding {
    match tried {
        Ok(()) => Finding::ok("shared memory", "memfd works"),
        Err(error) => Finding::fail(
            "shared memory",
            format!("memfd does not work: {error}"),
            "the ranks of this host cannot share memory and the job's secret cannot be passed",
            "allow memfd_create in the sandbox or seccomp profile",
        ),
    }
}

fn file_size(limit: Option<u64>) -> Finding {
    let check = "file size";
    match limit {
        None => Finding::ok(check, "no limit (ulimit -f)"),
        Some(bytes) if bytes >= 64 * GIB => {
            Finding::ok(check, format!("limited to {} MiB (ulimit -f)", bytes / MIB))
        }
        Some(bytes) => Finding::fail(
            check,
            format!("limited to {} KiB (ulimit -f)", bytes >> 10),
            "ranks may fail to start: shared memory is one sparse file of several GiB per rank, and its full length counts",
            "ulimit -f unlimited",
        ),
    }
}

fn open_files(soft: Option<u64>, hard: Option<u64>) -> Finding {
    let show = |limit: Option<u64>| limit.map_or("unlimited".to_string(), |n| n.to_string());
    let fact = format!("{} may be open at once (soft limit), up to {} (hard limit)", show(soft), show(hard));
    match soft {
        Some(n) if n < 1024 => Finding::warn(
            "open files",
            fact,
            "a rank needs a few file descriptors for every other rank",
            "ulimit -n 4096",
        ),
        _ => Finding::ok("open files", fact),
    }
}

fn huge_pages(enabled: &str) -> Finding {
    let check = "huge pages";
    let chosen = enabled.split(['[', ']']).nth(1);
    match chosen {
        Some("never") => Finding::warn(
            check,
            "transparent huge pages: never",
            "large buffers cost more page faults and TLB misses",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)",
        ),
        Some(mode) => Finding::ok(check, format!("transparent huge pages: {mode}")),
        None => Finding::note(check, "this kernel has no transparent huge pages"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    #[test]
    fn quotas_below_the_mask_are_a_warning() {
        let limits = |cores| HostLimits { cores, memory_bytes: None };
        assert_eq!(cores(8, 8, limits(None)).mark, Mark::Ok);
        assert_eq!(cores(8, 8, limits(Some(8.0))).mark, Mark::Ok);
        let finding = cores(8, 4, limits(Some(1.5)));
        assert_eq!((finding.mark, finding.fact.contains("CPU time to 1.5 cores")), (Mark::Warn, true));
        assert_eq!(cores(8, 1, limits(None)).mark, Mark::Warn);
    }

    #[test]
    fn memory_is_what_the_tighter_limit_leaves() {
        let info = "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n";
        assert_eq!(memory(info, HostLimits::default()).fact, "4.0 GiB free of 8.0");
        let tight = HostLimits { cores: None, memory_bytes: Some(512 * MIB) };
        assert_eq!(memory(info, tight).mark, Mark::Warn);
        assert_eq!(memory("", tight).mark, Mark::Note);
    }

    #[test]
    fn limits_that_break_shared_memory_fail() {
        assert_eq!(file_size(None).mark, Mark::Ok);
        assert_eq!(file_size(Some(MIB)).mark, Mark::Fail);
        assert_eq!(shared_memory(Err(io::ErrorKind::PermissionDenied.into())).mark, Mark::Fail);
        assert_eq!(open_files(Some(256), None).mark, Mark::Warn);
    }

    #[test]
    fn kernels_are_compared_by_number() {
        assert_eq!(kernel("6.18.44-fc").mark, Mark::Ok);
        assert_eq!(kernel("5.3.0").mark, Mark::Ok);
        assert_eq!(kernel("4.18.0-553.el8").mark, Mark::Fail);
    }

    #[test]
    fn the_chosen_huge_page_mode_is_in_brackets() {
        assert_eq!(huge_pages("always [madvise] never\n").mark, Mark::Ok);
        assert_eq!(huge_pages("always madvise [never]\n").mark, Mark::Warn);
        assert_eq!(huge_pages("").mark, Mark::Note);
    }
}
