//! How jobs end under Slurm: `scancel`, signals ahead of a time limit, a rank that is killed.

use super::{slurm::Slurm, slurm_jobs::NEEDS};
use crate::launch::{
    netns::{binary, many_sizes},
    support::{DEADLINE, Running, eventually, finish, is_alive, kill},
};
use std::fs;

/// A rank that writes every signal down. After SIGTERM it takes longer to end than an agent grants where there is no Slurm.
const RANK: &str = "\
out=$1/signals.$PHALANX_RANK; term=0
trap 'echo TERM >> $out; term=1' TERM
trap 'echo USR1 >> $out' USR1
trap 'echo USR2 >> $out' USR2
echo $$ > $1/pid.$PHALANX_RANK
while [ $term = 0 ]; do sleep 0.1; done
n=0; while [ $n -lt 25 ]; do sleep 0.1; n=$((n + 1)); done
echo saved >> $out";

/// What ranks wrote down, and whether they live.
struct Ranks<'a> {
    slurm: &'a Slurm,
    n: usize,
}

impl Ranks<'_> {
    fn file(&self, name: &str, rank: usize) -> String {
        fs::read_to_string(self.slurm.dir.0.join(format!("{name}.{rank}"))).unwrap_or_default()
    }

    fn pids(&self) -> Vec<u32> {
        (0..self.n).filter_map(|rank| self.file("pid", rank).trim().parse().ok()).collect()
    }

    fn wait_until_they_run(&self) {
        eventually(DEADLINE, "all ranks run", || self.pids().len() == self.n);
    }

    fn wait_until_all_wrote(&self, want: &str) {
        let wrote = || (0..self.n).map(|rank| self.file("signals", rank)).collect::<Vec<_>>();
        eventually(DEADLINE, &format!("{want:?} on every rank, {:?}", wrote()), || {
            wrote().iter().all(|signals| signals == want)
        });
    }

    fn forget(&self) {
        for rank in 0..self.n {
            let _ = fs::remove_file(self.slurm.dir.0.join(format!("signals.{rank}")));
            let _ = fs::remove_file(self.slurm.dir.0.join(format!("pid.{rank}")));
        }
    }
}

impl Slurm {
    /// No job, no rank and no agent is left on any host.
    fn assert_nothing_is_left(&self, pids: &[u32]) {
        eventually(DEADLINE, "no job is left", || finish(self.command("squeue").arg("-h")).stdout.is_empty());
        assert!(pids.iter().all(|&pid| !is_alive(pid)), "{pids:?}");
        let agents = || {
            let list =
                finish(std::process::Command::new("pgrep").args(["-f", &format!("^{} agent", binary())]));
            let ours = |pid: &&str| {
                let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                String::from_utf8_lossy(&environ).contains(&self.site.hosts.names[0])
            };
            list.stdout.lines().filter(ours).count()
        };
        eventually(DEADLINE, "no agent is left", || agents() == 0);
    }
}

#[test]
fn scancel_and_signals_reach_every_rank_once_and_nothing_is_left() {
    let Some(slurm) = Slurm::start("e", &NEEDS) else { return };
    let (us, dir) = (binary(), slurm.dir.path(""));
    let rank = slurm.dir.script("rank", RANK);
    let run = format!("exec {us} run -- {rank} {dir}");
    // On two hosts through srun, on one without.
    for (flags, n) in [(["-N2", "-n4"], 4), (["-N1", "-n2"], 2)] {
        let ranks = Ranks { slurm: &slurm, n };
        ranks.forget();
        let job = slurm.submit(&flags, &run);
        ranks.wait_until_they_run();
        let mut wrote = String::new();
        if n == 4 {
            // As with --signal=USR1@60: to the steps, not to the batch script.
            slurm.scancel(&["--signal=USR1", &job]);
            wrote += "USR1\n";
            ranks.wait_until_all_wrote(&wrote);
        }
        // As with --signal=B:USR2@60: to the batch script, which is the launcher.
        slurm.scancel(&["--batch", "--signal=USR2", &job]);
        wrote += "USR2\n";
        ranks.wait_until_all_wrote(&wrote);
        // As at the time limit: to every process of the job.
        slurm.scancel(&[&job]);
        wrote += "TERM\nsaved\n";
        ranks.wait_until_all_wrote(&wrote);
        slurm.assert_nothing_is_left(&ranks.pids());
        assert!(slurm.is_in_state(&job, "CANCELLED"), "AGENT-3: {}", slurm.job(&job));
        assert!(slurm.said().contains("SIGTERM"), "{}", slurm.said());
        ranks.wait_until_all_wrote(&wrote);
    }

    // salloc does not tell the command that its allocation is gone: agents do.
    let ranks = Ranks { slurm: &slurm, n: 4 };
    ranks.forget();
    let mut command = slurm.command("salloc");
    let shell = format!("echo $SLURM_JOB_ID; hostname login; exec {us} run -- {rank} {dir}");
    let mut alloc = Running::start(command.args(["-Q", "-N2", "-n4", "sh", "-c", &shell]));
    let job = alloc.line();
    ranks.wait_until_they_run();
    slurm.scancel(&[&job]);
    ranks.wait_until_all_wrote("TERM\nsaved\n");
    let done = alloc.finish();
    assert!(done.stderr.contains("SIGTERM"), "{done:?}");
    slurm.assert_nothing_is_left(&ranks.pids());

    // The launcher itself is killed: its agents notice.
    ranks.forget();
    let job = slurm.submit(&["-N2", "-n4"], &format!("echo launcher $$; {run}"));
    ranks.wait_until_they_run();
    let said = slurm.said();
    let launcher = said.lines().find_map(|l| l.strip_prefix("launcher ")?.parse().ok());
    kill(launcher.unwrap_or_else(|| panic!("{said}")), "KILL");
    slurm.assert_nothing_is_left(&ranks.pids());
    assert!(slurm.is_in_state(&job, "FAILED"), "{}", slurm.job(&job));
}

