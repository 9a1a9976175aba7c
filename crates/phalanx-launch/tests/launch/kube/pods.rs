//! Pods without a cluster: the command and the variables of a manifest, in a network namespace with the files and names that a pod gets.

use super::Manifest;
use crate::launch::{
    netns::{Hosts, binary, inside, many_sizes},
    support::{Running, TempDir, eventually, kill},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// Two pods of a manifest. The names of pods come from a file, as they would come from DNS.
struct Pods {
    hosts: Hosts,
    files: TempDir,
    manifest: Manifest,
    /// The name of the job without the number of a pod, and the service.
    stem: String,
    domain: String,
}

/// How a container starts: its files are there, the machine's others, too. What it mounts is its own.
const START: &str = "set -e; hostname \"$POD\"; mount --bind \"$FILES/hosts.$POD\" /etc/hosts; mount -t tmpfs none /run; mount -t tmpfs none /dev/shm; \
                     mkdir \"$FOLDER\"; cp \"$FILES/secret\" \"$FOLDER/secret\"; chmod 400 \"$FOLDER/secret\"; unset POD FILES FOLDER; exec \"$@\"";

impl Pods {
    fn of(tag: &str, kind: &str, slots: &str, command: &[&str]) -> Option<Pods> {
        let hosts = Hosts::pair(tag, false)?;
        let flags = [
            kind,
            "--image",
            "i",
            "--nodes",
            "2",
            "--slots",
            slots,
            "--name",
            "lenet",
            "--start-timeout",
            "30",
        ];
        let manifest =
            Manifest::of(&[&flags[..], &["--env", "PHALANX_LOG=phalanx_net=info", "--"], command].concat());
        let stem = if kind == "job" { "lenet" } else { "lenet-node-0" };
        let pods = Pods {
            hosts,
            files: TempDir::new(),
            manifest,
            stem: stem.into(),
            domain: "lenet.lab.svc.cluster.local".into(),
        };
        let secret = pods.manifest.get("Secret")["stringData"]["secret"].as_str().expect("a text");
        pods.files.write("secret", secret);
        for index in 0..2 {
            // What kubelet writes.
            let (name, ip) = (pods.name(index), pods.ip(index));
            pods.files.write(
                &format!("hosts.{name}"),
                &format!(
                    "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n{ip}\t{name}.{}\t{name}\n",
                    pods.domain
                ),
            );
        }
        Some(pods)
    }

    fn name(&self, index: usize) -> String {
        format!("{}-{index}", self.stem)
    }

    fn ip(&self, index: usize) -> String {
        format!("10.78.0.{}", index + 1)
    }

    /// From now on the pods find each other by name, whole or short.
    fn publish(&self) {
        for of in 0..2 {
            let path = self.files.0.join(format!("hosts.{}", self.name(of)));
            let mut hosts = fs::OpenOptions::new().append(true).open(path).expect("the file is there");
            for index in 0..2 {
                let name = self.name(index);
                writeln!(hosts, "{}\t{name}.{}\t{name}.lenet", self.ip(index), self.domain)
                    .expect("it can be written");
            }
        }
    }

    /// The variables of a pod, in their order.
    fn env(&self, index: usize) -> Vec<(String, String)> {
        let container = self.manifest.container();
        let vars = container["env"].as_array().expect("a list");
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        let value = |entry: &Value, known: &BTreeMap<String, String>| {
            match entry["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.annotations['batch.kubernetes.io/job-completion-index']") => index.to_string(),
                Some(other) => panic!("{other} is not a field of a pod"),
                None => expanded(entry["value"].as_str().expect("a text"), known),
            }
        };
        for entry in vars {
            let value = value(entry, &known);
            known.insert(entry["name"].as_str().expect("a name").into(), value);
        }
        known.insert("HOSTNAME".into(), self.name(index));
        known.into_iter().collect()
    }

    fn start(&self, index: usize) -> Running {
        let env: BTreeMap<String, String> = self.env(index).into_iter().collect();
        let words: Vec<String> = self.manifest.command().iter().map(|word| expanded(word, &env)).collect();
        let folder =
            self.manifest.container()["volumeMounts"][0]["mountPath"].as_str().expect("a path").to_string();
        assert!(Path::new(&folder).parent() == Some(Path::new("/run")), "{folder}");
        let mut command = inside(&self.hosts.names[index]);
        command.args(["unshare", "--mount", "--uts", "--ipc", "sh", "-c", START, "sh"]).args(words);
        command.env_clear().stdin(Stdio::null());
        // The image's own.
        let here = binary();
        let bin = Path::new(&here).parent().expect("a folder").display().to_string();
        command.env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap_or_default()));
        command.env("HOME", self.files.path("home"));
        command.envs(env).env("POD", self.name(index)).env("FILES", &self.files.0).env("FOLDER", folder);
        Running::start(&mut command)
    }

    fn assert_nothing_is_left(&self) {
        for host in &self.hosts.names {
            let left = || Command::new("ip").args(["netns", "pids", host]).output().expect("ip runs").stdout;
            eventually(Duration::from_secs(10), "no process is left in a pod", || left().is_empty());
        }
        assert!(!self.files.0.join("home").exists(), "a key was made");
    }
}

