//! The figures as tables, each with the goals that it is judged by.

use super::{
    FLAT, LARGE, LINE_BYTES_PER_S, MANY, RACKS,
    others::Other,
    ours::{self, RING, SHAPES},
};
use crate::bench::{
    figures::Figures,
    table::{Table, mark, ratio, size},
};

const FIT: &str = "4x3";
/// How much faster than a flat ring, and than the others.
const FASTER: f64 = 1.3;
const FASTER_THAN_DEALT: f64 = 4.0;
const LINE_SHARE: f64 = 0.9;
const NIC_MORE: f64 = 1.04;
const RACKS_FASTER: f64 = 1.35;
const FLAT_BEHIND: f64 = 1.05;
const FUSED_FASTER: f64 = 3.0;
const EXPLORED_BEHIND: f64 = 1.1;
const PREDICTED_WITHIN: f64 = 0.2;
/// Times this close have no order.
const ALIKE: f64 = 0.03;

pub fn all(figures: &Figures) -> Vec<Table> {
    let mut tables = vec![
        bytes(figures),
        times(figures),
        ratios(figures),
        shapes(figures),
        racks(figures),
        flat(figures),
        fused(figures),
        explored(figures),
    ];
    tables.retain(Table::is_worth_showing);
    tables
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |n| format!("{n:.digits$}"))
}

fn ms(us: Option<f64>) -> String {
    us.map_or("-".into(), |us| if us < 1e5 { format!("{:.2}", us / 1e3) } else { format!("{:.0}", us / 1e3) })
}

/// How much longer another takes, with the least that it should.
fn faster(other: Option<f64>, ours: Option<f64>, goal: f64) -> String {
    let Some((other, ours)) = other.zip(ours) else { return "-".into() };
    format!("{:.2}x, goal {goal:.2} {}", other / ours, mark(other / ours >= goal))
}

fn bytes(figures: &Figures) -> Table {
    let columns = [
        "shape",
        "model",
        "counted, ranks host by host",
        "counted, dealt",
        "interface / counted, host by host",
        "interface / counted, dealt",
    ];
    let title = format!(
        "A: what leaves the fullest of 3 hosts of 4 ranks, of a vector of {}; the model is what `verify` proves",
        size(LARGE)
    );
    let mut table = Table::new(title, 1, &columns);
    for (plan, model) in SHAPES {
        let counted = |numbering: &str| {
            let share = figures.get(&format!("A shapes {numbering} share {LARGE}"), plan.name);
            share.map_or("-".into(), |s| format!("{s:.3} {}", mark((s - model).abs() < 5e-4)))
        };
        let nic = |numbering: &str| {
            let over = figures.get(&format!("A shapes {numbering} nic over counters"), plan.name);
            over.map_or("-".into(), |n| format!("{n:.3}, goal {NIC_MORE} {}", mark(n <= NIC_MORE)))
        };
        let [host, dealt] = ["by host", "dealt"];
        let cells = [counted(host), counted(dealt), nic(host), nic(dealt)];
        table.push([plan.name.to_string(), format!("{model:.3}")].into_iter().chain(cells).collect());
    }
    table
}

fn times(figures: &Figures) -> Table {
    let sizes = MANY.map(size);
    let columns: Vec<&str> = ["who"]
        .into_iter()
        .chain(sizes.iter().map(String::as_str))
        .chain(["out of the fullest interface"])
        .collect();
    let title = "A: allreduce of f32, 12 ranks on 3 hosts, 200 Mbit/s (milliseconds)".to_string();
    let mut table = Table::new(title, 1, &columns);
    let ours = [(FIT, "ours, 4x3"), (RING.name, "ours, flat ring")];
    let others = Other::ALL.map(|other| (other.name(), other.name()));
    for (who, name) in ours.into_iter().chain(others) {
        let cells = MANY.map(|bytes| ms(figures.get(&format!("A by host us {bytes}"), who)));
        let counted = figures.get(&format!("A by host share {LARGE}"), who);
        let more = figures.get("A by host nic over counters", who);
        let ours = counted.zip(more).map(|(share, more)| share * more);
        let sent = figures.get("A nic share", who).or(ours);
        let sent = sent.map_or("-".into(), |s| format!("{s:.3} of the vector"));
        table.push([name.to_string()].into_iter().chain(cells).chain([sent]).collect());
    }
    table
}

