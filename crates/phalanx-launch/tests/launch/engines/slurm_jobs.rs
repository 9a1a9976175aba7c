//! `sbatch`, `salloc` and `phalanx run` in what they allocate. One cluster for several jobs: starting it takes longer than they do.

use super::{WORK, slurm::Slurm};
use crate::launch::{
    netns::binary,
    support::{DEADLINE, Done, eventually, finish},
};
use std::fs;

pub const NEEDS: [(&str, &str); 4] = [
    ("sbatch", "slurm-client"),
    ("salloc", "slurm-client"),
    ("scancel", "slurm-client"),
    ("scontrol", "slurm-client"),
];

impl Slurm {
    /// Runs a batch script to its end, and returns what it said; its errors, too, are in `stdout`.
    pub fn batch(&self, flags: &[&str], script: &str) -> Done {
        let (path, out) = (self.dir.script("batch", script), self.dir.path("batch.out"));
        let _ = fs::remove_file(&out);
        let mut command = self.command("sbatch");
        let mut done = finish(command.args(["-Q", "-W", "-o", &out]).args(flags).arg(path));
        done.stdout = fs::read_to_string(out).unwrap_or_default();
        done
    }

    /// Submits a batch script, and returns the job's number.
    pub fn submit(&self, flags: &[&str], script: &str) -> String {
        let (path, out) = (self.dir.script("batch", script), self.dir.path("batch.out"));
        let _ = fs::remove_file(&out);
        let mut command = self.command("sbatch");
        let args = ["--parsable", "--open-mode=append", "-o", &out];
        let done = finish(command.args(args).args(flags).arg(path));
        assert_eq!(done.code, Some(0), "{done:?}");
        done.stdout.trim().to_string()
    }

    /// What the batch script that was last submitted has said so far.
    pub fn said(&self) -> String {
        fs::read_to_string(self.dir.0.join("batch.out")).unwrap_or_default()
    }

    /// What the controller says about a job.
    pub fn job(&self, job: &str) -> String {
        finish(self.command("scontrol").args(["show", "job", job])).stdout
    }

    pub fn scancel(&self, args: &[&str]) {
        let done = finish(self.command("scancel").args(args));
        assert_eq!(done.code, Some(0), "{done:?}");
    }

    pub fn is_in_state(&self, job: &str, state: &str) -> bool {
        self.job(job).contains(&format!("JobState={state} "))
    }
}

/// Lines of four ranks on two hosts that have worked; the names of jobs that do so at once are before them.
fn n_worlds(said: &str) -> usize {
    let formed = said.lines().filter(|l| l.contains("world formed") && l.contains("hosts=2"));
    assert_eq!(formed.count() % 4, 0, "{said}");
    let rows = said.matches("\"transport\":\"shm+tcp\"").count();
    assert_eq!(rows % 2, 0, "{said}");
    assert_eq!(said.matches("\"np\":4,").count(), rows, "{said}");
    rows / 2
}

#[test]
fn a_batch_script_starts_ranks_with_srun_and_with_phalanx_run_and_several_at_once() {
    let Some(slurm) = Slurm::start("b", &NEEDS) else { return };
    let (us, work) = (binary(), WORK.join(" "));
    let names = slurm.site.hosts.names.join(",");
    let n1 = &slurm.site.hosts.names[0];
    let four = ["-N2", "-n4"];

    let done = slurm.batch(&four, &format!("{us} run -v -- {us} {work}"));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(n_worlds(&done.stdout), 1, "{done:?}");
    let told = "hosts and slots are those of Slurm job 1 (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE)";
    assert!(done.stdout.contains(told), "{done:?}");
    assert_eq!(done.stdout.matches("srun --jobid=1 --overlap").count(), 2, "REACH-2: {done:?}");

    // What is meant for programs does not reach the srun that starts an agent, and ranks know their job (SLURM-2).
    let odd = "export SLURM_LABELIO=1 SLURM_NTASKS_PER_NODE=7 SLURM_CPU_BIND=map_cpu:99 SLURM_STDINMODE=none SLURM_EXPORT_ENV=NONE";
    let show =
        "'echo $PHALANX_RANK/$PHALANX_SIZE $PHALANX_HOSTNAME $SLURMD_NODENAME $SLURM_ARRAY_TASK_ID $(cat)'";
    let script =
        format!("{odd} PHALANX_SECRET=x\necho word | {us} run --stdin all --tag-output never sh -c {show}");
    let done = slurm.batch(&["-N2", "-n3", "--array=5"], &script);
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    let [a, b] = [n1, &slurm.site.hosts.names[1]];
    let want = [format!("0/3 {a} {a} 5 word"), format!("1/3 {a} {a} 5 word"), format!("2/3 {b} {b} 5 word")];
    assert_eq!(lines, want, "{done:?}");

    // Two jobs of each kind at once, in one allocation: none meets another's ranks.
    let start = format!("{us} {work} 2>&1 &");
    let key = "export PHALANX_SECRET='correct horse battery staple'";
    let lines = [
        format!("{us} run -- {start}"),
        format!("{us} run -- {start}"),
        format!("srun --overlap --mpi=pmi2 {start}"),
        format!("srun --overlap --mpi=pmi2 {start}"),
        key.to_string(),
        format!("srun --overlap {start}"),
        format!("srun --overlap {start}"),
        "wait".to_string(),
    ];
    let done = slurm.batch(&four, &lines.join("\n"));
    assert_eq!((done.code, n_worlds(&done.stdout)), (Some(0), 6), "{done:?}");

    let wrong = [
        format!("{us} run -np 5 true"),
        "echo code $?".into(),
        format!("SLURM_JOB_NODELIST='n[3-1]' {us} run true"),
        "echo code $?".into(),
        format!("SLURM_TASKS_PER_NODE='2(x' {us} run true"),
        "echo code $?".into(),
        format!("srun -Q -n2 {us} run true"),
        "echo code $?".into(),
        // A task of its own is an ordinary shell, and hosts that are named are hosts that are named.
        format!("srun -Q -N1 -n1 {us} run --tag-output never sh -c 'echo one of $PHALANX_SIZE'"),
        format!("srun -Q -N2 -n2 {us} run -H localhost:1 echo mine"),
        format!("{us} run -np 3 -H {names} --slots-per-host 2 --tag-output never echo named"),
    ];
    let done = slurm.batch(&four, &wrong.join("\n"));
    let count = |text: &str| done.stdout.matches(text).count();
    assert_eq!(count("\ncode 2\n"), 4, "{done:?}");
    assert_eq!(
        count("-np 5 asks for more ranks than the 4 slots of the Slurm allocation; lower -np"),
        1,
        "{done:?}"
    );
    assert_eq!(
        count("SLURM_JOB_NODELIST=\"n[3-1]\" cannot be read, at character 3: a range ends"),
        1,
        "{done:?}"
    );
    assert_eq!(count("SLURM_TASKS_PER_NODE=\"2(x\" cannot be read, at character 1"), 1, "{done:?}");
    for task in 0..2 {
        let refused = format!("srun started this `phalanx run` as task {task} of 2, and each of them");
        assert_eq!(count(&refused), 1, "SLURM-3: {done:?}");
    }
    assert_eq!((count("one of 4"), count("mine\n"), count("named\n")), (4, 2, 3), "{done:?}");
}