/// Slurm counts limits in minutes and looks at them twice a minute. So the warning comes at the first look, and then the end is moved to now.
#[test]
fn a_time_limit_warns_the_ranks_and_ends_them_after_they_have_saved() {
    if std::env::var_os("PHALANX_TEST_TIME_LIMIT").is_none() {
        eprintln!("skipped: a time limit of Slurm takes a minute; `cargo xtask engines` waits for one");
        return;
    }
    let Some(slurm) = Slurm::start("l", &NEEDS) else { return };
    let rank = slurm.dir.script("rank", RANK);
    let run = format!("exec {} run -- {rank} {}", binary(), slurm.dir.path(""));
    let ranks = Ranks { slurm: &slurm, n: 4 };
    let job = slurm.submit(&["-N2", "-n4", "--time=1", "--signal=USR1@60"], &run);
    ranks.wait_until_they_run();
    ranks.wait_until_all_wrote("USR1\n");
    let end = finish(slurm.command("scontrol").args(["update", &format!("JobId={job}"), "EndTime=now"]));
    assert_eq!(end.code, Some(0), "{end:?}");
    // Slurm itself sends SIGTERM twice then, within milliseconds.
    let saved = |rank| {
        let signals = ranks.file("signals", rank);
        let mut lines: Vec<&str> = signals.lines().collect();
        lines.dedup();
        lines == ["USR1", "TERM", "saved"]
    };
    eventually(DEADLINE, "all ranks have saved", || (0..4).all(saved));
    slurm.assert_nothing_is_left(&ranks.pids());
    assert!(slurm.is_in_state(&job, "TIMEOUT"), "AGENT-3: {}", slurm.job(&job));
    assert!(slurm.said().contains("DUE TO TIME LIMIT"), "{}", slurm.said());
    assert!(slurm.said().contains("phalanx: ranks 0-3 ended on request with code 0"), "{}", slurm.said());
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others_and_nothing_is_left() {
    let Some(slurm) = Slurm::start("z", &NEEDS) else { return };
    let (us, sizes) = (binary(), many_sizes());
    // Slurm ends the others with SIGTERM; so that they can say what they know, they do not heed it.
    let told = "trap '' TERM; echo rank ${SLURM_PROCID:-$PHALANX_RANK} is $$; exec \"$@\" 2>\"$0.${SLURM_PROCID:-$PHALANX_RANK}\"";
    let words = slurm.site.words();
    let rank = ["sh", "-c", told, &words, &us, "bench", "--json", "--seconds", "0.2", "--sizes", &sizes];
    let srun = ["srun", "-Q", "--kill-on-bad-exit=1"];
    let (pmi2, plain) = ([&srun[..], &["--mpi=pmi2"]].concat(), srun.to_vec());
    let ours = vec![us.as_str(), "run", "--tag-output", "never"];
    for (launcher, secret) in [(pmi2, None), (plain, Some("correct horse battery staple")), (ours, None)] {
        let mut command = slurm.command("salloc");
        command.args(["-Q", "-N2", "-n4"]).args(&launcher).args(rank).env("PHALANX_LOG", "off");
        command.envs(secret.map(|secret| ("PHALANX_SECRET", secret)));
        let mut job = Running::start(&mut command);
        let (mut pids, mut n_rows) = ([0; 4], 0);
        while n_rows < 2 || pids.contains(&0) {
            let line = job.line();
            n_rows += usize::from(line.contains("\"bytes\":"));
            if let [_, rank, _, pid] = line.split(' ').collect::<Vec<_>>()[..] {
                pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
            }
        }
        kill(pids[1], "KILL");
        let done = job.finish();
        assert_eq!(done.code, Some(137), "{launcher:?} {done:?}");
        assert_eq!(slurm.site.n_said("rank 1 is lost"), 3, "{launcher:?} {done:?}");
        assert!(launcher[0] == "srun" || done.stderr.contains("phalanx: rank 1 on "), "{done:?}");
        slurm.assert_nothing_is_left(&pids);
        for rank in 0..4 {
            let _ = fs::remove_file(format!("{words}.{rank}"));
        }
    }
}
