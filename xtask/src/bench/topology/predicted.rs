//! What `phalanx simulate` predicts for each shape, with the costs that `phalanx doctor` measures on the same network.

use super::{
    LARGE,
    ours::{Ours, RUN_LIMIT, SHAPES},
};
use crate::{bench::figures::Figures, process::Output};
use serde_json::Value;

pub fn all(ours: &Ours<'_>, figures: &mut Figures) -> Result<(), String> {
    let costs = costs(ours)?;
    for (plan, _) in SHAPES {
        let mut command = ours.shell.command(ours.program());
        command.args(["simulate", "--tiers", plan.name, "--per-host", &ours.each.to_string(), "--json"]);
        command.args(["--bytes", &LARGE.to_string(), "--tier-cost", &costs]);
        let said = ours.shell.must(&mut command, Output::Kept, RUN_LIMIT)?.stdout;
        let us = selected(&said).ok_or_else(|| format!("simulate says {said}"))?;
        figures.add("A simulated", plan.name, us);
    }
    Ok(())
}

/// The time of the plan that would be taken.
fn selected(said: &str) -> Option<f64> {
    let rows = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    rows.filter(|row| row["selected"] == true).find_map(|row| row["time_us"].as_f64())
}

/// `latency:bandwidth` inside and between hosts.
fn costs(ours: &Ours<'_>) -> Result<String, String> {
    let mut command = ours.wires.on(0, ours.program());
    command.args(["doctor", "-H", &ours.wires.list(ours.each, false), "--json", "--rsh"]);
    command.arg(format!("{} {{host}}", ours.wires.enter.display())).env("PHALANX_ENCRYPT", "never");
    let said = ours.shell.must(&mut command, Output::Kept, RUN_LIMIT)?.stdout;
    between(&said).ok_or_else(|| format!("doctor measured no pair of hosts:\n{said}"))
}

/// The slowest of all pairs: half of its round trip, and its bandwidth.
fn between(said: &str) -> Option<String> {
    let findings = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let pairs = findings.filter_map(|finding| {
        let measured = finding.get("measured")?;
        let there_and_back = measured.get("round_trip_us")?.as_f64()?;
        let rates = measured.get("gb_per_s")?.as_array()?.iter().filter_map(Value::as_f64);
        Some((there_and_back / 2.0, rates.fold(f64::INFINITY, f64::min)))
    });
    let slowest = |(us, rate): (f64, f64), (a, b): (f64, f64)| (us.max(a), rate.min(b));
    let (us, rate) = pairs.reduce(slowest)?;
    Some(format!("0.5:12,{us}:{rate}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_slowest_pair() {
        let said = "{\"check\":\"x\"}\n\
            {\"check\":\"a - b\",\"measured\":{\"round_trip_us\":80.0,\"gb_per_s\":[0.025,0.024]}}\n\
            {\"check\":\"a - c\",\"measured\":{\"round_trip_us\":60.0,\"gb_per_s\":[0.025,0.025]}}\n";
        assert_eq!(between(said).as_deref(), Some("0.5:12,40:0.024"));
        assert_eq!(between("{}"), None);
        let rows =
            "{\"plan\":\"ring\",\"selected\":false,\"time_us\":1.0}\n{\"selected\":true,\"time_us\":2.5}\n";
        assert_eq!(selected(rows), Some(2.5));
    }
}
