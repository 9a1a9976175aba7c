//! The CPU time that control groups allow, at every level that has a limit: systemd on a slice, Slurm on a step, a container on its root.
//!
//! - QUOTA-1: a limit counts at every level from the process's own group up to where the hierarchy is mounted; the smallest one holds.
//! - QUOTA-2: a limit that cannot be read or parsed is ignored.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// How many cores' worth of time this process gets (rounded down, at least one); `u32::MAX` without a limit. All paths are below `root`, which
/// is `/` but for tests.
pub fn quota_below(root: &Path) -> u32 {
    let read = |path: &Path| fs::read_to_string(root.join(path.strip_prefix("/").unwrap_or(path))).ok();
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let cores = mounts.lines().filter_map(mount).flat_map(|mount| {
        let levels = group_of(&groups, mount.version).map(|group| levels(&mount, group)).unwrap_or_default();
        let limits = levels.into_iter().filter_map(|dir| limit(mount.version, &|file| read(&dir.join(file))));
        limits.collect::<Vec<f64>>()
    });
    let least = cores.fold(f64::INFINITY, f64::min);
    if least.is_finite() { least.clamp(1.0, f64::from(u32::MAX)) as u32 } else { u32::MAX }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Where a hierarchy that can limit cores is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that is seen at the mount point.
    top: PathBuf,
    at: PathBuf,
}

/// One line of `mountinfo`, if it is such a hierarchy: `31 23 0:26 /top /at rw - cgroup2 cgroup rw`.
fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (top, at) = (plain(place.next()?), plain(place.next()?));
    let mut kind = kind.split(' ');
    let version = match (kind.next()?, kind.nth(1)) {
        ("cgroup2", _) => Version::V2,
        ("cgroup", Some(options)) if options.split(',').any(|o| o == "cpu") => Version::V1,
        _ => return None,
    };
    Some(Mount { version, top: top.into(), at: at.into() })
}

/// Spaces and the like are written as octal numbers there.
fn plain(word: &str) -> String {
    let mut text = word.to_string();
    for (written, meant) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(written, meant);
    }
    text
}

/// This process's group in that kind of hierarchy, from `/proc/self/cgroup`: `4:cpu,cpuacct:/a/b`, or `0::/a/b` in version 2.
fn group_of(groups: &str, version: Version) -> Option<&Path> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match version {
            Version::V1 => controllers.split(',').any(|c| c == "cpu"),
            Version::V2 => number == "0" && controllers.is_empty(),
        };
        is_it.then(|| Path::new(group))
    })
}

/// The directories of the group and of all above it, as far as they are mounted (QUOTA-1). A group outside of what is mounted, as in some
/// containers, is seen as the mount point itself.
fn levels(mount: &Mount, group: &Path) -> Vec<PathBuf> {
    let inside = group.strip_prefix(&mount.top).unwrap_or(Path::new(""));
    let is_plain = inside.components().all(|c| matches!(c, std::path::Component::Normal(_)));
    let inside = if is_plain { inside } else { Path::new("") };
    inside.ancestors().map(|part| mount.at.join(part)).collect()
}

/// The limit of one group, in cores.
fn limit(version: Version, read: &dyn Fn(&str) -> Option<String>) -> Option<f64> {
    let number = |text: Option<&str>| text?.trim().parse::<f64>().ok();
    let (quota, period) = match version {
        Version::V2 => {
            let text = read("cpu.max")?;
            let mut words = text.split_whitespace();
            (number(words.next())?, number(words.next())?)
        }
        Version::V1 => {
            let file = |name: &str| number(read(name).as_deref());
            (file("cpu.cfs_quota_us")?, file("cpu.cfs_period_us")?)
        }
    };
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of files below a directory of its own, which goes away with the value.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("phalanx-quota-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const V2: &str = "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n\
                      34 25 0:30 / /sys/fs/cgroup/cpuset rw shared:11 - cgroup cgroup rw,cpuset\n";

    #[test]
    fn a_slice_of_systemd_limits_the_units_in_it() {
        let unit = "sys/fs/cgroup/user.slice/user-7.slice/run.scope/cpu.max";
        let tree = Tree::new(
            "systemd",
            &[
                ("proc/self/cgroup", "0::/user.slice/user-7.slice/run.scope\n"),
                ("proc/self/mountinfo", V2),
                (unit, "max 100000\n"),
                ("sys/fs/cgroup/user.slice/user-7.slice/cpu.max", "250000 100000\n"),
                ("sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n"),
            ],
        );
        assert_eq!(quota_below(&tree.0), 2, "QUOTA-1");
        fs::write(tree.0.join(unit), "50000 100000\n").unwrap();
        assert_eq!(quota_below(&tree.0), 1, "half a core is one that is not always there");
        fs::write(tree.0.join(unit), "garbage").unwrap();
        assert_eq!(quota_below(&tree.0), 2, "QUOTA-2");
    }

    #[test]
    fn a_step_of_slurm_is_limited_in_version_1() {
        let step = "sys/fs/cgroup/cpu,cpuacct/slurm/uid_5/job_8/step_0";
        let tree = Tree::new(
            "slurm",
            &[
                ("proc/self/cgroup", "5:cpuset:/slurm\n4:cpu,cpuacct:/slurm/uid_5/job_8/step_0\n0::/x\n"),
                ("proc/self/mountinfo", V1),
                (&format!("{step}/cpu.cfs_quota_us"), "-1\n"),
                (&format!("{step}/cpu.cfs_period_us"), "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/slurm/uid_5/job_8/cpu.cfs_quota_us", "300000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/slurm/uid_5/job_8/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpuset/slurm/cpu.max", "100000 100000\n"),
            ],
        );
        assert_eq!(quota_below(&tree.0), 3, "QUOTA-1");
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount_point() {
        // The names of the host in one file, the container's root in the other; or a group that lies outside.
        let host_names = V2.replacen(" / ", " /docker/abc ", 1);
        for (name, group, mounts) in [
            ("docker", "0::/docker/abc\n", host_names.as_str()),
            ("nested", "0::/docker/abc/init\n", host_names.as_str()),
            ("outside", "0::/../../elsewhere\n", V2),
            ("own names", "0::/\n", V2),
        ] {
            let tree = Tree::new(
                name,
                &[
                    ("proc/self/cgroup", group),
                    ("proc/self/mountinfo", mounts),
                    ("sys/fs/cgroup/cpu.max", "400000 100000\n"),
                ],
            );
            assert_eq!(quota_below(&tree.0), 4, "{name}");
        }
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let tree =
            Tree::new("free", &[("proc/self/cgroup", "0::/\n"), ("proc/self/mountinfo", &[V2, V1].concat())]);
        assert_eq!(quota_below(&tree.0), u32::MAX, "no cpu.max at the root");
        assert_eq!(quota_below(&tree.0.join("nowhere")), u32::MAX, "QUOTA-2");
    }

    #[test]
    fn mounts_are_told_apart() {
        let found: Vec<Mount> = [V1, V2, "no mount", "1 2 3:4 / / rw - ext4 /dev/x rw"]
            .concat()
            .lines()
            .filter_map(mount)
            .collect();
        let of = |version, at: &str| Mount { version, top: "/".into(), at: at.into() };
        assert_eq!(found, [of(Version::V1, "/sys/fs/cgroup/cpu,cpuacct"), of(Version::V2, "/sys/fs/cgroup")]);
        assert_eq!(plain("a\\040b\\134"), "a b\\");
    }
}
