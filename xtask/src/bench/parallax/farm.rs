//! Hosts with slow links, and what worlds of workers on them did.

use super::Options;
use crate::process::{Output, Shell};
use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

const RUN_LIMIT: Duration = Duration::from_secs(2 * 60);
const INTERFACE: &str = "cable0";

/// What one world of workers did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// In and out of a host in a step.
    pub bytes: f64,
    /// The median of rank 0's steps.
    pub ms: f64,
    /// Of a host in a step: rows that servers were asked for, that workers gave, that went to servers.
    pub pulled: f64,
    pub given: f64,
    pub pushed: f64,
    /// Rows that its workers touched, each once in a step: what should be pushed.
    pub union: f64,
    /// Steps of all workers.
    pub steps: f64,
    /// What a search has found.
    pub partitions: f64,
}

/// Namespaces around a bridge, which go when the measurement ends, however it does.
pub struct Farm {
    hosts: Vec<String>,
    switch: String,
}

impl Farm {
    pub fn new(shell: &Shell, n: usize, rate: &str) -> Result<Farm, String> {
        let pid = std::process::id();
        let hosts = (0..n).map(|i| format!("phx{pid}h{i}")).collect();
        // From here on it is dropped, and everything removed, whatever fails.
        let farm = Farm { hosts, switch: format!("phx{pid}sw") };
        let call = |program: &str, args: String| {
            let mut command = shell.command(program);
            command.args(args.split_whitespace());
            shell.must(&mut command, Output::Kept, Duration::from_secs(20)).map(drop)
        };
        let switch = &farm.switch;
        call("ip", format!("netns add {switch}"))?;
        call("ip", format!("-n {switch} link add bridge0 type bridge"))?;
        call("ip", format!("-n {switch} link set bridge0 up"))?;
        for (i, host) in farm.hosts.iter().enumerate() {
            call("ip", format!("netns add {host}"))?;
            call("ip", format!("-n {host} link add {INTERFACE} type veth peer name port{i} netns {switch}"))?;
            call("ip", format!("-n {host} addr add {}/24 dev {INTERFACE}", address(i)))?;
            call("ip", format!("-n {host} link set {INTERFACE} up"))?;
            call("ip", format!("-n {host} link set lo up"))?;
            call("ip", format!("-n {switch} link set port{i} master bridge0 up"))?;
            let shape = format!("root tbf rate {rate} burst 256kb latency 100ms");
            call("tc", format!("-n {host} qdisc add dev {INTERFACE} {shape}"))?;
            call("tc", format!("-n {switch} qdisc add dev port{i} {shape}"))?;
        }
        Ok(farm)
    }

    /// A run of few and many steps less one of few.
    pub fn measure(
        &self,
        shell: &Shell,
        options: &Options,
        workers: usize,
        (few, many): (usize, usize),
        args: &[&str],
    ) -> Result<Seen, String> {
        let mut both = Vec::new();
        for steps in [few, few + many] {
            let text = steps.to_string();
            let args: Vec<&str> = args.iter().copied().chain(["--warm", "1", "--steps", &text]).collect();
            let before = self.bytes(shell)?;
            let mut seen = self.world(shell, options, workers, &args)?;
            seen.bytes = self.bytes(shell)? - before;
            both.push(seen);
        }
        let (short, long, n) = (both[0], both[1], many as f64);
        let of_host = |a: f64, b: f64| (b - a) / n / self.hosts.len() as f64;
        Ok(Seen {
            bytes: of_host(short.bytes, long.bytes),
            ms: long.ms,
            pulled: of_host(short.pulled, long.pulled),
            given: of_host(short.given, long.given),
            pushed: of_host(short.pushed, long.pushed),
            union: of_host(short.union, long.union),
            steps: long.steps,
            partitions: long.partitions,
        })
    }