fn ratios(figures: &Figures) -> Table {
    let large = [LARGE, 4 * LARGE];
    let columns = ["time of", &size(large[0]), &size(large[1])];
    let title = "A: how much longer others take than our 4x3, and its share of the line rate".to_string();
    let mut table = Table::new(title, 1, &columns);
    let get = |who: &str, bytes: u64| figures.get(&format!("A by host us {bytes}"), who);
    let goals = [
        (Other::OpenMpi.name(), FASTER),
        (Other::Ring.name(), FASTER),
        (Other::RingDealt.name(), FASTER_THAN_DEALT),
        (Other::Han.name(), 1.0),
        (Other::Mpich.name(), FASTER),
        (Other::Gloo.name(), FASTER),
    ];
    for (who, goal) in [(RING.name, FASTER)].into_iter().chain(goals) {
        let name = if who == RING.name { "our flat ring" } else { who };
        let cells = large.map(|bytes| faster(get(who, bytes), get(FIT, bytes), goal));
        table.push([name.to_string()].into_iter().chain(cells).collect());
    }
    let line = large.map(|bytes| {
        let Some(us) = get(FIT, bytes) else { return "-".to_string() };
        let share = bytes as f64 * SHAPES[0].1 / LINE_BYTES_PER_S / (us / 1e6);
        format!("{:.1} %, goal {:.0} % {}", share * 100.0, LINE_SHARE * 100.0, mark(share >= LINE_SHARE))
    });
    table.push(["share of the line rate, payload only".to_string()].into_iter().chain(line).collect());
    table
}

fn shapes(figures: &Figures) -> Table {
    let columns = [
        "shape",
        "model of bytes",
        "ms",
        "shapes with more bytes are slower",
        "simulated ms",
        "simulated / measured",
        "simulated in the measured order",
    ];
    let title = format!("A: shapes at {}, measured and simulated", size(LARGE));
    let mut table = Table::new(title, 1, &columns);
    let time = |name: &str| figures.get(&format!("A shapes by host us {LARGE}"), name);
    let simulated = |name: &str| figures.get("A simulated", name);
    for (plan, model) in SHAPES {
        let (mine, mine_simulated) = (time(plan.name), simulated(plan.name));
        let slower = mine.map(|mine| {
            let more = SHAPES.iter().filter(|(_, other)| *other > model * 1.01);
            let in_order = more.filter_map(|(other, _)| time(other.name)).all(|theirs| theirs > mine);
            mark(in_order).to_string()
        });
        let ratio = mine_simulated.zip(mine).map(|(simulated, mine)| simulated / mine);
        let within = ratio.map(|ratio| {
            format!("{ratio:.2}, goal +-{PREDICTED_WITHIN} {}", mark((ratio - 1.0).abs() <= PREDICTED_WITHIN))
        });
        let in_order = mine_simulated.zip(mine).map(|(mine_simulated, mine)| {
            let others =
                SHAPES.iter().filter_map(|(other, _)| Some((simulated(other.name)?, time(other.name)?)));
            // Those that take about as long as this one are in either order.
            let mut apart = others.filter(|(_, theirs)| (theirs / mine - 1.0).abs() > ALIKE);
            mark(apart.all(|(simulated, theirs)| (simulated > mine_simulated) == (theirs > mine))).to_string()
        });
        let none = || "-".to_string();
        table.push(vec![
            plan.name.into(),
            format!("{model:.3}"),
            ms(mine),
            slower.unwrap_or_else(none),
            ms(mine_simulated),
            within.unwrap_or_else(none),
            in_order.unwrap_or_else(none),
        ]);
    }
    table
}

fn racks(figures: &Figures) -> Table {
    let columns = ["plan", "ms", "longer than pipelined"];
    let title = format!("B: {} on 2 racks of 3 hosts of 2 ranks, 100 Mbit/s between the racks", size(LARGE));
    let mut table = Table::new(title, 1, &columns);
    let time = |name: &str| figures.get(&format!("B by host us {LARGE}"), name);
    let [pipelined, rest @ ..] = RACKS;
    table.push(vec![pipelined.name.into(), ms(time(pipelined.name)), "-".into()]);
    for plan in rest {
        let longer = faster(time(plan.name), time(pipelined.name), RACKS_FASTER);
        table.push(vec![plan.name.into(), ms(time(plan.name)), longer]);
    }
    table
}

