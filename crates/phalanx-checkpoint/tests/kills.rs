//! Savers that are killed at random points of a save.

use crate::support::{Chance, TempDir, about, child, empty, leftovers, orders, state};
use phalanx_checkpoint::{
    CheckpointDraft, Checkpoints, Copied, Keep, Manifest, Part, ShardId, Strictness, share_out,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

const N_KILLS: usize = 1000;
const SEED: u64 = 20;
const FROM: &str = "PHALANX_TEST_FROM";

fn save(dir: &Path, step: u64) {
    let draft = CheckpointDraft::begin(dir, step).expect("a draft");
    let state = state(step);
    let records = (0..2).zip(share_out(&state.tensors(), 2)).map(|(index, slices)| {
        let mut copied = Copied::new();
        copied.copy(&state, &slices).expect("a copy");
        draft.write_copied(ShardId { index, of: 2, rank: index }, &copied).expect("a shard")
    });
    let manifest = Manifest::new(about(step), records.collect()).expect("all shards");
    draft.commit(&manifest).expect("a checkpoint");
}

/// The child: saves, each second step twice, until it is killed.
#[test]
fn saver() {
    let (Some(dir), Ok(from)) = (orders(), std::env::var(FROM)) else { return };
    let from: u64 = from.parse().expect("a step");
    let checkpoints = Checkpoints::open(&dir);
    let end = Instant::now() + Duration::from_secs(60);
    for step in from.. {
        save(&dir, step);
        if step % 2 == 0 {
            save(&dir, step);
        }
        checkpoints.retain(&Keep { last: 2, every: None }).expect("old ones go");
        if Instant::now() > end {
            return;
        }
    }
}

/// CKPT-1.
#[test]
fn a_killed_save_leaves_the_old_or_the_new_checkpoint() {
    println!("seed {SEED}");
    let dir = TempDir::new();
    let mut chance = Chance::new(SEED);
    let (mut newest, mut n_left_behind, mut n_saved) = (0, 0, 0);
    for kill in 0..N_KILLS {
        let mut command = child("kills::saver", dir.path());
        command.env(FROM, (newest + 1).to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut saver = command.spawn().expect("this program starts");
        let ended = pidfd_open(Pid::from_child(&saver), PidfdFlags::empty()).expect("the child is ours");
        let limit = Timespec { tv_sec: 0, tv_nsec: 1_000_000 + chance.below(12_000_000) as i64 };
        let n = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)).expect("poll");
        assert_eq!(n, 0, "kill {kill}: the saver ended by itself");
        saver.kill().expect("it lives");
        saver.wait().expect("it has ended");

        n_left_behind += usize::from(!leftovers(dir.path()).is_empty());
        let checkpoints = Checkpoints::open(dir.path());
        let mut got = empty();
        let Some(restored) = checkpoints.load_newest(&mut got, Strictness::Exact).expect("all are whole")
        else {
            assert_eq!(newest, 0, "kill {kill}: all checkpoints are gone");
            continue;
        };
        let step = restored.checkpoint.step();
        assert!(step >= newest && restored.skipped.is_empty(), "kill {kill}: {step} {newest} {restored:?}");
        assert!(got == state(step), "kill {kill}: step {step} has other content");
        n_saved += usize::from(step > newest);
        newest = step;
        if kill % 10 == 9 {
            Checkpoints::create(dir.path()).expect("swept");
            assert_eq!(leftovers(dir.path()), [""; 0], "kill {kill}");
        }
    }
    println!("{n_left_behind} of {N_KILLS} kills left something behind, {n_saved} came after a save");
    assert!(n_left_behind > N_KILLS / 20 && n_saved > N_KILLS / 20, "{n_left_behind} {n_saved}");
    Checkpoints::create(dir.path()).expect("swept");
    assert_eq!(leftovers(dir.path()), [""; 0]);
    let listed = Checkpoints::open(dir.path()).list().expect("a list");
    assert!(listed.len() <= 4 && listed.iter().all(|l| l.checkpoint.is_ok()), "{listed:?}");
}
