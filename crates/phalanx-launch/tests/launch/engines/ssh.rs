//! `phalanx run -H` through a real sshd, with host keys, a user's key and a configuration of the test's own.

use super::{Site, WORK};
use crate::launch::{
    netns::{binary, inside, listening, many_sizes},
    support::{DEADLINE, Done, Running, eventually, finish, kill},
};
use std::{
    fs,
    process::{Child, Command, Stdio},
};

const NEEDS: [(&str, &str); 2] = [("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client")];
const PORT: u16 = 2222;

/// Two hosts, the second with an sshd, which ends with the value and with all that it started.
struct Ssh {
    site: Site,
    servers: Vec<Child>,
}

impl Drop for Ssh {
    fn drop(&mut self) {
        // Nobody else is in these namespaces.
        for pid in self.site.hosts.pids(0).into_iter().chain(self.site.hosts.pids(1)) {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        }
        for server in &mut self.servers {
            let _ = server.wait();
        }
    }
}

impl Ssh {
    fn start(tag: &str) -> Option<Ssh> {
        Ssh::with(tag, "")
    }

    /// With more lines for the server's configuration.
    fn with(tag: &str, more: &str) -> Option<Ssh> {
        let site = Site::open(tag, &NEEDS)?;
        for key in ["host", "other_host", "user", "other_user"] {
            let path = site.home.path(key);
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path]).status();
            assert!(made.expect("ssh-keygen runs").success());
        }
        let mut ssh = Ssh { site, servers: Vec::new() };
        ssh.serve(PORT, more);
        Some(ssh)
    }

    fn serve(&mut self, port: u16, more: &str) {
        let home = &self.site.home;
        let config = format!(
            "Port {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nPidFile none\nMaxStartups 100\n{more}\n",
            home.path("host"),
            home.path("user.pub")
        );
        let config = home.write(&format!("sshd{port}"), &config);
        // It wants a directory in /run, which is private here.
        let start =
            "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -e -f \"$0\"";
        let mut server = inside(&self.site.hosts.names[1]);
        server.args(["unshare", "--mount", "sh", "-c", start, &config]);
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.servers.push(server.expect("sshd starts"));
        let host = &self.site.hosts.names[1];
        eventually(DEADLINE, "sshd listens", || listening(host).iter().any(|a| a.port() == port));
    }

    /// A configuration of ssh with this key for the user, and this one expected of the host.
    fn config(&self, user: &str, host: &str) -> String {
        let home = &self.site.home;
        let public = fs::read_to_string(home.path(&format!("{host}.pub"))).expect("a public key");
        let known: String = (PORT..PORT + 2).map(|port| format!("[10.78.0.2]:{port} {public}")).collect();
        let known = home.write(&format!("known_{host}"), &known);
        let aliases = ["there"].into_iter().map(String::from).chain((1..10).map(|i| format!("h{i}")));
        let aliases = aliases.collect::<Vec<_>>().join(" ");
        let text = format!(
            "Host {aliases}\n HostName 10.78.0.2\n\
             Host nobody\n HostName 10.78.0.77\n\
             Host mute\n HostName 10.78.0.2\n Port {}\n\
             Host *\n Port {PORT}\n User root\n IdentityFile {}\n IdentitiesOnly yes\n IdentityAgent none\n\
             \x20UserKnownHostsFile {known}\n GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n",
            PORT + 1,
            home.path(user)
        );
        home.write(&format!("ssh_{user}_{host}"), &text)
    }

    fn job(&self, config: &str, hosts: &str, program: &[&str]) -> Command {
        let mut command = self.site.command(&binary());
        let rsh = format!("ssh -F {config}");
        command.args(["run", "-H", hosts, "--start-timeout", "20", "--rsh", &rsh, "--"]).args(program);
        command
    }

    /// Nothing runs on the hosts but the servers.
    fn assert_clean(&self) {
        let servers: Vec<u32> = self.servers.iter().map(Child::id).collect();
        let left = || {
            self.site
                .hosts
                .pids(0)
                .into_iter()
                .chain(self.site.hosts.pids(1))
                .filter(|pid| !servers.contains(pid))
                .count()
        };
        eventually(DEADLINE, "the end of everything on both hosts", || left() == 0);
    }
}

