//! What a person reads when a job did not end well. Text only.

use super::{
    policy::{Cause, RankEnd},
    printer::Tails,
};
use crate::{place::WorldPlan, wire::signal_name};
use phalanx_core::Rank;
use std::{fmt::Write, time::Duration};

/// All that is known about a job that ended.
#[derive(Debug)]
pub struct Ended<'a> {
    pub plan: &'a WorldPlan,
    pub cause: Cause,
    pub ends: &'a [Option<RankEnd>],
    pub pids: &'a [Option<u32>],
    /// Absent when the console took them no more.
    pub tails: Option<&'a Tails>,
    /// The last words of a lost host's agent or remote shell.
    pub host_words: &'a [String],
    pub after: Duration,
}

/// The summary, or nothing when there is nothing to say.
pub fn summary(ended: &Ended<'_>) -> String {
    let seconds = ended.after.as_secs_f64();
    let mut text = String::new();
    match ended.cause {
        Cause::Success | Cause::OutputClosed => return text,
        Cause::Failed { rank, ending } => {
            let pid = ended.pids[rank.index()].map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let host = ended.plan.host_name(rank);
            let _ = writeln!(text, "phalanx: rank {rank} on {host}{pid} {ending} after {seconds:.1} s");
            if let Some(tail) = ended.tails.map(|t| &t[rank.index()]).filter(|t| !t.is_empty()) {
                text.push_str("  its last lines on stderr:\n");
                tail.iter().for_each(|line| quote(&mut text, line));
            }
        }
        Cause::HostLost { host } => {
            let host = &ended.plan.hosts()[host];
            let ranks = list(host.ranks.clone());
            let _ = writeln!(text, "phalanx: lost host {} with {ranks} after {seconds:.1} s", host.name);
            ended.host_words.iter().for_each(|line| quote(&mut text, line));
        }
        Cause::TimedOut => {
            let _ = writeln!(text, "phalanx: the job's --timeout is over after {seconds:.1} s");
        }
        Cause::Asked(signal) => {
            let _ = writeln!(text, "phalanx: ended by {} after {seconds:.1} s", signal_name(signal));
        }
    }
    let others = others(ended);
    if !others.is_empty() {
        let _ = writeln!(text, "phalanx: {others}");
    }
    text
}

fn quote(text: &mut String, line: &str) {
    let _ = writeln!(text, "  | {line}");
}

/// One line on the ranks that are not the cause, those with the same fate together.
fn others(ended: &Ended<'_>) -> String {
    let mut fates: Vec<(String, Vec<u32>)> = Vec::new();
    for rank in 0..ended.plan.n_ranks() {
        let is_cause = match ended.cause {
            Cause::Failed { rank: culprit, .. } => culprit == Rank(rank),
            Cause::HostLost { host } => ended.plan.hosts()[host].ranks.contains(&rank),
            _ => false,
        };
        if is_cause {
            continue;
        }
        let fate = fate(ended.ends[rank as usize]);
        match fates.iter_mut().find(|(f, _)| *f == fate) {
            Some((_, ranks)) => ranks.push(rank),
            None => fates.push((fate, vec![rank])),
        }
    }
    let fates: Vec<String> =
        fates.into_iter().map(|(fate, ranks)| format!("{} {fate}", list(ranks))).collect();
    fates.join("; ")
}

fn fate(end: Option<RankEnd>) -> String {
    match end {
        None => "did not confirm the end".to_string(),
        Some(RankEnd { ending: None, .. }) => "went with the host".to_string(),
        Some(RankEnd { ending: Some(ending), asked: true, .. }) => format!("ended on request: {ending}"),
        Some(RankEnd { ending: Some(ending), early: true, .. }) => format!("had already {ending}"),
        Some(RankEnd { ending: Some(ending), .. }) => ending.to_string(),
    }
}

/// `rank 3`, `ranks 0-2,5`.
pub fn list(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let word = if matches!(runs[..], [(a, b)] if a == b) { "rank" } else { "ranks" };
    let runs: Vec<String> =
        runs.iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    format!("{word} {}", runs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hosts::parse_list, wire::Ending};

    fn end(ending: Ending, asked: bool, early: bool) -> Option<RankEnd> {
        Some(RankEnd { ending: Some(ending), asked, early })
    }

    fn report(cause: Cause, ends: &[Option<RankEnd>], tail: &[&str]) -> String {
        let plan = WorldPlan::fill(&parse_list("n0:2,n1:8").unwrap(), ends.len() as u32, "-H").unwrap();
        let mut tails = vec![Default::default(); ends.len()];
        tails[1] = tail.iter().map(|l| l.to_string()).collect();
        summary(&Ended {
            plan: &plan,
            cause,
            ends,
            pids: &vec![Some(77); ends.len()],
            tails: Some(&tails),
            host_words: &["connection reset".to_string()],
            after: Duration::from_millis(1234),
        })
    }

    #[test]
    fn a_failure_names_rank_host_pid_code_and_last_words() {
        let code = |c| Ending::Code(c);
        let ends = [
            end(code(0), false, true),
            end(code(3), false, true),
            end(code(1), false, false),
            end(Ending::Signal(15), true, false),
            end(code(1), false, false),
            None,
        ];
        let text = report(Cause::Failed { rank: Rank(1), ending: code(3) }, &ends, &["Traceback", "Boom"]);
        assert_eq!(
            text,
            "phalanx: rank 1 on n0 (pid 77) exited with code 3 after 1.2 s\n\
             \x20 its last lines on stderr:\n\
             \x20 | Traceback\n\
             \x20 | Boom\n\
             phalanx: rank 0 had already exited with code 0; ranks 2,4 exited with code 1; \
             rank 3 ended on request: was killed by SIGTERM; rank 5 did not confirm the end\n"
        );
    }

    #[test]
    fn a_single_rank_has_no_others() {
        let ends = [end(Ending::Signal(9), false, true)];
        let plan = WorldPlan::fill(&parse_list("n0").unwrap(), 1, "-H").unwrap();
        let text = summary(&Ended {
            plan: &plan,
            cause: Cause::Failed { rank: Rank(0), ending: Ending::Signal(9) },
            ends: &ends,
            pids: &[None],
            tails: None,
            host_words: &[],
            after: Duration::ZERO,
        });
        assert_eq!(text, "phalanx: rank 0 on n0 was killed by SIGKILL after 0.0 s\n");
    }

    #[test]
    fn lost_hosts_timeouts_and_signals_are_said() {
        let lost = Some(RankEnd { ending: None, asked: false, early: true });
        let ends = [end(Ending::Code(1), false, false), end(Ending::Code(1), false, false), lost, lost];
        assert_eq!(
            report(Cause::HostLost { host: 1 }, &ends, &[]),
            "phalanx: lost host n1 with ranks 2-3 after 1.2 s\n  | connection reset\n\
             phalanx: ranks 0-1 exited with code 1\n"
        );
        assert!(report(Cause::TimedOut, &[None; 2], &[]).starts_with("phalanx: the job's --timeout is over"));
        assert!(
            report(Cause::Asked(2), &[None; 2], &[]).starts_with("phalanx: ended by SIGINT after 1.2 s\n")
        );
        assert_eq!(report(Cause::OutputClosed, &[None; 2], &[]), "");
    }

    #[test]
    fn lists_of_ranks_are_short() {
        assert_eq!(list([4]), "rank 4");
        assert_eq!(list(0..5), "ranks 0-4");
        assert_eq!(list([0, 2, 3, 9]), "ranks 0,2-3,9");
    }
}
