//! The report for a job that failed. Text only.

use super::{
    failures::Failures,
    policy::{Charge, EndCause, JobNote, RankEnd},
    printer::Tails,
};
use crate::{
    numbers,
    place::WorldPlan,
    wire::{Ending, JobSignal},
};
use phalanx_core::Rank;
use phalanx_net::ending::signal_name;
use std::{fmt::Write, time::Duration};

const SIGKILL: i32 = JobSignal::Kill.number();
/// How many lines of a failed rank's stderr are repeated, unless a traceback begins before.
const TAIL_LINES: usize = 15;
/// How Python begins to say why it ends.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// All that is known about a job that ended.
#[derive(Debug)]
pub struct Ended<'a> {
    pub plan: &'a WorldPlan,
    pub cause: EndCause,
    pub ends: &'a [Option<RankEnd>],
    pub pids: &'a [Option<u32>],
    /// Absent when the console took them no more.
    pub tails: Option<&'a Tails>,
    /// The last words of a lost host's agent or remote shell.
    pub host_words: &'a [String],
    /// Whom the ranks themselves blame, and for what.
    pub blamed: Option<(Rank, Charge)>,
    /// What ranks said about their own ends.
    pub failures: &'a Failures,
    pub after: Duration,
}

/// The summary, or nothing when there is nothing to say.
pub fn summary(ended: &Ended<'_>) -> String {
    let seconds = ended.after.as_secs_f64();
    let mut text = String::new();
    match ended.cause {
        EndCause::Success | EndCause::OutputClosed => return text,
        EndCause::Failed { rank, ending } => {
            let _ = writeln!(text, "phalanx: {} {ending} after {seconds:.1} s", whereabouts(ended, rank));
        }
        EndCause::Blamed { rank, charge, end } => {
            let said = charged(charge, Fate::of(end, Some(charge)));
            let _ = writeln!(text, "phalanx: {} {said}, after {seconds:.1} s", whereabouts(ended, rank));
        }
        EndCause::HostLost { host } => {
            let host = &ended.plan.hosts()[host];
            let ranks = list(host.ranks.clone());
            let _ = writeln!(text, "phalanx: lost host {} with {ranks} after {seconds:.1} s", host.name);
            ended.host_words.iter().for_each(|line| quote(&mut text, line));
        }
        EndCause::TimedOut => {
            let _ = writeln!(text, "phalanx: --timeout: the job was ended after {seconds:.1} s");
        }
        EndCause::Asked(signal) => {
            let _ = writeln!(text, "phalanx: ended by {} after {seconds:.1} s", signal_name(signal));
        }
    }
    let others = others(ended);
    if !others.is_empty() {
        let _ = writeln!(text, "phalanx: {others}");
    }
    if let EndCause::Failed { rank, .. } | EndCause::Blamed { rank, .. } = ended.cause {
        last_words(&mut text, ended, rank);
    }
    text
}

/// A line while the job runs.
pub fn note(note: &JobNote) -> String {
    match note {
        JobNote::EvaluatorFailed(ending) => {
            format!("phalanx: the evaluator {ending}; the ranks go on without it\n")
        }
        JobNote::Overdue { signal, servers, evaluator, after } => {
            let servers =
                (!servers.is_empty()).then(|| format!("{} (serving)", list(servers.iter().copied())));
            let who = servers.into_iter().chain(evaluator.then(|| "the evaluator".to_string()));
            let who = who.collect::<Vec<_>>().join(" and ");
            let (seconds, name) = (after.as_secs_f64(), signal_name(signal.number()));
            format!(
                "phalanx: {who} did not end within {seconds} s after the last worker: {name} (see --grace)\n"
            )
        }
    }
}

fn whereabouts(ended: &Ended<'_>, rank: Rank) -> String {
    let pid = ended.pids[rank.index()].map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!("rank {rank} on {}{pid}", ended.plan.host_name(rank))
}

/// What the others hold against a rank, and what became of it.
fn charged(charge: Charge, fate: Fate) -> String {
    let end = fate.said(1);
    match (charge, fate) {
        (Charge::Gone, Fate::Ended(_) | Fate::EndedBefore(_)) => {
            let end = end.strip_prefix("had already ").unwrap_or(&end);
            format!("{end} while others still waited for it")
        }
        (Charge::Gone, _) => format!("left while others still waited for it, and {end}"),
        (Charge::Frozen, Fate::Frozen) => end,
        (Charge::Frozen, _) => format!("was frozen, and {end}"),
        (Charge::CutOff, _) => format!("was cut off from the others, and {end}"),
        (Charge::Failed, _) => format!("failed, and {end}"),
    }
}