    /// What all hosts have sent and received.
    fn bytes(&self, shell: &Shell) -> Result<f64, String> {
        let mut sum = 0.0;
        for host in &self.hosts {
            let mut command = shell.command("nsenter");
            command.args([&format!("--net=/run/netns/{host}"), "cat", "/proc/net/dev"]);
            let done = shell.must(&mut command, Output::Kept, Duration::from_secs(20))?;
            sum += counted(&done.stdout).ok_or_else(|| format!("{host} has no {INTERFACE}"))?;
        }
        Ok(sum)
    }

    /// Runs this many workers on each host; sums what they say.
    pub fn world(
        &self,
        shell: &Shell,
        options: &Options,
        workers: usize,
        args: &[&str],
    ) -> Result<Seen, String> {
        let program: PathBuf = shell.built(options.profile, "examples/parallax_bench");
        let n = self.hosts.len() * workers;
        let (mut script, mut rank) = ("pids=\n".to_string(), 0);
        for host in &self.hosts {
            for local in 0..workers {
                script += &format!(
                    "RANK={rank} LOCAL_RANK={local} PHALANX_HOST_ID={host} nsenter --net=/run/netns/{host} \"$@\" & pids=\"$pids $!\"\n"
                );
                rank += 1;
            }
        }
        script += "code=0\nfor pid in $pids; do wait $pid || code=$?; done\nexit $code\n";
        let (rows, tokens) = (options.rows.to_string(), options.tokens.to_string());
        let unless = |name: &str, value: &str| match args.contains(&name) {
            true => Vec::new(),
            false => vec![name.to_string(), value.to_string()],
        };
        let secret = format!("{:064x}", std::process::id());
        let mut command = shell.command("sh");
        command
            .args(["-c", &script, "sh"])
            .arg(&program)
            .args(unless("--rows", &rows))
            .args(unless("--tokens", &tokens))
            .args(args)
            .env("WORLD_SIZE", n.to_string())
            .env("LOCAL_WORLD_SIZE", workers.to_string())
            .env("MASTER_ADDR", address(0))
            .env("MASTER_PORT", "29511")
            .env("PHALANX_SECRET", secret)
            .env("PHALANX_ENCRYPT", "never");
        let done = shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
        summed(&done.stdout).ok_or_else(|| format!("the workers said nothing:\n{}", done.text))
    }
}

fn address(host: usize) -> String {
    format!("10.198.0.{}", host + 1)
}

impl Drop for Farm {
    fn drop(&mut self) {
        // Not through the shell, which starts nothing after Ctrl-C. What does not exist needs no removing.
        for name in self.hosts.iter().chain([&self.switch]) {
            let mut command = Command::new("ip");
            command
                .args(["netns", "del", name])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let _ = command.status();
        }
    }
}

/// Bytes in and out of the interface, of a table of `/proc/net/dev`.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some(numbers.first()? + numbers.get(8)?)
}

/// What the lines of all workers say together.
fn summed(text: &str) -> Option<Seen> {
    let mut seen: Option<Seen> = None;
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let Ok(said) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let number = |name: &str| said[name].as_f64().unwrap_or(0.0);
        let all = seen.get_or_insert_default();
        all.pulled += number("pulled_rows");
        all.given += number("given_rows");
        all.pushed += number("pushed_rows");
        all.union += number("union_rows");
        all.steps += number("steps");
        if number("rank") == 0.0 {
            all.ms = number("ms");
            all.partitions = number("partitions");
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_lines_are_read() {
        let text = " face |bytes\n  lo: 5 0 0 0 0 0 0 0 5 0\ncable0: 100 1 0 0 0 0 0 0 23 1 0\n";
        assert_eq!(counted(text), Some(123.0));
        assert_eq!(counted("lo: 5"), None);
        let lines = "noise\n{\"rank\":1,\"ms\":9.0,\"steps\":4,\"pulled_rows\":3}\n{\"rank\":0,\"ms\":2.5,\"steps\":4,\"pulled_rows\":5}\n";
        let seen = summed(lines).unwrap();
        assert_eq!((seen.ms, seen.steps, seen.pulled), (2.5, 8.0, 8.0));
        assert!(summed("nothing").is_none());
    }
}
