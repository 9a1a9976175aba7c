//! What a network costs: the doctor measures it, `simulate` predicts with it, `bench --traffic` counts.

use crate::launch::support::{Done, TempDir, finish, phalanx};
use serde_json::Value;

fn lines(done: &Done) -> Vec<Value> {
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// Two hosts that this machine plays.
#[test]
fn the_doctor_measures_suggests_a_shape_and_simulate_takes_its_costs() {
    let dir = TempDir::new();
    let rsh = format!("{} {{host}}", dir.script("rsh", "shift; exec \"$@\""));
    let doctor = |shape: &str| {
        let args = ["doctor", "-H", "a:2,b:2", "--rsh", &rsh, "--json", shape];
        finish(&mut phalanx(&args))
    };
    let done = doctor("--topology");
    let found = lines(&done);
    let of = |check: &str| found.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("{check}"));
    assert_eq!(of("topology")["mark"], "ok", "{}", done.stdout);
    assert!(
        of("topology")["fact"].as_str().unwrap().starts_with("--tiers 2x2: 2 hosts of 2 ranks"),
        "{}",
        done.stdout
    );
    assert_eq!([&of("a inside")["mark"], &of("b inside")["mark"]], ["ok", "ok"]);
    let costs = of("topology")["tier_costs"].as_array().unwrap();
    assert_eq!(costs.len(), 2, "inside and between: {costs:?}");
    assert!(costs.iter().flat_map(|c| c.as_array().unwrap()).all(|x| x.as_f64().unwrap() > 0.0), "{costs:?}");

    let file = dir.write("network.json", &done.stdout);
    let args = ["simulate", "--tiers", "2x2", "--costs", &file, "--bytes", "1M", "--json"];
    let predicted = finish(&mut phalanx(&args));
    assert_eq!(predicted.code, Some(0), "{}", predicted.stderr);
    assert!(lines(&predicted).iter().all(|row| row["time_us"].as_f64().unwrap() > 0.0));

    let wrong = doctor("--topology=4x2");
    assert!(wrong.stdout.contains("shape 4x2 holds 8 ranks, but the world has 4"), "{}", wrong.stdout);
    assert_eq!(wrong.code, Some(1));
}

#[test]
fn costs_of_nobody_and_sweeps_of_nothing_are_refused() {
    let dir = TempDir::new();
    let empty = dir.write("empty", "{}\n");
    for (args, says) in [
        (&["--tiers", "2x2", "--costs", &empty][..], "no line has costs; write the file with phalanx doctor"),
        (&["--tiers", "2x2", "--costs", &empty, "--tier-cost", "1:1"], "cannot be used with"),
        (&["--tiers", "2x2", "--sweep", "1M"], "is not two sizes such as 4K..256M, the smaller one first"),
        (&["--tiers", "2x2", "--plot", "x.svg"], "--sweep"),
    ] {
        let words: Vec<&str> = ["simulate"].into_iter().chain(args.iter().copied()).collect();
        let done = finish(&mut phalanx(&words));
        assert_eq!(done.code, Some(2), "{args:?}");
        assert!(done.stderr.contains(says), "{args:?}: {}", done.stderr);
    }
    let doctor = finish(&mut phalanx(&["doctor", "--topology=4x"]));
    assert!(doctor.stdout.contains("\"4x\" is not a shape like 8, 4x3 or 4x8x2"), "{}", doctor.stdout);
}

#[test]
fn a_sweep_is_a_table_and_a_picture() {
    let dir = TempDir::new();
    let picture = dir.write("times.svg", "");
    let args = ["simulate", "--tiers", "4x3", "--sweep", "64K..1M", "--plot", &picture];
    let done = finish(&mut phalanx(&args));
    assert_eq!((done.code, done.stdout.lines().count()), (Some(0), 7), "{}", done.stderr);
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.contains(">tiers<") && svg.contains(">ring<") && svg.ends_with("</svg>\n"), "{svg}");
}

#[test]
fn the_traffic_of_a_ring_is_counted() {
    let args =
        ["bench", "-np", "3", "--traffic", "--json", "--sizes", "12K", "--seconds", "0.01", "--no-bind"];
    let settings = [("PHALANX_TRANSPORT", "tcp"), ("PHALANX_ALGORITHM", "ring")];
    let done = finish(phalanx(&args).envs(settings));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let row = &lines(&done)[0];
    // Four steps of each of three ranks, a third of the vector each.
    assert_eq!((&row["tier_bytes"][0], &row["tier_messages"][0]), (&(4 * 12288).into(), &12.into()), "{row}");
    assert_eq!(row["host_bytes"], 0);
    let plain = finish(
        phalanx(&["bench", "-np", "2", "--json", "--sizes", "4K", "--seconds", "0.01"]).envs(settings),
    );
    assert!(lines(&plain)[0].get("tier_bytes").is_none(), "{}", plain.stdout);
}
