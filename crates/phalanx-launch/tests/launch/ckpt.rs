//! `phalanx ckpt` on directories with good and damaged checkpoints.

use crate::launch::support::{Done, TempDir, finish, phalanx};
use phalanx_checkpoint::{About, Checkpoints, OwnedTensors, TensorInfo, mark_done};
use phalanx_core::DType;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn ckpt(verb: &str, path: &Path, json: bool) -> Done {
    let path = path.display().to_string();
    let mut args = vec!["ckpt", verb, &path];
    args.extend(json.then_some("--json"));
    finish(&mut phalanx(&args))
}

/// Steps 10 and 20, each with 400 bytes of `w` and 8 of `n`.
fn saved(dir: &Path) {
    let mut state = OwnedTensors::new();
    state.insert(TensorInfo::new("w", DType::F32, [4, 25]), vec![7; 400]);
    state.insert(TensorInfo::new("n", DType::I64, []).owned_by(0), vec![1; 8]);
    let checkpoints = Checkpoints::create(dir).unwrap();
    for step in [10, 20] {
        let about =
            About { step, epoch: 1, seed: 3, world: 1, extra: json!({ "rate": 0.5 }), ..About::default() };
        checkpoints.save(about, &state).unwrap();
    }
}

fn lines(done: &Done) -> Vec<Value> {
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn good_checkpoints_are_listed_shown_and_verified() {
    let temp = TempDir::new();
    let dir = PathBuf::from(temp.path("run"));
    saved(&dir);
    let done = ckpt("list", &dir, false);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let table: Vec<Vec<&str>> = done.stdout.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(table[0], ["step", "epoch", "ranks", "shards", "tensors", "size", "state"]);
    assert_eq!((table[1][0], table[2][0], table[2][4], table[2][7]), ("10", "20", "2", "whole"));
    let steps: Vec<Value> = lines(&ckpt("list", &dir, true)).iter().map(|l| l["step"].clone()).collect();
    assert_eq!(steps, [10, 20]);

    let done = ckpt("show", &dir, false);
    for says in
        ["step       20", "extra      {\"rate\":0.5}", "w       f32[4, 25]  400 B  0", "0 (of rank 0)"]
    {
        assert!(done.stdout.contains(says), "{says}: {}", done.stdout);
    }
    let shown = lines(&ckpt("show", &dir.join("checkpoint-10"), true));
    assert_eq!((&shown[0]["step"], &shown[0]["tensors"][1]["name"]), (&json!(10), &json!("w")));

    let done = ckpt("verify", &dir, false);
    assert_eq!(done.code, Some(0), "{}", done.stdout);
    assert_eq!(done.stdout.matches(": ok, ").count(), 2, "{}", done.stdout);
    mark_done(&dir).unwrap();
    assert!(ckpt("list", &dir, false).stdout.contains("Training has ended"));
}

#[test]
fn a_damaged_file_is_named_with_its_tensor_and_fails() {
    let temp = TempDir::new();
    let dir = PathBuf::from(temp.path("run"));
    saved(&dir);
    let shard = dir.join("checkpoint-20/shard-0-of-1.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, &bytes).unwrap();
    for path in [dir.clone(), dir.join("checkpoint-20")] {
        let done = ckpt("verify", &path, false);
        assert_eq!(done.code, Some(1), "{}", done.stdout);
        let says = format!(
            "step 20: {} is damaged: its content does not match its digest\n    tensor w\n",
            shard.display()
        );
        assert!(done.stdout.contains(&says), "{}", done.stdout);
    }
    let verdicts = lines(&ckpt("verify", &dir, true));
    assert_eq!((&verdicts[0]["ok"], &verdicts[1]["ok"]), (&json!(true), &json!(false)));
    assert_eq!(verdicts[1]["damage"][0]["tensors"], json!(["w"]));

    fs::remove_file(&shard).unwrap();
    let done = ckpt("list", &dir, false);
    assert!(
        done.code == Some(0) && done.stdout.contains("NOT WHOLE") && done.stdout.contains("does not exist")
    );
    assert!(done.stdout.contains("`latest` is wrong: it names step 20, which is damaged"), "{}", done.stdout);
    assert!(ckpt("show", &dir, false).stdout.contains("step       10"));
}

#[test]
fn a_directory_without_checkpoints_is_answered_with_what_to_write() {
    let temp = TempDir::new();
    for verb in ["list", "show", "verify"] {
        for path in [temp.path(""), temp.path("nothing")].map(PathBuf::from) {
            let done = ckpt(verb, &path, false);
            assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{}", done.stderr);
            let says = "has no checkpoints; write the directory in which a training saves";
            assert!(done.stderr.contains(says), "{verb}: {}", done.stderr);
        }
        let done = ckpt(verb, Path::new(&temp.path("checkpoint-3")), false);
        assert_eq!(done.code, Some(2), "{}", done.stdout);
        assert!(
            done.stderr.contains("cannot open") && done.stderr.contains("checkpoint-3"),
            "{}",
            done.stderr
        );
    }
}