/// The last thing on the screen: why the first rank failed, in its own words, or else in its last ones on stderr.
fn last_words(text: &mut String, ended: &Ended<'_>, rank: Rank) {
    // A rank that could not be the cause, because we ended it, may still have failed first.
    let first = ended.failures.first(rank);
    let host = ended.plan.host_name(first);
    if let Some(failure) = ended.failures.of(first) {
        let _ = writeln!(text, "phalanx: the first failure was on rank {first} on {host}:");
        return failure.text.trim_end().lines().for_each(|line| quote(text, line));
    }
    let Some(tail) = ended.tails.map(|t| &t[rank.index()]).filter(|t| !t.is_empty()) else { return };
    let traceback = tail.iter().rposition(|line| line == TRACEBACK);
    let from = traceback.unwrap_or(tail.len().saturating_sub(TAIL_LINES));
    let _ = writeln!(text, "phalanx: the last lines of rank {rank} on {host} on stderr:");
    tail.iter().skip(from).for_each(|line| quote(text, line));
}

fn quote(text: &mut String, line: &str) {
    let _ = writeln!(text, "  | {line}");
}

/// One line on the ranks that are not the cause, those with the same fate together.
fn others(ended: &Ended<'_>) -> String {
    let mut fates: Vec<(Fate, Vec<u32>)> = Vec::new();
    for rank in 0..ended.plan.n_ranks() {
        let is_cause = match ended.cause {
            EndCause::Failed { rank: culprit, .. } | EndCause::Blamed { rank: culprit, .. } => {
                culprit == Rank(rank)
            }
            EndCause::HostLost { host } => ended.plan.hosts()[host].ranks.contains(&rank),
            _ => false,
        };
        if is_cause {
            continue;
        }
        let charge = ended.blamed.filter(|(blamed, _)| *blamed == Rank(rank)).map(|(_, charge)| charge);
        let fate = Fate::of(ended.ends[rank as usize], charge);
        match fates.iter_mut().find(|(f, _)| *f == fate) {
            Some((_, ranks)) => ranks.push(rank),
            None => fates.push((fate, vec![rank])),
        }
    }
    let fates: Vec<String> = fates
        .into_iter()
        .map(|(fate, ranks)| format!("{} {}", list(ranks.clone()), fate.said(ranks.len())))
        .collect();
    fates.join("; ")
}

/// What became of a rank that is not the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    WentWithHost,
    Ended(Ending),
    EndedBefore(Ending),
    /// By the signal that asked it to, or in its own way.
    EndedOnRequest(Ending),
    /// By a signal that was not ours.
    KilledMeanwhile(i32),
    /// It did not end when it was asked to.
    Killed,
    /// The same, and its heartbeat had stopped before.
    Frozen,
}

impl Fate {
    fn of(end: Option<RankEnd>, charge: Option<Charge>) -> Fate {
        let Some(end) = end else { return Fate::Unknown };
        match (end.ending, end.asked) {
            (None, _) => Fate::WentWithHost,
            (Some(Ending::Signal(SIGKILL)), Some(JobSignal::Kill)) if charge == Some(Charge::Frozen) => {
                Fate::Frozen
            }
            (Some(Ending::Signal(SIGKILL)), Some(JobSignal::Kill)) => Fate::Killed,
            (Some(Ending::Signal(signal)), Some(sig)) if signal != sig.number() => {
                Fate::KilledMeanwhile(signal)
            }
            (Some(ending), Some(_)) => Fate::EndedOnRequest(ending),
            (Some(ending), None) if end.early => Fate::EndedBefore(ending),
            (Some(ending), None) => Fate::Ended(ending),
        }
    }

    /// The sentence's end, for one rank or several.
    fn said(self, n_ranks: usize) -> String {
        let was = if n_ranks == 1 { "was" } else { "were" };
        match self {
            Fate::Unknown => "did not confirm the end".to_string(),
            Fate::WentWithHost => "went with the host".to_string(),
            Fate::Ended(Ending::Code(code)) => format!("exited with code {code}"),
            Fate::Ended(Ending::Signal(signal)) => format!("{was} killed by {}", signal_name(signal)),
            Fate::EndedBefore(Ending::Code(code)) => format!("had already exited with code {code}"),
            Fate::EndedBefore(Ending::Signal(signal)) => {
                format!("had already been killed by {}", signal_name(signal))
            }
            Fate::EndedOnRequest(Ending::Code(code)) => format!("ended on request with code {code}"),
            Fate::EndedOnRequest(Ending::Signal(signal)) => {
                format!("ended on request ({})", signal_name(signal))
            }
            Fate::KilledMeanwhile(signal) => {
                format!("{was} killed by {} after the request to end", signal_name(signal))
            }
            Fate::Killed => format!("did not end on request and {was} killed by the launcher"),
            Fate::Frozen => format!("{was} frozen, and ended by the launcher"),
        }
    }
}

