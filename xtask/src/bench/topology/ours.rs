//! `phalanx bench` on the hosts: times, and bytes by our counters and by the hosts' interfaces.

use crate::{
    bench::{
        figures::Figures,
        wires::{INTERFACE, Wires},
    },
    process::{Output, Shell},
    profile::Profile,
};
use std::{path::PathBuf, process::Command, time::Duration};

/// Of anything that is started.
pub const RUN_LIMIT: Duration = Duration::from_secs(150);
/// Calls of one size, at most; and none begins after as many seconds.
pub const CALLS: &str = "20";
pub const SECONDS: &str = "1";

/// One way of ours: its name in the figures, and its settings.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub name: &'static str,
    pub settings: &'static [(&'static str, &'static str)],
}

pub const RING: Plan = Plan { name: "ring", settings: &[("PHALANX_ALGORITHM", "ring")] };

/// DDL's options: the best way of each tier as we think, and as it is tried.
pub const GIVEN_AND_EXPLORED: [&str; 2] = ["-mode b:4x3", "-mode p:4x3"];

/// A shape, with the algorithm that is chosen for it.
pub const fn shape(name: &'static str, settings: &'static [(&'static str, &'static str)]) -> Plan {
    Plan { name, settings }
}

/// All shapes of 12 ranks that are compared, with what leaves the fullest of three hosts of 4 ranks, of the vector.
pub const SHAPES: [(Plan, f64); 6] = [
    (shape("4x3", &[("PHALANX_TIERS", "4x3")]), 4.0 / 3.0),
    (shape("2x2x3", &[("PHALANX_TIERS", "2x2x3")]), 4.0 / 3.0),
    (shape("2x6", &[("PHALANX_TIERS", "2x6")]), 5.0 / 3.0),
    (shape("12", &[("PHALANX_TIERS", "12")]), 11.0 / 6.0),
    (shape("6x2", &[("PHALANX_TIERS", "6x2")]), 4.0),
    (shape("3x4", &[("PHALANX_TIERS", "3x4")]), 25.0 / 6.0),
];

/// On which hosts, with how many ranks each, and what the figures of this network are called.
#[derive(Clone, Copy)]
pub struct Ours<'a> {
    pub shell: &'a Shell,
    pub wires: &'a Wires<'a>,
    pub each: u32,
    pub network: &'static str,
    pub profile: Profile,
}

