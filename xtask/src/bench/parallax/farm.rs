//! Hosts with slow links, and what worlds of workers on them did.

use super::Options;
use crate::{
    bench::wires::{INTERFACE, Wires, address},
    process::{Output, Shell},
};
use std::{
    ffi::OsString,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

const RUN_LIMIT: Duration = Duration::from_secs(2 * 60);

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

impl Seen {
    /// The median of each figure over the rounds.
    pub fn median(rounds: &[Seen]) -> Seen {
        let of = |figure: fn(&Seen) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        Seen {
            bytes: of(|seen| seen.bytes),
            ms: of(|seen| seen.ms),
            pulled: of(|seen| seen.pulled),
            given: of(|seen| seen.given),
            pushed: of(|seen| seen.pushed),
            union: of(|seen| seen.union),
            steps: of(|seen| seen.steps),
            partitions: of(|seen| seen.partitions),
        }
    }
}

/// Hosts on a switch, each with a slow link.
pub struct Farm<'a> {
    wires: Wires<'a>,
}

impl<'a> Farm<'a> {
    pub fn new(shell: &'a Shell, n: u32, rate: &str) -> Result<Farm<'a>, String> {
        // Two may exist at a time.
        static N_FARMS: AtomicU32 = AtomicU32::new(0);
        let tag = format!("p{}", N_FARMS.fetch_add(1, Ordering::Relaxed));
        let wires = Wires::new(shell, &tag, &[n])?;
        wires.limit(rate, rate)?;
        Ok(Farm { wires })
    }

    /// A run of few and many steps less one of few.
    pub fn measure(
        &self,
        shell: &Shell,
        options: &Options,
        workers: usize,
        steps: (usize, usize),
        args: &[&str],
    ) -> Result<Seen, String> {
        self.difference(steps, |args| self.world(shell, options, workers, args), args)
    }

    /// The same of any world that takes a number of steps.
    pub fn difference(
        &self,
        (few, many): (usize, usize),
        world: impl Fn(&[&str]) -> Result<Seen, String>,
        args: &[&str],
    ) -> Result<Seen, String> {
        let mut both = Vec::new();
        for steps in [few, few + many] {
            let text = steps.to_string();
            let args: Vec<&str> = args.iter().copied().chain(["--warm", "1", "--steps", &text]).collect();
            let before = self.wires.both_ways()?;
            let mut seen = world(&args)?;
            seen.bytes = (self.wires.both_ways()? - before) as f64;
            both.push(seen);
        }
        let (short, long, n) = (both[0], both[1], many as f64);
        let of_host = |a: f64, b: f64| (b - a) / n / self.wires.hosts.len() as f64;
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

    /// Runs this many workers on each host; sums what they say.
    pub fn world(
        &self,
        shell: &Shell,
        options: &Options,
        workers: usize,
        args: &[&str],
    ) -> Result<Seen, String> {
        let program = [shell.built(options.profile, "examples/parallax_bench").into_os_string()];
        self.processes(shell, options, workers, &program, args)
    }

    /// The same of any program that takes these options and says what ours says.
    pub fn processes(
        &self,
        shell: &Shell,
        options: &Options,
        workers: usize,
        program: &[OsString],
        args: &[&str],
    ) -> Result<Seen, String> {
        let n = self.wires.hosts.len() * workers;
        let (mut script, mut rank) = ("pids=\n".to_string(), 0);
        for host in &self.wires.hosts {
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
            .args(program)
            .args(unless("--rows", &rows))
            .args(unless("--tokens", &tokens))
            .args(args)
            .env("WORLD_SIZE", n.to_string())
            .env("LOCAL_WORLD_SIZE", workers.to_string())
            .env("MASTER_ADDR", address(0))
            .env("MASTER_PORT", "29511")
            .env("PHALANX_SECRET", secret)
            .env("PHALANX_ENCRYPT", "never")
            .env("GLOO_SOCKET_IFNAME", INTERFACE)
            .env("TP_SOCKET_IFNAME", INTERFACE)
            .env("OMP_NUM_THREADS", "1");
        let done = shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
        let n_said =
            done.stdout.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
        summed(&done.stdout)
            .filter(|_| n_said.count() == n)
            .ok_or_else(|| format!("not all of {n} workers said what they did:\n{}", done.text))
    }
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
    fn lines_of_workers_are_read() {
        let lines = "noise\n{\"rank\":1,\"ms\":9.0,\"steps\":4,\"pulled_rows\":3}\n{\"rank\":0,\"ms\":2.5,\"steps\":4,\"pulled_rows\":5}\n";
        let seen = summed(lines).unwrap();
        assert_eq!((seen.ms, seen.steps, seen.pulled), (2.5, 8.0, 8.0));
        assert!(summed("nothing").is_none());
        let rounds = [3.0, 9.0, 1.0].map(|ms| Seen { ms, ..Seen::default() });
        assert_eq!(Seen::median(&rounds).ms, 3.0);
    }
}
