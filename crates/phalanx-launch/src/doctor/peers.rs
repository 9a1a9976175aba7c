//! Checks other hosts: whether the remote shell reaches them, whether they have the same phalanx, and how they reach each other.

use super::{
    DoctorArgs, encryption,
    finding::{Finding, Mark},
    timed, trial,
};
use crate::{
    run::{self, JobHosts, LaunchError, Route},
    slurm::SlurmError,
};
use std::{ffi::OsString, io, thread, time::Duration};

/// Asks every host at once; one finding each. Those that answer as they should then measure the network between them.
pub fn check(args: &DoctorArgs) -> Result<Vec<Finding>, LaunchError> {
    let reach = match JobHosts::new(&args.hosts) {
        // One of several ranks under srun: each of them would ask all hosts.
        Err(LaunchError::Slurm(SlurmError::Task { .. })) => return Ok(Vec::new()),
        Err(LaunchError::Slurm(why)) => {
            let so = "`phalanx run` does not know the hosts of this allocation";
            return Ok(vec![Finding::fail("hosts", why.to_string(), so, "name them with -H")]);
        }
        other => other?,
    };
    let Some(reach) = reach else { return Ok(Vec::new()) };
    let exes = run::exes(&args.hosts);
    let here = run::here();
    let names: Vec<&str> = reach.hosts.iter().map(|host| host.name.as_str()).collect();
    let rsh = JobHosts::rsh(Some(&reach), &args.hosts, &names, &here)?;
    let asked: Vec<_> = reach
        .hosts
        .iter()
        .cloned()
        .map(|host| {
            let command = Route::to(&host.name, &here, &rsh, &exes, "--version").command().to_vec();
            let within = args.timeout;
            thread::spawn(move || judge(&host.name, &command, within, timed::run(&command, within)))
        })
        .collect();
    let mut findings: Vec<Finding> = asked.into_iter().filter_map(|thread| thread.join().ok()).collect();
    let is_well = |host: &String| findings.iter().any(|f| f.check == *host && f.mark == Mark::Ok);
    let well: Vec<String> = reach.hosts.into_iter().map(|host| host.name).filter(is_well).collect();
    let network = trial::check(args, &well);
    let pairs: Vec<_> = network.iter().filter_map(|finding| finding.figures.clone()).collect();
    findings.extend(network);
    findings.extend(encryption::between(&pairs, &rsh));
    Ok(findings)
}

fn judge(host: &str, command: &[OsString], within: Duration, said: io::Result<timed::Said>) -> Finding {
    let no_rank = "no rank can start there";
    let shell: Vec<_> = command[..command.len() - 2].iter().map(|w| w.to_string_lossy()).collect();
    let try_it = format!("try: {} true", shell.join(" "));
    let said = match said {
        Ok(said) => said,
        Err(error) => {
            let fact = format!("cannot run {:?}: {error}", command[0]);
            return Finding::fail(host, fact, no_rank, "install it or choose another with --rsh");
        }
    };
    let Some(status) = said.status else {
        let fact = format!("no answer within {} s", within.as_secs_f64());
        return Finding::fail(host, fact, no_rank, &try_it);
    };
    if !status.success() {
        let last = said.stderr.trim().lines().last().unwrap_or("it printed nothing");
        return match status.code() {
            Some(127) => {
                let advice = "install it there, or name its path with --remote-exe";
                Finding::fail(
                    host,
                    format!("reached, but phalanx was not found there: {last}"),
                    no_rank,
                    advice,
                )
            }
            _ => Finding::fail(host, format!("not reached: {last}"), no_rank, &try_it),
        };
    }
    let ours = format!("phalanx {}", phalanx_collective::BUILD);
    let theirs = said.stdout.trim();
    let took = said.took.as_secs_f64();
    if theirs == ours.as_str() {
        return Finding::ok(host, format!("answers in {took:.2} s with {ours}"));
    }
    if !theirs.lines().any(|line| line == ours) {
        let fact = format!("has {theirs:?}, this machine {ours}");
        return Finding::fail(host, fact, no_rank, "install the same build on both");
    }
    let greeting = theirs.lines().next().unwrap_or_default();
    let fact = format!(
        "answers in {took:.2} s with {ours}; its login script prints {greeting:?}, which the launcher skips"
    );
    Finding::note(host, fact)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    fn judged(code: Option<i32>, stdout: &str, stderr: &str) -> (Mark, String) {
        let command: Vec<OsString> = ["ssh", "n1", "/p", "--version"].map(OsString::from).into();
        let said = timed::Said {
            status: code.map(|c| ExitStatus::from_raw(c << 8)),
            stdout: stdout.to_string(),
            stderr: stderr.to_string(),
            took: Duration::from_millis(70),
        };
        let finding = judge("n1", &command, Duration::from_secs(10), Ok(said));
        (finding.mark, format!("{} / {}", finding.fact, finding.action.unwrap_or_default()))
    }

    #[test]
    fn hosts_are_judged_by_their_answer() {
        let ours = format!("phalanx {}\n", phalanx_collective::BUILD);
        assert_eq!(judged(Some(0), &ours, "").0, Mark::Ok);
        let other = concat!("phalanx ", env!("CARGO_PKG_VERSION"), "+0000000000000000\n");
        assert!(
            judged(Some(0), other, "").1.contains("install the same build"),
            "another commit of one version"
        );
        assert!(judged(Some(0), "phalanx 9.9.9\n", "").1.starts_with("has \"phalanx 9.9.9\""));
        let (mark, fact) = judged(Some(0), &format!("Welcome\n{ours}"), "");
        assert!(mark == Mark::Note && fact.contains("its login script prints \"Welcome\""), "{fact}");
        assert!(judged(Some(127), "", "sh: no such file").1.contains("phalanx was not found there"));
        assert_eq!(judged(Some(255), "", "a\nrefused").1, "not reached: refused / try: ssh n1 true");
        assert_eq!(judged(None, "", "").1, "no answer within 10 s / try: ssh n1 true");
    }
}