/// What a rank does that says who it is, and then works until it is interrupted.
fn long_work() -> [String; 3] {
    let script = format!(
        "echo $PHALANX_RANK $$ $PPID; exec {} bench --json --seconds 0.2 --sizes {} >/dev/null",
        binary(),
        many_sizes()
    );
    ["sh".into(), "-c".into(), script]
}

/// Two ranks here and two there that work; the numbers of the last rank's process and of its agent's.
fn at_work(ssh: &Ssh) -> (Running, u32, u32) {
    let config = ssh.config("user", "host");
    let work = long_work();
    let work: Vec<&str> = work.iter().map(String::as_str).collect();
    let mut job = Running::start(ssh.job(&config, "10.78.0.1:2,there:2", &work).env_remove("PHALANX_LOG"));
    let lines: Vec<String> = (0..4).map(|_| job.line()).collect();
    let last = lines.iter().find(|l| l.contains("there:3 | 3 ")).unwrap_or_else(|| panic!("{lines:?}"));
    let numbers: Vec<u32> = last.split(' ').filter_map(|w| w.parse().ok()).collect();
    // They have met when there are links between the hosts.
    let met = || {
        let sockets =
            inside(&ssh.site.hosts.names[1]).args(["cat", "/proc/net/tcp"]).output().expect("cat runs");
        let text = String::from_utf8_lossy(&sockets.stdout).into_owned();
        text.lines().filter(|l| l.split_whitespace().nth(3) == Some("01")).count() > 3
    };
    eventually(DEADLINE, "connections between the hosts", met);
    (job, numbers[1], numbers[2])
}

fn refused(ssh: &Ssh, config: &str, wanted: &[&str]) -> Done {
    let done = finish(ssh.job(config, "10.78.0.1:2,there:2", &["true"]).env_remove("PHALANX_LOG"));
    assert_eq!(done.code, Some(1), "{done:?}");
    for text in wanted {
        assert!(done.stderr.contains(text), "{text}: {}", done.stderr);
    }
    ssh.assert_clean();
    done
}

#[test]
fn two_by_two_ranks_run_collectives_through_ssh() {
    let Some(ssh) = Ssh::start("sa") else { return };
    let config = ssh.config("user", "host");
    let binary = binary();
    let program = [&[binary.as_str()], &WORK[..]].concat();
    // An alias with a port of its own, a user before an address, and all ranks on the other host.
    for hosts in ["10.78.0.1:2,there:2", "10.78.0.1:2,root@10.78.0.2:2"] {
        let done = finish(&mut ssh.job(&config, hosts, &program));
        ssh.site.assert_worked(&done, "at the launcher's address");
    }
    let done = finish(
        ssh.job(&config, "there:2", &["sh", "-c", "echo $PHALANX_RANK of $PHALANX_SIZE"])
            .env_remove("PHALANX_LOG"),
    );
    assert_eq!((done.code, done.stdout.matches(" of 2").count()), (Some(0), 2), "{done:?}");
    ssh.assert_clean();
}

#[test]
fn a_host_key_that_changed_or_is_unknown_and_a_key_of_another_user_are_refused_with_the_reason() {
    let Some(ssh) = Ssh::start("sk") else { return };
    let changed = "host there: `ssh -o BatchMode=yes";
    refused(
        &ssh,
        &ssh.config("user", "other_host"),
        &[
            changed,
            "its host key is not the one that ssh has kept for it",
            "forget its old key with ssh-keygen -R",
        ],
    );
    let config = ssh.config("user", "host");
    fs::write(ssh.site.home.path("known_host"), "").unwrap();
    refused(
        &ssh,
        &config,
        &["ssh does not know its host key", "connect once by hand and compare the key: ssh"],
    );
    let denied = ["it does not let this user in", "  | root@10.78.0.2: Permission denied", "ssh-copy-id"];
    let done = refused(&ssh, &ssh.config("other_user", "host"), &denied);
    assert_eq!(done.stderr.matches("cannot start ranks on host").count(), 1, "{done:?}");
}

