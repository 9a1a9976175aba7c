//! A disk that is full, and a limit on the size of files.

use crate::support::{TempDir, about, child, leftovers, orders, state_of};
use phalanx_checkpoint::{Checkpoints, OwnedTensors, Strictness, TensorInfo};
use phalanx_core::DType;
use std::process::{Command, Output};

fn infos(n: usize) -> Vec<TensorInfo> {
    vec![TensorInfo::new("w", DType::F32, [n]), TensorInfo::new("b", DType::F32, [8])]
}

/// The child: a save that fits, one that does not, and one that fits again.
#[test]
fn saver() {
    let Some(dir) = orders() else { return };
    let checkpoints = Checkpoints::create(&dir).expect("a directory");
    checkpoints.save(about(1), &state_of(&infos(10_000), 1)).expect("there is room for this");
    let error =
        checkpoints.save(about(2), &state_of(&infos(1_000_000), 2)).expect_err("there is no room for this");
    println!("says: {error}");
    assert_eq!(leftovers(&dir), [""; 0], "the draft has been removed");
    let mut got = OwnedTensors::zeros(infos(10_000));
    let restored = checkpoints.load_newest(&mut got, Strictness::Exact).expect("it is intact").expect("one");
    assert_eq!((restored.checkpoint.step(), restored.skipped.len()), (1, 0));
    assert!(got == state_of(&infos(10_000), 1));
    checkpoints.save(about(3), &state_of(&infos(10_000), 3)).expect("there is room again");
}

/// The child under a shell that limits it.
fn limited(with: &[&str], script: &str, dir: &TempDir) -> Output {
    let inner = child("full_disk::saver", dir.path());
    let mut command = Command::new(with[0]);
    command.args(&with[1..]).args(["sh", "-c", &format!("{script} && exec \"$@\"")]).arg("sh");
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        command.env(name, value.expect("a value"));
    }
    command.output().expect("a shell")
}

fn judged(output: &Output, says: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find(|line| line.contains("says: ")).unwrap_or_default();
    assert!(line.contains(says) && line.contains("shard-0-of-1.safetensors"), "{text}");
}

/// CKPT-5.
#[test]
fn a_full_disk_is_named_and_costs_one_save() {
    let dir = TempDir::new();
    let can_mount = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success());
    if !can_mount {
        println!("skipped: this needs a mount namespace of its own");
        return;
    }
    let mount = format!("mount -t tmpfs -o size=1m none {}", dir.path().display());
    let output = limited(&["unshare", "-m"], &mount, &dir);
    judged(&output, "the disk is full: cannot write");
}

/// CKPT-5.
#[test]
fn a_file_that_may_not_grow_is_named_and_costs_one_save() {
    let dir = TempDir::new();
    let output = limited(&["env"], "trap '' XFSZ && ulimit -f 1024", &dir);
    judged(&output, "File too large");
}