impl Ours<'_> {
    pub fn program(&self) -> PathBuf {
        self.shell.built(self.profile, "phalanx")
    }

    fn n_ranks(&self) -> String {
        (self.wires.hosts.len() as u32 * self.each).to_string()
    }

    fn remote_shell(&self) -> String {
        format!("{} {{host}}", self.wires.enter.display())
    }

    /// A subcommand that starts ranks on all hosts, host by host.
    pub fn started(&self, subcommand: &str) -> Command {
        let mut command = self.wires.on(0, self.program());
        command.args([subcommand, "-np", &self.n_ranks(), "-H", &self.wires.list(self.each, false)]);
        command.args(["--rsh", &self.remote_shell()]).env("PHALANX_ENCRYPT", "never");
        command
    }

    /// `phalanx bench`, ranks host by host.
    pub fn bench(&self) -> Command {
        let mut command = self.started("bench");
        command.args(["--no-bind", "--json"]);
        command
    }

    /// `phalanx bench` as a program of mpirun, which deals ranks to the hosts in turn.
    pub fn dealt(&self) -> Command {
        let mut command = openmpi(self.wires, &self.n_ranks(), self.each);
        command.args(["--map-by", "node", "-x", "PHALANX_ENCRYPT", "-x", "PHALANX_TIERS"]);
        command.arg(self.program()).args(["bench", "--json"]).env("PHALANX_ENCRYPT", "never");
        command
    }

    /// Runs a plan at these sizes; adds times, and bytes of both kinds under the numbering's name.
    pub fn measure(
        &self,
        figures: &mut Figures,
        plan: Plan,
        sizes: &[u64],
        mut command: Command,
        numbering: &str,
    ) -> Result<(), String> {
        let network = self.network;
        let list: Vec<String> = sizes.iter().map(u64::to_string).collect();
        command.args(["--op", "allreduce", "--dtype", "f32", "--sizes", &list.join(","), "--traffic"]);
        command.args(["--calls", CALLS, "--seconds", SECONDS]).envs(plan.settings.iter().copied());
        let before = self.wires.sent()?;
        let done = self.shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
        let after = self.wires.sent()?;
        let rows: Vec<Row> = done.stdout.lines().filter_map(Row::read).collect();
        if rows.len() != sizes.len() {
            return Err(format!(
                "phalanx bench printed {} of {} rows:\n{}",
                rows.len(),
                sizes.len(),
                done.text
            ));
        }
        let by_nic = after.iter().zip(&before).map(|(a, b)| a - b).max().unwrap_or(0) as f64;
        let by_counters: f64 = rows.iter().map(|row| row.calls * row.host_bytes).sum();
        figures.add(&format!("{network} {numbering} nic over counters"), plan.name, by_nic / by_counters);
        for row in rows {
            figures.add(&format!("{network} {numbering} us {}", row.bytes), plan.name, row.median_us);
            let share = row.host_bytes / row.bytes as f64;
            figures.add(&format!("{network} {numbering} share {}", row.bytes), plan.name, share);
        }
        Ok(())
    }

    /// DDL's AllReduceN, and one call each.
    pub fn fused(&self, figures: &mut Figures) -> Result<(), String> {
        let mut command = self.bench();
        command.args(["--fused", "--seconds", "2"]).env("PHALANX_TIERS", "4x3");
        let rows = self.tensor_rows(command, 2)?;
        rows.iter().for_each(|(what, us)| figures.add("fused", what, *us));
        Ok(())
    }

    /// DDL's AllReduce of 16 MiB with the ways given and found.
    pub fn explored(&self, figures: &mut Figures) -> Result<(), String> {
        for (options, calls) in GIVEN_AND_EXPLORED.into_iter().zip(["8", "32"]) {
            let mut command = self.bench();
            command.args(["--ddl", "--sizes", "16M", "--calls", calls]).env("DDL_OPTIONS", options);
            let rows = self.tensor_rows(command, 1)?;
            rows.iter().for_each(|(_, us)| figures.add("ddl", options, *us));
        }
        Ok(())
    }

    /// What the measurements of DDL print.
    fn tensor_rows(&self, mut command: Command, n_rows: usize) -> Result<Vec<(String, f64)>, String> {
        let done = self.shell.must(&mut command, Output::Kept, RUN_LIMIT)?;
        let lines = done.stdout.lines();
        let rows = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let rows = rows.filter_map(|row| Some((row["what"].as_str()?.into(), row["median_us"].as_f64()?)));
        let rows: Vec<(String, f64)> = rows.collect();
        if rows.len() == n_rows {
            Ok(rows)
        } else {
            Err(format!("phalanx bench printed {} of {n_rows} rows:\n{}", rows.len(), done.text))
        }
    }
}

/// mpirun of Open MPI on all hosts. Ranks of one host share memory, as ours do; ranks that share a core let each other work.
pub fn openmpi(wires: &Wires<'_>, n_ranks: &str, each: u32) -> Command {
    let mut command = wires.on(0, "mpirun.openmpi");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "plm_rsh_agent"]);
    command.arg(&wires.enter);
    command.args(["--mca", "oob_tcp_if_include", INTERFACE, "--mca", "btl_tcp_if_include", INTERFACE]);
    command.args(["--mca", "btl", "tcp,vader,self", "--mca", "mpi_yield_when_idle", "1"]);
    command.args(["-H", &wires.list(each, true), "-np", n_ranks]);
    command
}

#[derive(Debug, PartialEq)]
struct Row {
    bytes: u64,
    median_us: f64,
    calls: f64,
    host_bytes: f64,
}

impl Row {
    fn read(line: &str) -> Option<Row> {
        let row: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(Row {
            bytes: row.get("bytes")?.as_u64()?,
            median_us: row.get("median_us")?.as_f64()?,
            calls: row.get("calls")?.as_f64()?,
            host_bytes: row.get("host_bytes")?.as_f64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_need_bytes_of_a_host() {
        let line = r#"{"bytes":12,"median_us":3.5,"calls":2,"host_bytes":16,"plan":"tiers"}"#;
        assert_eq!(Row::read(line), Some(Row { bytes: 12, median_us: 3.5, calls: 2.0, host_bytes: 16.0 }));
        assert_eq!(Row::read(r#"{"bytes":12,"median_us":3.5,"calls":2}"#), None);
        assert_eq!(Row::read("phalanx bench: note"), None);
    }
}
