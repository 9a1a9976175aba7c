//! Allreduce of 2x2 ranks between the two hosts: plain, encrypted, and Open MPI, on a cable without limits and on one of 1 Gbit/s.

use super::{
    Figures,
    cluster::{Cluster, Engine},
};
use crate::{
    bench::{goals::NET_SIZES, net::INTERFACE, table::size},
    process::Output,
};
use std::time::Duration;

pub const LARGE: [u64; 2] = [16 << 20, 64 << 20];
/// For each size in each round.
const SECONDS: &str = "0.3";
/// Calls of `phalanx bench` that it does not count: one that is checked, and two more, at these sizes.
const UNCOUNTED: u64 = 3;
const SHORT: Duration = Duration::from_secs(20);

/// Everybody takes what the cable carries.
pub fn unshaped(cluster: &mut Cluster<'_>, figures: &mut Figures) -> Result<(), String> {
    if let (Some(program), Some(mut command)) =
        (cluster.bench_openmpi.clone(), cluster.two_by_two(Engine::OpenMpi))
    {
        // Ranks of one host share memory, as ours do; two ranks that share a core let each other work.
        command.args(["--mca", "btl", "tcp,vader,self", "--mca", "mpi_yield_when_idle", "1", "-x", "PEER"]);
        command.arg(program).args(["net", SECONDS]).env("PEER", "mpi");
        let said = cluster.timed(command).map(|(_, done)| done.stdout);
        if let Some(said) = cluster.excused("Open MPI between hosts", said)? {
            for (bytes, us) in said.lines().filter_map(row_of_mpi) {
                figures.add(&format!("unshaped us {bytes}"), "openmpi", us);
            }
        }
    }
    ours(cluster, figures, "unshaped", "never", "plain", &NET_SIZES)?;
    ours(cluster, figures, "unshaped", "auto", "encrypted", &LARGE)
}

/// 1 Gbit/s in both directions.
pub fn shaped(cluster: &mut Cluster<'_>, figures: &mut Figures) -> Result<(), String> {
    let shape = |cluster: &Cluster<'_>, args: &[&str]| -> Result<(), String> {
        for name in &cluster.pair.names {
            let mut tc = cluster.shell.command("tc");
            tc.args(["-n", name, "qdisc", args[0], "dev", INTERFACE, "root"]).args(&args[1..]);
            cluster.shell.must(&mut tc, Output::Kept, SHORT)?;
        }
        Ok(())
    };
    let made = shape(cluster, &["replace", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"]);
    if cluster.excused("tc", made)?.is_none() {
        return Ok(());
    }
    let measured = [("never", "plain"), ("auto", "encrypted")]
        .into_iter()
        .try_for_each(|(encrypt, who)| ours(cluster, figures, "shaped", encrypt, who, &LARGE));
    shape(cluster, &["del"])?;
    measured
}

/// One size at a time, so that the bytes on the cable are known for each.
fn ours(
    cluster: &mut Cluster<'_>,
    figures: &mut Figures,
    network: &str,
    encrypt: &str,
    who: &str,
    sizes: &[u64],
) -> Result<(), String> {
    for &bytes in sizes {
        let mut command = cluster.bench();
        command.args(["--seconds", SECONDS, "--sizes", &size(bytes).replace(['i', 'B', ' '], "")]);
        let before = on_the_cable(cluster)?;
        let (_, done) = cluster.timed({
            command.env("PHALANX_ENCRYPT", encrypt);
            command
        })?;
        let sent = on_the_cable(cluster)? - before;
        let (us, calls) = done
            .stdout
            .lines()
            .find_map(row_of_ours)
            .ok_or_else(|| format!("phalanx bench printed no row:\n{}", done.text))?;
        figures.add(&format!("{network} us {bytes}"), who, us);
        figures.add(&format!("{network} bytes {bytes}"), who, sent as f64 / (calls + UNCOUNTED) as f64);
    }
    Ok(())
}

/// Bytes that both hosts have sent.
fn on_the_cable(cluster: &Cluster<'_>) -> Result<u64, String> {
    let mut sum = 0;
    for name in &cluster.pair.names {
        let mut ip = cluster.shell.command("ip");
        ip.args(["-n", name, "-s", "-j", "link", "show", "dev", INTERFACE]);
        let said = cluster.shell.must(&mut ip, Output::Kept, SHORT)?.stdout;
        let found: serde_json::Value =
            serde_json::from_str(&said).map_err(|e| format!("ip says {said:?}: {e}"))?;
        sum += found[0]["stats64"]["tx"]["bytes"].as_u64().ok_or_else(|| format!("ip says {said:?}"))?;
    }
    Ok(sum)
}

fn row_of_ours(line: &str) -> Option<(f64, u64)> {
    let row: serde_json::Value = serde_json::from_str(line).ok()?;
    Some((row.get("median_us")?.as_f64()?, row.get("calls")?.as_u64()?))
}

fn row_of_mpi(line: &str) -> Option<(u64, f64)> {
    let words: Vec<&str> = line.split('\t').collect();
    let [_, _, _, _, bytes, median, ..] = words[..] else { return None };
    Some((bytes.parse().ok()?, median.parse().ok()?))
}