/// `rank 3`, `ranks 0-2,5`.
pub fn list(ranks: impl IntoIterator<Item = u32>) -> String {
    let runs = numbers::runs(ranks);
    let word = if runs.contains(['-', ',']) { "ranks" } else { "rank" };
    format!("{word} {runs}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hosts::parse_list, run::failures::RankFailure};
    use phalanx_net::hub::message::FailureKind;

    fn end(ending: Ending, asked: Option<JobSignal>, early: bool) -> Option<RankEnd> {
        Some(RankEnd { ending: Some(ending), asked, early })
    }

    fn report(cause: EndCause, ends: &[Option<RankEnd>], tail: &[&str]) -> String {
        report_with(cause, ends, tail, &Failures::default())
    }

    fn report_with(cause: EndCause, ends: &[Option<RankEnd>], tail: &[&str], failures: &Failures) -> String {
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
            blamed: Some((Rank(2), Charge::Frozen)),
            failures,
            after: Duration::from_millis(1234),
        })
    }

    #[test]
    fn a_failure_names_rank_host_pid_code_and_last_words() {
        let code = |c| Ending::Code(c);
        let ends = [
            end(code(0), None, true),
            end(code(3), None, true),
            end(code(1), None, false),
            end(Ending::Signal(15), Some(JobSignal::Term), false),
            end(code(1), None, false),
            None,
        ];
        let text = report(EndCause::Failed { rank: Rank(1), ending: code(3) }, &ends, &["Traceback", "Boom"]);
        assert_eq!(
            text,
            "phalanx: rank 1 on n0 (pid 77) exited with code 3 after 1.2 s\n\
             phalanx: rank 0 had already exited with code 0; ranks 2,4 exited with code 1; \
             rank 3 ended on request (SIGTERM); rank 5 did not confirm the end\n\
             phalanx: the last lines of rank 1 on n0 on stderr:\n\
             \x20 | Traceback\n\
             \x20 | Boom\n"
        );
    }

    #[test]
    fn the_last_words_are_those_of_the_first_failure() {
        let ends = [end(Ending::Code(1), None, true), end(Ending::Code(1), None, false)];
        let cause = EndCause::Failed { rank: Rank(1), ending: Ending::Code(1) };
        let mut failures = Failures::default();
        let lost = FailureKind::FollowsAnother;
        failures.add(RankFailure { rank: Rank(1), kind: lost, text: "rank 0 is lost\n".into() });
        let text = report_with(cause, &ends, &["on stderr"], &failures);
        assert!(
            text.ends_with("phalanx: the first failure was on rank 1 on n0:\n  | rank 0 is lost\n"),
            "{text}"
        );
        let text_of_0 = "Traceback (most recent call last):\n  File 1\nKeyError: 'x'\n";
        failures.add(RankFailure { rank: Rank(0), kind: FailureKind::Own, text: text_of_0.into() });
        let text = report_with(cause, &ends, &["on stderr"], &failures);
        let last = "phalanx: the first failure was on rank 0 on n0:\n  | Traceback (most recent call last):\n  |   File 1\n  | KeyError: 'x'\n";
        assert!(text.ends_with(last) && !text.contains("stderr"), "FIRST-1: {text}");
    }

    #[test]
    fn a_traceback_on_stderr_is_repeated_whole_and_other_words_are_cut() {
        let ends = [end(Ending::Code(0), None, true), end(Ending::Code(1), None, true)];
        let cause = EndCause::Failed { rank: Rank(1), ending: Ending::Code(1) };
        let mut tail = vec!["progress"; 30];
        let shown =
            |tail: &[&str]| report(cause, &ends, tail).lines().filter(|l| l.starts_with("  |")).count();
        assert_eq!(shown(&tail), 15);
        tail.push("Traceback (most recent call last):");
        tail.extend(["  File"; 40]);
        assert_eq!(shown(&tail), 41);
    }

    #[test]
    fn fates_are_sentences_for_one_and_for_many() {
        let killed = |asked, early| end(Ending::Signal(9), asked, early);
        let term = end(Ending::Signal(15), Some(JobSignal::Term), false);
        let said = |ends: &[Option<RankEnd>]| {
            let text = report(EndCause::TimedOut, ends, &[]);
            text.lines().nth(1).unwrap().to_string()
        };
        assert_eq!(said(&[term, term]), "phalanx: ranks 0-1 ended on request (SIGTERM)");
        assert_eq!(
            said(&[killed(None, true), killed(None, true), killed(None, false), killed(None, false)]),
            "phalanx: ranks 0-1 had already been killed by SIGKILL; ranks 2-3 were killed by SIGKILL"
        );
        let by_us = killed(Some(JobSignal::Kill), false);
        assert_eq!(
            said(&[term, by_us, by_us, end(Ending::Code(0), Some(JobSignal::Int), false)]),
            "phalanx: rank 0 ended on request (SIGTERM); rank 1 did not end on request and was killed by the launcher; \
             rank 2 was frozen, and ended by the launcher; rank 3 ended on request with code 0"
        );
        let by_others = killed(Some(JobSignal::Term), false);
        assert_eq!(
            said(&[by_others, by_others]),
            "phalanx: ranks 0-1 were killed by SIGKILL after the request to end"
        );
    }

    #[test]
    fn whom_the_ranks_blame_is_named_with_what_became_of_it() {
        let code_0 = end(Ending::Code(0), None, true);
        let killed = end(Ending::Signal(SIGKILL), Some(JobSignal::Kill), false);
        let thawed = end(Ending::Code(1), None, false);
        let asked = end(Ending::Signal(15), Some(JobSignal::Term), false);
        for (charge, end, said) in [
            (Charge::Gone, code_0, "exited with code 0 while others still waited for it"),
            (Charge::Gone, asked, "left while others still waited for it, and ended on request (SIGTERM)"),
            (Charge::Frozen, killed, "was frozen, and ended by the launcher"),
            (Charge::Frozen, thawed, "was frozen, and exited with code 1"),
            (Charge::CutOff, thawed, "was cut off from the others, and exited with code 1"),
            (Charge::Failed, None, "failed, and did not confirm the end"),
        ] {
            let ends = [thawed, end];
            let text = report(EndCause::Blamed { rank: Rank(1), charge, end }, &ends, &["Boom"]);
            assert_eq!(
                text,
                format!(
                    "phalanx: rank 1 on n0 (pid 77) {said}, after 1.2 s\n\
                     phalanx: rank 0 exited with code 1\n\
                     phalanx: the last lines of rank 1 on n0 on stderr:\n  | Boom\n"
                ),
                "END-4"
            );
        }
    }

    #[test]
    fn a_single_rank_has_no_others() {
        let ends = [end(Ending::Signal(9), None, true)];
        let plan = WorldPlan::fill(&parse_list("n0").unwrap(), 1, "-H").unwrap();
        let text = summary(&Ended {
            plan: &plan,
            cause: EndCause::Failed { rank: Rank(0), ending: Ending::Signal(9) },
            ends: &ends,
            pids: &[None],
            tails: None,
            host_words: &[],
            blamed: None,
            failures: &Failures::default(),
            after: Duration::ZERO,
        });
        assert_eq!(text, "phalanx: rank 0 on n0 was killed by SIGKILL after 0.0 s\n");
    }

    #[test]
    fn lost_hosts_timeouts_and_signals_are_said() {
        let lost = Some(RankEnd { ending: None, asked: None, early: true });
        let ends = [end(Ending::Code(1), None, false), end(Ending::Code(1), None, false), lost, lost];
        assert_eq!(
            report(EndCause::HostLost { host: 1 }, &ends, &[]),
            "phalanx: lost host n1 with ranks 2-3 after 1.2 s\n  | connection reset\n\
             phalanx: ranks 0-1 exited with code 1\n"
        );
        assert!(
            report(EndCause::TimedOut, &[None; 2], &[]).starts_with("phalanx: --timeout: the job was ended")
        );
        assert!(
            report(EndCause::Asked(2), &[None; 2], &[]).starts_with("phalanx: ended by SIGINT after 1.2 s\n")
        );
        assert_eq!(report(EndCause::OutputClosed, &[None; 2], &[]), "");
    }

    #[test]
    fn lists_of_ranks_are_short() {
        assert_eq!(list([4]), "rank 4");
        assert_eq!(list(0..5), "ranks 0-4");
        assert_eq!(list([0, 2, 3, 9]), "ranks 0,2-3,9");
    }
}