fn flat(figures: &Figures) -> Table {
    let columns = ["size", "4x3 ms", "best flat plan", "its ms", "4x3 / best flat plan"];
    let mut table = Table::new("C: 3 hosts of 4 ranks, no limits".to_string(), 1, &columns);
    for bytes in MANY {
        let time = |name: &str| figures.get(&format!("C by host us {bytes}"), name);
        let times = FLAT.iter().filter_map(|plan| Some((plan.name, time(plan.name)?)));
        let best = times.min_by(|a, b| a.1.total_cmp(&b.1));
        let ours = time(FIT);
        table.push(vec![
            size(bytes),
            ms(ours),
            best.map_or("-".into(), |(name, _)| name.to_string()),
            ms(best.map(|(_, us)| us)),
            ratio(ours, best.map(|(_, us)| us), Some(FLAT_BEHIND)),
        ]);
    }
    table
}

fn fused(figures: &Figures) -> Table {
    let columns = ["AllReduceN ms", "one AllReduce each ms", "longer"];
    let title = "A: the tensors of ResNet-50 below 64 KiB, together and one by one".to_string();
    let mut table = Table::new(title, 0, &columns);
    let [together, apart] = ["allreduce_n", "allreduce each"].map(|what| figures.get("fused", what));
    let cells = [number(together.map(|us| us / 1e3), 2), number(apart.map(|us| us / 1e3), 2)];
    table.push(cells.into_iter().chain([faster(apart, together, FUSED_FASTER)]).collect());
    table
}

fn explored(figures: &Figures) -> Table {
    let columns = ["-mode b:4x3, ms", "-mode p:4x3, ms, when it has chosen", "p / b"];
    let mut table = Table::new("A: DDL's AllReduce of 16 MiB, ways given and found".into(), 0, &columns);
    let [given, found] = ours::GIVEN_AND_EXPLORED.map(|options| figures.get("ddl", options));
    table.push(vec![ms(given), ms(found), ratio(found, given, Some(EXPLORED_BEHIND))]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(table: &Table) -> Vec<Vec<String>> {
        let cells = |line: &str| {
            let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_string());
            cells.collect::<Vec<_>>()
        };
        table.text().lines().skip(2).map(cells).collect()
    }

    #[test]
    fn bytes_must_be_exact_and_times_in_their_order() {
        let mut figures = Figures::default();
        for ((plan, model), us) in SHAPES.iter().zip([9e5, 9.1e5, 1.2e6, 1.1e6, 3e6, 3.1e6]) {
            let off = if plan.name == "3x4" { 0.01 } else { 0.0 };
            figures.add(&format!("A shapes by host share {LARGE}"), plan.name, model + off);
            figures.add("A shapes by host nic over counters", plan.name, 1.0 + off * 5.0);
            figures.add(&format!("A shapes by host us {LARGE}"), plan.name, us);
            figures.add("A simulated", plan.name, us * if plan.name == "12" { 1.3 } else { 0.9 });
        }
        let found = rows(&bytes(&figures));
        assert_eq!(found[0], ["4x3", "1.333", "1.333 ✓", "-", "1.000, goal 1.04 ✓", "-"]);
        assert_eq!(found[5], ["3x4", "4.167", "4.177 ✗", "-", "1.050, goal 1.04 ✗", "-"]);
        let found = rows(&shapes(&figures));
        assert_eq!(found[2], ["2x6", "1.667", "1200", "✗", "1080", "0.90, goal +-0.2 ✓", "✗"]);
        assert_eq!(found[3], ["12", "1.833", "1100", "✓", "1430", "1.30, goal +-0.2 ✗", "✗"]);
    }

    #[test]
    fn goals_against_others_are_least_ratios() {
        let mut figures = Figures::default();
        figures.add(&format!("A by host us {LARGE}"), FIT, 1e6);
        figures.add(&format!("A by host us {LARGE}"), RING.name, 1.35e6);
        figures.add(&format!("A by host us {LARGE}"), Other::Gloo.name(), 1.2e6);
        let found = rows(&ratios(&figures));
        assert_eq!(found[0], ["our flat ring", "1.35x, goal 1.30 ✓", "-"]);
        assert_eq!(found[6], ["Gloo", "1.20x, goal 1.30 ✗", "-"]);
        assert_eq!(found[7][1], "89.5 %, goal 90 % ✗");
        figures.add("fused", "allreduce_n", 2e3);
        figures.add("fused", "allreduce each", 9e3);
        assert_eq!(rows(&fused(&figures)), [["2.00", "9.00", "4.50x, goal 3.00 ✓"]]);
    }
}
