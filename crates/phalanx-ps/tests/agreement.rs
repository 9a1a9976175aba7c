//! Tables on servers against one process that adds everything up itself.

use crate::worlds::{Hosts, WIDTH, bytes, bytes_mut, first, rules, run, spec, touched};
use phalanx_core::kernel::update;
use phalanx_ps::{Consistency, RowReduction, Spread, TableClip, TableRule, TableSpec, TableUpdate, Tables};
use std::collections::BTreeMap;

const STEPS: u64 = 20;

/// What one process computes: every worker's gradients added in rank order.
fn serial(spec: &TableSpec, n_workers: u32, steps: u64, rate: f32) -> Vec<f32> {
    let n = spec.height as usize * WIDTH;
    let mut p: Vec<f32> = (0..n).map(|i| first((i / WIDTH) as u64, i % WIDTH)).collect();
    let mut states = vec![vec![spec.rule.first_state as f32; n]; 2];
    for step in 0..steps {
        let mut sums: BTreeMap<u64, (Vec<f32>, u32)> = BTreeMap::new();
        for worker in 0..n_workers {
            let (ids, grads) = touched(worker, step, spec.height);
            let mut own: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
            for (id, g) in ids.iter().zip(grads.chunks_exact(WIDTH)) {
                let to = own.entry(*id).or_insert_with(|| vec![0.0; WIDTH]);
                to.iter_mut().zip(g).for_each(|(to, g)| *to += g);
            }
            for (id, g) in own {
                let (to, touches) = sums.entry(id).or_insert_with(|| (vec![0.0; WIDTH], 0));
                to.iter_mut().zip(g).for_each(|(to, g)| *to += g);
                *touches += 1;
            }
        }
        for (g, touches) in sums.values_mut() {
            let by = match spec.reduction {
                RowReduction::Sum => 1.0,
                RowReduction::Mean => n_workers as f32,
                RowReduction::ByTouch => *touches as f32,
            };
            g.iter_mut().for_each(|g| *g /= by);
        }
        if let TableClip::Norm(limit) = spec.rule.clip {
            let squared: f64 =
                sums.values().flat_map(|(g, _)| g).map(|g| f64::from(*g) * f64::from(*g)).sum();
            let factor: f32 = update::clip_factor(squared as f32, limit);
            sums.values_mut().for_each(|(g, _)| g.iter_mut().for_each(|g| *g *= factor));
        }
        for (id, (mut g, _)) in sums {
            let range = id as usize * WIDTH..(id as usize + 1) * WIDTH;
            let row = &mut p[range.clone()];
            if spec.rule.decay != 0.0 {
                update::decay(&mut g, row, spec.rule.decay as f32);
            }
            let (a, b) = states.split_at_mut(1);
            let (a, b) = (&mut a[0][range.clone()], &mut b[0][range]);
            match spec.rule.update {
                TableUpdate::Sgd => update::sgd(row, &g, rate),
                TableUpdate::Momentum(rule) => rule.apply(row, a, &g, rate),
                TableUpdate::Adagrad(rule) => rule.apply(row, a, &g, rate),
                TableUpdate::Adam(rule) => rule.at(step as i64 + 1, rate).apply(row, a, b, &g),
                TableUpdate::RmsProp(rule) => rule.apply(row, a, b, &g, rate),
            }
        }
    }
    p
}

