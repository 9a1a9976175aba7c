use super::{
    clock, join,
    late::Report,
    read::{self, Trace, TraceError},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const EPOCH_US: i64 = 1_700_000_000_000_000;
const N_OPERATIONS: u64 = 40;

/// A small generator, so that leaving times differ a little.
fn jitter(seed: u64) -> f64 {
    (seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407) >> 40) as f64 / (1 << 24) as f64
}

/// The file of a rank whose clock is ahead by this much and whose timeline began this long after the first one's. Every millisecond the ranks
/// run an operation; rank 2 submits the tensor `slow` 250 us later than the others.
fn file(rank: u32, ahead_us: f64, began_us: f64) -> String {
    let epoch = EPOCH_US + (ahead_us + began_us) as i64;
    let mut events = vec![json!({ "name": "process_name", "ph": "M", "pid": 0, "args":
        { "name": "engine", "rank": rank, "size": 3, "start_time_since_epoch_in_micros": epoch } })];
    for (pid, name) in [(1, "quick"), (2, "slow")] {
        events.push(json!({ "name": "process_name", "ph": "M", "pid": pid, "args": { "name": name } }));
        events.push(
            json!({ "name": "process_sort_index", "ph": "M", "pid": pid, "args": { "sort_index": pid } }),
        );
    }
    for number in 0..N_OPERATIONS {
        let pid = number % 2 + 1;
        let true_us = 1000.0 * (number + 1) as f64 - began_us;
        // A rank that began later missed the first ones.
        if true_us < 0.0 {
            continue;
        }
        let late = if rank == 2 && pid == 2 { 250.0 } else { f64::from(rank) };
        let ended = true_us + 400.0 + 20.0 * jitter(number * 7 + u64::from(rank));
        let mut event = |name: &str, ph: &str, ts: f64, args: Value| {
            events.push(json!({ "name": name, "ph": ph, "ts": ts, "pid": pid, "tid": pid, "args": args }));
        };
        event("NEGOTIATE_ALLREDUCE", "B", true_us + late, json!({}));
        event("NEGOTIATE_ALLREDUCE", "E", true_us + 300.0, json!({}));
        event("ALLREDUCE", "B", true_us + 300.0, json!({}));
        event("ALLREDUCE", "E", ended, json!({ "dtype": "f32", "operation": number }));
    }
    events.push(json!({ "name": "CYCLE_START", "ph": "i", "ts": 1.5, "pid": 0, "tid": 0, "s": "p" }));
    Value::from(events).to_string()
}

fn parse(text: &str) -> Result<Trace, TraceError> {
    read::parse(Path::new("t.json"), text.as_bytes())
}

/// Three ranks; rank 1's clock is 3 s ahead, rank 2's is 2 ms behind and its timeline began later.
fn three() -> Vec<Trace> {
    [(0, 0.0, 0.0), (1, 3e6, 0.0), (2, -2000.0, 3500.0)]
        .map(|(rank, ahead, began)| parse(&file(rank, ahead, began)).unwrap())
        .into()
}

#[test]
fn clocks_that_differ_by_seconds_are_set_right() {
    let offsets = clock::offsets(&three());
    for (found, want) in offsets.iter().zip([0.0, 3e6, -2000.0]) {
        assert!((found.unwrap() - want).abs() < 20.0, "{found:?} instead of {want}");
    }
}