/// NOISE-1.
#[test]
fn a_login_script_that_prints_does_not_disturb_the_job() {
    let script = "printf 'Welcome to this host\\nPX\\002\\000 \\000phalanx-age\\377'; seq 3000\n\
                  echo 'last login: never' >&2; printf 'no end of line'; exec sh -c \"$SSH_ORIGINAL_COMMAND\"";
    let dir = crate::launch::support::TempDir::new();
    let login = dir.script("login", script);
    let Some(ssh) = Ssh::with("sl", &format!("ForceCommand {login}")) else { return };
    let config = ssh.config("user", "host");
    let binary = binary();
    let program = [&[binary.as_str()], &WORK[..]].concat();
    let done = finish(&mut ssh.job(&config, "10.78.0.1:2,there:2", &program));
    ssh.site.assert_worked(&done, "at the launcher's address");
    assert!(!done.stderr.contains("Welcome"), "{done:?}");
    // Where no agent follows, what was said is shown.
    let mut none = ssh.job(&config, "there:1", &["true"]);
    let done = finish(none.env_remove("PHALANX_LOG"));
    assert_eq!(done.code, Some(0), "{done:?}");
    dir.script("login", "echo Closed for maintenance; exit 3");
    refused(&ssh, &config, &["did not lead to a phalanx agent: it said \"Closed for maintenance\""]);
}

#[test]
fn one_dead_host_among_ten_is_named_and_nothing_starts() {
    let Some(mut ssh) = Ssh::start("sd") else { return };
    ssh.serve(PORT + 1, "");
    // Connections are accepted by the system, and nobody speaks.
    kill(ssh.servers[1].id(), "STOP");
    let started = ssh.site.home.path("started");
    let config = ssh.config("user", "host");
    let alive: String = (1..10).map(|i| format!("h{i},")).collect();
    for (dead, code, words) in [
        ("nobody", 1, "cannot start ranks on host nobody: `ssh"),
        ("mute", 124, "no answer from mute within 20 s\n"),
    ] {
        let done = finish(
            ssh.job(&config, &format!("{alive}{dead}"), &["touch", &started]).env_remove("PHALANX_LOG"),
        );
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(done.stderr.contains(words), "{dead}: {done:?}");
        assert!(!fs::exists(&started).unwrap(), "JOB-1");
        ssh.assert_clean();
    }
}

#[test]
fn a_rank_killed_on_the_other_host_is_named_by_all_and_gives_the_exit_code() {
    let Some(ssh) = Ssh::start("sr") else { return };
    let (job, rank, _) = at_work(&ssh);
    kill(rank, "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    assert!(
        done.stderr.contains(&format!("phalanx: rank 3 on there (pid {rank}) was killed")),
        "{}",
        done.stderr
    );
    for prefix in ["10.78.0.1:0 |", "10.78.0.1:1 |", "    there:2 |"] {
        let says = |l: &&str| l.starts_with(prefix) && l.contains("rank 3");
        assert!(done.stderr.lines().any(|l| says(&l)), "{prefix}: {}", done.stderr);
    }
    ssh.assert_clean();
}

#[test]
fn a_connection_or_an_agent_that_is_killed_loses_the_host_and_a_killed_launcher_leaves_nothing() {
    let Some(ssh) = Ssh::start("sc") else { return };
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()).expect("a parent")
    };
    for what in ["agent", "connection"] {
        let (job, _, agent) = at_work(&ssh);
        kill(if what == "agent" { agent } else { parent_of(agent) }, "KILL");
        let done = job.finish();
        assert_eq!(done.code, Some(1), "{what}: {done:?}");
        assert!(done.stderr.contains("phalanx: lost host there with ranks 2-3"), "{what}: {}", done.stderr);
        ssh.assert_clean();
    }
    let (job, _, _) = at_work(&ssh);
    let launcher = ssh.site.hosts.pids(0).into_iter().find(|pid| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(&format!("{}\0run\0", binary()))
    });
    kill(launcher.expect("the launcher runs on the first host"), "KILL");
    drop(job);
    ssh.assert_clean();
}
