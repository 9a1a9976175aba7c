//! `-mode p`: ways are tried in the first calls, the same on all ranks, then kept; a file keeps them for the next run.

use crate::support::run_owners;
use phalanx_collective::{
    Communicator,
    ddl::{DdlWish, UsedWays, wire},
};
use phalanx_core::ReduceOp;
use std::path::PathBuf;

/// A file of this process that does not exist yet.
fn new_file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("phalanx-explore-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn explores(comm: &mut Communicator, shape: &str) -> Result<(), String> {
    let options = format!("-mode p:{shape}");
    let told = DdlWish { options: &options, ..DdlWish::default() };
    wire(comm, &told).map(drop).map_err(|e| e.to_string())
}

/// A call; whether it was right.
fn sum(comm: &mut Communicator, len: usize) -> bool {
    let mut data: Vec<f32> = (0..len).map(|i| (i % 5) as f32 + comm.rank().0 as f32).collect();
    comm.allreduce(&mut data, ReduceOp::Sum).unwrap();
    let n = comm.size() as f32;
    data.iter().enumerate().all(|(i, x)| *x == n * (i % 5) as f32 + n * (n - 1.0) / 2.0)
}

/// More than a size needs until its ways are kept: six candidates, four calls each.
const CALLS: usize = 30;

#[test]
fn every_call_is_right_while_ways_are_tried_and_what_is_found_is_saved_and_used_again() {
    let path = new_file("kept");
    let file = path.to_str().unwrap().to_string();
    let settings = [("PHALANX_EXPLORE", file.as_str())];
    let run = move || {
        run_owners(&[2, 2, 2], &settings, |mut comm| {
            explores(&mut comm, "2x3").unwrap();
            let wiring = comm.wiring().expect("it has a shape").clone();
            let used = UsedWays::new(&comm, &wiring);
            let before = used.now();
            // Sizes come in any order; small ones go another way.
            let mut sent = Vec::new();
            for i in 0..CALLS {
                assert!(sum(&mut comm, 50_000) && sum(&mut comm, 40_000 + i) && sum(&mut comm, 7));
                sent.push(comm.traffic().iter().map(|t| t.messages).sum::<u64>());
            }
            assert!(!used.now().contains(&"exploring"), "all sizes are settled: {:?}", used.now());
            (before, sent)
        })
    };
    let (before, tried): (Vec<_>, Vec<_>) = run().into_iter().unzip();
    assert!(before.iter().all(|used| *used == ["exploring", "exploring"]), "reports say so: {before:?}");
    // EXPLORE-1: other ways are other messages, and all ranks change together or the sums would not have come.
    let steps = |sent: &[u64]| sent.windows(2).map(|w| w[1] - w[0]).collect::<Vec<_>>();
    let early: std::collections::BTreeSet<u64> = steps(&tried[0])[..20].iter().copied().collect();
    assert!(early.len() > 1, "several ways were tried: {early:?}");
    let late = steps(&tried[0])[24..].to_vec();
    assert!(late.iter().all(|n| *n == late[0]), "one is kept: {late:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"tiers\":\"2x3\",\"op\":\"allreduce\",\"bytes\":262144"), "{text}");
    let (before, again): (Vec<_>, Vec<_>) = run().into_iter().unzip();
    assert!(before[0].iter().all(|way| *way != "exploring"), "what the file says is shown: {before:?}");
    let first = steps(&again[0]);
    assert!(first.iter().all(|n| *n == first[0]), "nothing is tried again: {first:?}");
    assert_eq!(first[0], late[0], "and the same ways are used");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ranks_that_do_not_all_explore_are_told_so() {
    let said = run_owners(&[2, 2], &[], |mut comm| {
        let options = if comm.rank().0 == 2 { "-mode n:2x2" } else { "-mode p:2x2" };
        let told = DdlWish { options, ..DdlWish::default() };
        wire(&mut comm, &told).unwrap_err().to_string()
    });
    let says = "ranks 0 and 2 were started with different options: all ranks give the same ones";
    assert!(said.iter().all(|s| s == says), "{said:?}");
}

#[test]
fn a_file_of_other_hosts_or_of_something_else_is_refused_on_all_ranks() {
    let path = new_file("other");
    let file = path.to_str().unwrap().to_string();
    for (text, says) in [
        ("{\"explored\":1,\"hosts\":[[\"elsewhere\",4]]}\n", "was made on elsewhere:4, and this world has "),
        ("hello\n", "line 1 is not what exploring writes: remove the file, or name another one"),
    ] {
        std::fs::write(&path, text).unwrap();
        let said = run_owners(&[2, 1], &[("PHALANX_EXPLORE", &file)], |mut comm| {
            let said = explores(&mut comm, "3").unwrap_err();
            assert!(sum(&mut comm, 1000), "the communicator stays usable");
            said
        });
        assert!(
            said.iter().all(|s| s.contains(says) && s.contains(path.to_str().unwrap())),
            "EXPLORE-2: {said:?}"
        );
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let said =
        run_owners(&[1, 1], &[("PHALANX_EXPLORE", &file)], |mut comm| explores(&mut comm, "2").unwrap_err());
    assert!(said.iter().all(|s| s.starts_with("PHALANX_EXPLORE: cannot read ")), "{said:?}");
    std::fs::remove_dir(&path).unwrap();
}