/// Trains a table and returns what every worker reads at the end, and servers nothing.
fn trained(hosts: Hosts, spec: TableSpec) -> Vec<Vec<f32>> {
    run(hosts, move |world, _| {
        let height = spec.height;
        let mut tables = Tables::open(world, vec![spec.clone()], Consistency::Sync, 0).expect("tables open");
        if !world.is_worker(world.rank()) {
            tables.serve().expect("it serves to the end");
            return Vec::new();
        }
        for step in 0..STEPS {
            let (ids, grads) = touched(world.rank().0, step, height);
            let mut rows = vec![0.0f32; grads.len()];
            tables.pull(0, step, &ids, bytes_mut(&mut rows)).expect("rows come");
            tables.push(0, step, &ids, bytes(&grads), 0.125).expect("gradients go");
        }
        let all: Vec<u64> = (0..height).collect();
        let mut rows = vec![0.0f32; height as usize * WIDTH];
        tables.pull(0, STEPS, &all, bytes_mut(&mut rows)).expect("rows come");
        tables.close().expect("it ends well");
        rows
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_rule_gives_the_bits_of_one_process_where_sums_are_exact() {
    for (name, update) in rules() {
        let rule = TableRule { decay: 0.25, ..TableRule::new(update) };
        let spec = TableSpec { rule, ..spec(name) };
        let wanted = bits(&serial(&spec, 4, STEPS, 0.125));
        for hosts in [Hosts::of(&[3, 1]), Hosts { servers: 2, ..Hosts::of(&[2, 2]) }] {
            let got = trained(hosts, spec.clone());
            for rows in &got[..4] {
                assert_eq!(bits(rows), wanted, "SHARD-3: {name} on {hosts:?}");
            }
        }
    }
}

#[test]
fn reductions_agree_with_one_process_on_uneven_hosts() {
    for reduction in [RowReduction::Sum, RowReduction::Mean, RowReduction::ByTouch] {
        for workers in [&[1u32][..], &[2], &[1, 1], &[3, 1]] {
            let spec = TableSpec { reduction, ..spec("t") };
            let hosts = Hosts::of(workers);
            let wanted = serial(&spec, hosts.n_workers(), STEPS, 0.125);
            for rows in trained(hosts, spec.clone()) {
                let near = rows.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0));
                assert!(near, "{reduction:?} on {workers:?}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_partitions_servers_or_links() {
    let adagrad = TableRule { first_state: 0.1, ..TableRule::new(rules()[2].1) };
    let base = TableSpec { rule: adagrad, reduction: RowReduction::Mean, ..spec("t") };
    let reference = bits(&trained(Hosts::of(&[2, 1]), base.clone())[0]);
    let unix = Hosts { settings: &[("PHALANX_TRANSPORT", "unix")], ..Hosts::of(&[2, 1]) };
    let sealed = Hosts { settings: &[("PHALANX_ENCRYPT", "always")], ..Hosts::of(&[2, 1]) };
    let served = Hosts { servers: 3, ..Hosts::of(&[2, 1]) };
    for (partitions, spread, hosts) in [
        (1, Spread::Mod, unix),
        (40, Spread::Range, sealed),
        (7, Spread::Range, served),
        (13, Spread::Mod, served),
    ] {
        let table = TableSpec { partitions, spread, ..base.clone() };
        let got = trained(hosts, table);
        assert_eq!(bits(&got[0]), reference, "SHARD-3: {partitions} {spread:?} {hosts:?}");
        assert_eq!(bits(&got[2]), reference, "SHARD-3");
    }
}

#[test]
fn a_tables_own_norm_and_a_given_factor_clip_as_one_process_does() {
    let rule = TableRule { clip: TableClip::Norm(0.5), ..TableRule::new(TableUpdate::Sgd) };
    let own = TableSpec { rule, ..spec("own") };
    let wanted = bits(&serial(&own, 3, STEPS, 0.125));
    for rows in trained(Hosts::of(&[2, 1]), own) {
        assert_eq!(bits(&rows), wanted, "EXACT-1");
    }
    let given = TableSpec { rule: TableRule { clip: TableClip::Given, ..rule }, ..spec("given") };
    let got = run(Hosts::of(&[2, 1]), move |world, _| {
        let height = given.height;
        let mut tables = Tables::open(world, vec![given.clone()], Consistency::Sync, 0).expect("tables open");
        for step in 0..STEPS {
            let (ids, grads) = touched(world.rank().0, step, height);
            tables.push(0, step, &ids, bytes(&grads), 0.125).expect("gradients go");
            let squared = tables.norms(step).expect("norms come");
            tables.release(step, f64::from(update::clip_factor(squared as f32, 0.5))).expect("it goes on");
        }
        let all: Vec<u64> = (0..height).collect();
        let mut rows = vec![0.0f32; height as usize * WIDTH];
        tables.pull(0, STEPS, &all, bytes_mut(&mut rows)).expect("rows come");
        tables.close().expect("it ends well");
        rows
    });
    for rows in got {
        assert_eq!(bits(&rows), wanted);
    }
}

#[test]
fn narrow_wires_round_what_travels_and_nothing_else() {
    let spec = TableSpec { wire: Some(phalanx_core::DType::BF16), ..spec("t") };
    // Every gradient and first value here is a bf16; only sums of several steps are not.
    let got = trained(Hosts::of(&[1, 1]), spec.clone());
    let wanted = serial(&spec, 2, STEPS, 0.125);
    for (a, b) in got[0].iter().zip(&wanted) {
        assert!((a - b).abs() <= b.abs() / 128.0, "{a} {b}");
    }
    assert_eq!(bits(&got[0]), bits(&got[1]));
}