#[test]
fn salloc_reaches_all_hosts_from_a_machine_that_is_none_of_them() {
    let Some(slurm) = Slurm::start("i", &NEEDS) else { return };
    let us = binary();
    let mut command = slurm.command("salloc");
    command.args(["-Q", "-N2", "-n4", "sh", "-c"]);
    // As on a login machine: neither the name nor an address is that of a node.
    let work = format!("hostname login; exec {us} run -- {us} {}", WORK.join(" "));
    let done = finish(command.arg(work));
    assert_eq!((done.code, n_worlds(&done.stdout)), (Some(0), 1), "{done:?}");
    slurm.site.assert_worked(&done, "at the launcher's address");

    // The exit code is the job's, and a host that cannot start ranks is named.
    let mut command = slurm.command("salloc");
    let done =
        finish(command.args(["-Q", "-N2", "-n4", &us, "run", "sh", "-c", "exit $((PHALANX_RANK * 3))"]));
    assert!(matches!(done.code, Some(3 | 6 | 9)), "{done:?}");
    let mut command = slurm.command("salloc");
    let done = finish(command.args(["-Q", "-N2", "-n4", &us, "run", "--remote-exe", "/no/phalanx", "true"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    // The second host is named, too, if its `srun` fails within half a second of the first.
    let is_named =
        |host: &String| done.stderr.contains(&format!("cannot start ranks on host {host}: `srun --jobid="));
    assert!(slurm.site.hosts.names.iter().any(is_named), "{done:?}");
    assert!(done.stderr.contains("/no/phalanx"), "{done:?}");
}

#[test]
fn a_job_that_is_requeued_ahead_of_its_limit_saves_and_runs_again() {
    let Some(slurm) = Slurm::start("q", &NEEDS) else { return };
    // As in docs/launching-slurm.md; the ranks save when they are asked to end, and are done the second time.
    let rank = "'trap \"echo rank $PHALANX_RANK saved; exit 0\" TERM; echo rank $PHALANX_RANK run ${SLURM_RESTART_COUNT:-0}
        [ -n \"$SLURM_RESTART_COUNT\" ] || while :; do sleep 0.1; done'";
    let script = format!(
        "{} run --tag-output never -- sh -c {rank} &\njob=$!\n\
         again() {{ trap '' USR1; kill -TERM $job; wait $job; echo code $?; scontrol requeue $SLURM_JOB_ID; }}\n\
         trap again USR1\nwait $job",
        binary()
    );
    let job = slurm.submit(&["-N2", "-n4", "--requeue"], &script);
    let all_said = |what: &str| (0..4).all(|rank| slurm.said().contains(&format!("rank {rank} {what}\n")));
    eventually(DEADLINE, "all ranks run", || all_said("run 0"));
    slurm.scancel(&["--batch", "--signal=USR1", &job]);
    eventually(DEADLINE, "all ranks save", || all_said("saved"));
    eventually(DEADLINE, "the job waits again", || slurm.is_in_state(&job, "PENDING"));
    assert!(slurm.said().contains("\ncode 143\n"), "END-7: {}", slurm.said());
    // Slurm lets a job that was requeued wait for two minutes.
    let now = finish(slurm.command("scontrol").args(["update", &format!("JobId={job}"), "StartTime=now"]));
    assert_eq!(now.code, Some(0), "{now:?}");
    eventually(DEADLINE, "all ranks run again", || all_said("run 1"));
    eventually(DEADLINE, "the job is complete", || slurm.is_in_state(&job, "COMPLETED"));
    assert!(slurm.job(&job).contains("Restarts=1"), "{}", slurm.job(&job));
}