/// What Kubernetes makes of a word: `$(NAME)` of a variable that is set, `$$`.
fn expanded(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match env.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

const WORK: [&str; 6] = ["bench", "--json", "--sizes", "4,64K", "--seconds", "0.02"];

#[test]
fn the_pods_of_every_kind_meet_and_work() {
    let binary = binary();
    for (tag, kind) in [("ku", "job"), ("kv", "jobset"), ("kw", "trainjob")] {
        let Some(pods) = Pods::of(tag, kind, "1", &[&[binary.as_str()], &WORK[..]].concat()) else { return };
        pods.publish();
        let ranks = [0, 1].map(|index| pods.start(index));
        let done = ranks.map(Running::finish);
        assert!(done.iter().all(|d| d.code == Some(0)), "{kind}: {done:?}");
        assert_eq!(done[0].stdout.matches("\"np\":2").count(), 2, "{kind}: {done:?}");
        let met = |d: &&crate::launch::support::Done| {
            d.stderr.contains("hosts=2") && d.stderr.contains("in pod 0 of this job")
        };
        assert_eq!(done.iter().filter(met).count(), 2, "{kind}: {done:?}");
        pods.assert_nothing_is_left();
    }
}

#[test]
fn a_pod_waits_until_pod_0_has_a_name() {
    let binary = binary();
    let Some(pods) = Pods::of("kx", "job", "1", &[&[binary.as_str()], &WORK[..]].concat()) else { return };
    let early = pods.start(1);
    // It looks for a name that nobody knows; nothing tells when it does, and it may as well come later.
    let zero = pods.start(0);
    eventually(Duration::from_secs(30), "pod 0 serves", || {
        !crate::launch::netns::listening(&pods.hosts.names[0]).is_empty()
    });
    pods.publish();
    let done = [zero.finish(), early.finish()];
    assert!(done.iter().all(|d| d.code == Some(0)), "{done:?}");
    pods.assert_nothing_is_left();
}

#[test]
fn words_and_variables_arrive_as_they_were_written() {
    let script = "printf '%s\\n' \"$@\"; echo $JOB_COMPLETION_INDEX of $PHALANX_SIZE";
    let words = ["$(HOSTNAME)", "$$", "$", "$(nobody)", "$$(HOSTNAME)", "a b", "é", "on", "'\"\\"];
    let Some(pods) = Pods::of("ky", "job", "1", &[&["sh", "-c", script, "sh"], &words[..]].concat()) else {
        return;
    };
    let done = pods.start(1).finish();
    let wanted: String = words.iter().map(|word| format!("{word}\n")).collect();
    assert_eq!((done.code, done.stdout), (Some(0), format!("{wanted}1 of 2\n")), "KUBE-1: {}", done.stderr);
}

#[test]
fn a_rank_that_is_killed_is_named_in_the_other_pod() {
    let (binary, sizes) = (binary(), many_sizes());
    let told = "echo process $$; exec \"$@\"";
    let work = ["sh", "-c", told, "sh", &binary, "bench", "--json", "--seconds", "0.2", "--sizes", &sizes];
    let Some(pods) = Pods::of("kz", "job", "1", &work) else { return };
    pods.publish();
    let mut ranks = [0, 1].map(|index| pods.start(index));
    let pids: Vec<u32> = ranks.iter_mut().map(|rank| rank.numbers(1)[0]).collect();
    for _ in 0..2 {
        assert!(ranks[0].line().contains("\"bytes\":"), "they work");
    }
    kill(pids[1], "KILL");
    let [zero, one] = ranks.map(Running::finish);
    assert_eq!((zero.code, one.code), (Some(1), None), "{zero:?} {one:?}");
    assert!(zero.stderr.contains("rank 1 is lost"), "{zero:?}");
    pods.assert_nothing_is_left();
}

#[test]
fn pods_with_two_ranks_each_are_one_world_and_a_killed_rank_is_named() {
    let (binary, sizes) = (binary(), many_sizes());
    for (tag, kind) in [("kq", "job"), ("kr", "jobset")] {
        let Some(pods) = Pods::of(tag, kind, "2", &[&[binary.as_str()], &WORK[..]].concat()) else { return };
        pods.publish();
        let done = [0, 1].map(|index| pods.start(index)).map(Running::finish);
        assert!(done.iter().all(|d| d.code == Some(0)), "{kind}: {done:?}");
        let said = format!("{}{}", done[0].stdout, done[1].stdout);
        assert_eq!(said.matches("\"np\":4").count(), 2, "{kind}: {done:?}");
        pods.assert_nothing_is_left();
    }
    let told = "echo rank $PHALANX_RANK is $$; exec \"$@\"";
    let work = ["sh", "-c", told, "sh", &binary, "bench", "--json", "--seconds", "0.2", "--sizes", &sizes];
    let Some(pods) = Pods::of("kt", "job", "2", &work) else { return };
    pods.publish();
    let mut launchers = [0, 1].map(|index| pods.start(index));
    let pid = loop {
        // Ranks 2 and 3 are in the second pod.
        let line = launchers[1].line();
        if let Some((_, pid)) = line.split_once("rank 3 is ") {
            break pid.trim().parse().expect("a number");
        }
    };
    while !launchers[0].line().contains("\"bytes\":") {}
    kill(pid, "KILL");
    let done = launchers.map(Running::finish);
    assert!(done.iter().all(|d| d.code != Some(0)), "{done:?}");
    assert!(done[0].stderr.contains("rank 3"), "{done:?}");
    pods.assert_nothing_is_left();
}