/// CLOCK-1.
#[test]
fn nobody_leaves_before_everybody_has_come() {
    // When each operation was submitted and left.
    let text = |rank: u32, times: &[(f64, f64)]| {
        let head = json!({ "name": "process_name", "ph": "M", "pid": 0, "args":
            { "rank": rank, "start_time_since_epoch_in_micros": 5 } });
        let operations = times.iter().enumerate().flat_map(|(number, (submitted, ended))| {
            [
                json!({ "name": "NEGOTIATE_BARRIER", "ph": "B", "ts": submitted, "pid": 1 }),
                json!({ "name": "NEGOTIATE_BARRIER", "ph": "E", "ts": ended, "pid": 1 }),
                json!({ "name": "BARRIER", "ph": "E", "ts": ended, "pid": 1, "args": { "operation": number } }),
            ]
        });
        Value::from_iter(std::iter::once(head).chain(operations)).to_string()
    };
    let offset = |first: &[(f64, f64)], other: &[(f64, f64)]| {
        let traces = [parse(&text(0, first)).unwrap(), parse(&text(1, other)).unwrap()];
        clock::offsets(&traces)[1].unwrap()
    };
    let first = [(0.0, 10.0), (20.0, 30.0), (40.0, 50.0)];
    assert_eq!(offset(&first, &[(80.0, 90.0), (100.0, 110.0), (120.0, 130.0)]), 80.0);
    // The ends say 80, but with more than 50 rank 1 would have left the last one before rank 0 had submitted it.
    assert_eq!(offset(&first, &[(50.0, 90.0), (60.0, 110.0), (70.0, 90.0)]), 50.0);
    // The ends say -80, but with less than -30 rank 1 would have submitted the first one after rank 0 had left it.
    let longer = [(0.0, 10.0), (20.0, 100.0), (110.0, 190.0)];
    assert_eq!(offset(&longer, &[(-20.0, -15.0), (10.0, 20.0), (100.0, 110.0)]), -30.0);
    // No offset makes sense of both: the median stays.
    assert_eq!(offset(&first, &[(80.0, 90.0), (100.0, 110.0), (20.0, 30.0)]), 80.0);
}

#[test]
fn the_late_rank_is_found_whatever_the_clocks_say() {
    let traces = three();
    let report = Report::new(&traces, &clock::offsets(&traces), None);
    // Rank 2 began after three operations; the other two ranks have these in common.
    assert_eq!(report.n_compared, N_OPERATIONS as usize);
    let slow = &report.tensors[0];
    assert_eq!((slow.tensor.as_str(), slow.last_rank, slow.operations), ("slow", 2, 20));
    assert_eq!(slow.times_last, 19);
    assert!((slow.late_mean_us - 249.0).abs() < 40.0 && slow.late_max_us < 290.0, "{slow:?}");
    let rank = &report.ranks[2];
    assert!(rank.times_last >= 19, "{rank:?}");
    assert!((rank.waited_for_us - 19.0 * 499.0).abs() < 19.0 * 80.0, "{rank:?}");
    let text = report.to_string();
    assert!(text.contains("     2") && text.contains("  slow") && text.contains("+3.000 s"), "{text}");
    let machine: Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!((&machine["tensors"][0]["last_rank"], &machine["ranks"][1]["rank"]), (&2.into(), &1.into()));
}

/// A rank that is late with everything it has makes the others wait once, not once for each tensor.
#[test]
fn a_moment_in_which_many_tensors_wait_counts_once() {
    let text = |rank: u32, submitted: [f64; 3]| {
        let head = json!({ "name": "process_name", "ph": "M", "pid": 0, "args":
            { "rank": rank, "start_time_since_epoch_in_micros": 5 } });
        let operations = submitted.iter().zip(1..).flat_map(|(at, pid)| {
            [
                json!({ "name": "process_name", "ph": "M", "pid": pid, "args": { "name": format!("x{pid}") } }),
                json!({ "name": "NEGOTIATE_ALLREDUCE", "ph": "B", "ts": at, "pid": pid }),
                json!({ "name": "NEGOTIATE_ALLREDUCE", "ph": "E", "ts": 500.0, "pid": pid }),
                json!({ "name": "ALLREDUCE", "ph": "E", "ts": 500.0, "pid": pid, "args": { "operation": pid } }),
            ]
        });
        parse(&Value::from_iter(std::iter::once(head).chain(operations)).to_string()).unwrap()
    };
    // Rank 0 waits from 0 to 100 with one tensor, from 50 to 120 with another; then from 300 to 310.
    let traces = [text(0, [0.0, 50.0, 300.0]), text(1, [100.0, 120.0, 310.0]), text(2, [90.0, 60.0, 300.0])];
    let report = Report::new(&traces, &clock::offsets(&traces), None);
    let waited: Vec<f64> = report.ranks.iter().map(|r| r.waited_for_us).collect();
    // Rank 2 waits from 90 to 100, from 60 to 120 and from 300 to 310.
    assert_eq!(waited, [0.0, 130.0 + 70.0, 0.0]);
}

