//! A process that forks while its engine lives, as programs in other languages do.

use super::worker::{ones, say};
use crate::processes::{Job, Spec};
use phalanx_collective::engine::{Engine, EngineError};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::time::{Duration, Instant};

/// The scene: forks, asks in the child, and goes on in the parent.
pub fn fork_with(engine: Engine) {
    let request = || engine.submit(ones("x")).and_then(|handle| handle.wait().map(|_| ()));
    request().expect("nothing is wrong yet");
    // SAFETY: the child calls what a forked program would, allocates (glibc's heap survives a fork), and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(engine.submit(ones("x")), Err(EngineError::Forked));
        let no_join = matches!(engine.join(), Err(EngineError::Forked));
        drop(engine);
        std::process::exit(i32::from(!(refused && no_join)));
    }
    let child = Pid::from_raw(child).expect("a fork succeeds");
    let deadline = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match waitpid(Some(child), WaitOptions::NOHANG).expect("it is our child") {
            Some((_, status)) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::park_timeout(Duration::from_millis(5)),
        }
    };
    say(format!("child {:?}", status.and_then(|s| s.exit_status())));
    request().expect("the parent's engine goes on");
    match engine.shutdown() {
        Ok(_) => say("done"),
        Err(error) => say(format!("failed {error}")),
    }
}

#[test]
fn a_forked_child_is_refused_ends_normally_and_harms_nobody() {
    for hosts in [&[2u32][..], &[1, 1]] {
        let mut job = Job::start(Spec::new(hosts).with("PHALANX_TEST_SCENE", "forking"));
        for said in job.hear(&[0, 1], "child") {
            assert_eq!(said.rest, "Some(0)", "{}", job.story());
        }
        job.hear(&[0, 1], "done");
        job.finish();
    }
}