#[test]
fn joined_traces_lie_over_each_other() {
    let traces = three();
    let mut out = Vec::new();
    join::joined(&mut out, &traces, &clock::offsets(&traces)).unwrap();
    let events: Vec<Value> = serde_json::from_slice(&out).unwrap();
    assert_eq!(events.len(), 1 + traces.iter().map(|t| t.events.len()).sum::<usize>());
    let names: Vec<&str> = events
        .iter()
        .filter(|e| e["name"] == "process_name")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(&names[..4], ["rank 0", "rank 0: quick", "rank 0: slow", "rank 1"]);
    assert!(events.iter().filter_map(|e| e["ts"].as_f64()).all(|ts| (0.0..60_000.0).contains(&ts)));
    let end = |rank: u64, number: u64| {
        let found = events
            .iter()
            .find(|e| e["args"]["operation"] == number && e["pid"].as_u64().unwrap() / 10 == rank + 1);
        found.unwrap()["ts"].as_f64().unwrap()
    };
    for number in 3..N_OPERATIONS {
        for rank in 1..3 {
            let apart = end(rank, number) - end(0, number);
            assert!(apart.abs() < 1000.0 / 20.0, "operation {number}, rank {rank}: {apart} us");
        }
    }
    let again = parse(std::str::from_utf8(&out).unwrap()).unwrap_err().to_string();
    assert!(again.ends_with("it is already a merged file; give the files that the ranks wrote"), "{again}");
}

#[test]
fn what_nobody_finished_is_named() {
    let mut traces = three();
    assert!(Report::new(&traces, &clock::offsets(&traces), None).unfinished.is_empty());
    for rank in [0, 1] {
        let text = file(rank, 0.0, 0.0);
        let open = json!({ "name": "NEGOTIATE_ALLREDUCE", "ph": "B", "ts": 90_000.0, "pid": 1 });
        traces[rank as usize] = parse(&format!("{},{open}]", &text[..text.len() - 1])).unwrap();
    }
    let report = Report::new(&traces, &clock::offsets(&traces), None).to_string();
    assert!(report.contains("unfinished: quick was submitted by ranks 0, 1, not by rank 2"), "{report}");
}

#[test]
fn files_that_are_no_timelines_are_refused_with_the_reason() {
    let whole = file(0, 0.0, 0.0);
    let why = |text: &str| parse(text).unwrap_err().to_string();
    assert!(why("").starts_with("t.json is empty"));
    assert!(why(" \n").starts_with("t.json is empty"));
    assert!(why(&whole[..whole.len() / 2]).contains("in the middle of an event: it was cut"));
    assert!(why(&whole[..whole.len() - 1]).contains("it was cut"));
    assert!(why("hello").starts_with("t.json is not a timeline of phalanx: expected"));
    assert!(why("{\"a\": 1}").contains("is not a timeline of phalanx"));
    assert!(why("[{\"a\": 1}]").contains("is not a timeline of phalanx: missing field `name`"));
    assert!(why("[]").ends_with("it names no rank"));
    let missing = read::all(&[PathBuf::from("no/such/file")]).unwrap_err().to_string();
    assert!(missing.starts_with("no/such/file: No such file"), "{missing}");
}

#[test]
fn two_files_of_one_rank_and_overwriting_are_refused() {
    let folder = std::env::temp_dir().join(format!("phalanx-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let paths = [folder.join("a.json"), folder.join("b.json")];
    for path in &paths {
        std::fs::write(path, file(0, 0.0, 0.0)).unwrap();
    }
    let twice = read::all(&paths).unwrap_err().to_string();
    assert!(twice.ends_with("b.json are both of rank 0; give one file for each rank, of one run"), "{twice}");
    let traces = read::all(&paths[..1]).unwrap();
    let spoilt = join::write(&paths[0], &paths[..1], &traces, &[Some(0.0)]).unwrap_err().to_string();
    assert!(spoilt.contains("it is also one of the input files; choose another OUT"), "{spoilt}");
    join::write(&paths[1], &paths[..1], &traces, &[Some(0.0)]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
