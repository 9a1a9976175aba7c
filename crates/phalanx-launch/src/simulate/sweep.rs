//! `phalanx simulate --sweep 4K..256M`: the time of every plan for sizes that double, as a table, JSON or a picture.

use super::{PLAN_WIDTH, Row, SimulateArgs, plot, prepare, rows};
use crate::{
    bench::bytes,
    table::{TextTable, left, right},
};
use std::{fs, io::Write, process::ExitCode};

/// Sizes that one sweep predicts at most.
const MOST: usize = 40;

pub fn main(args: &SimulateArgs, range: &str) -> ExitCode {
    match run(args, range) {
        Ok(text) => {
            // A reader that went away has read enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("phalanx simulate: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &SimulateArgs, range: &str) -> Result<String, String> {
    let mut all = Vec::new();
    let mut title = String::new();
    for size in sizes(range)? {
        let (request, cost) = prepare(&SimulateArgs { bytes: size.to_string(), ..args.clone() })?;
        let shape = request.tiers.as_ref().map(|w| format!(" as {}", w.grid.tiers())).unwrap_or_default();
        title = format!("{} on {} ranks{shape}", request.op, request.n_ranks());
        let sized = SimulateArgs { bytes: size.to_string(), ..args.clone() };
        all.push((size, rows(&sized, &request, &cost)));
    }
    if let Some(path) = &args.plot {
        let picture = plot::draw(&title, &lines(&all));
        fs::write(path, picture).map_err(|why| format!("--plot {}: {why}", path.display()))?;
    }
    Ok(if args.json {
        let rows = all.iter().flat_map(|(_, rows)| rows);
        rows.map(|row| serde_json::to_string(row).unwrap_or_default() + "\n").collect()
    } else {
        table(&title, &all)
    })
}

/// `4K..256M`: from the first on, each twice the one before, up to the second.
fn sizes(range: &str) -> Result<Vec<u64>, String> {
    let bad = || format!("--sweep {range:?} is not two sizes such as 4K..256M, the smaller one first");
    let (from, to) = range.split_once("..").ok_or_else(bad)?;
    let (from, to) = (bytes(from).map_err(|_| bad())?, bytes(to).map_err(|_| bad())?);
    if from == 0 || from > to {
        return Err(bad());
    }
    let doubled =
        std::iter::successors(Some(from), |size| size.checked_mul(2)).take_while(|size| *size <= to);
    let sizes: Vec<u64> = doubled.collect();
    if sizes.len() > MOST {
        return Err(format!(
            "--sweep {range:?} has {} sizes; at most {MOST} are predicted at once",
            sizes.len()
        ));
    }
    Ok(sizes)
}

/// The plans of all sizes, in the order of the first.
fn plans(all: &[(u64, Vec<Row>)]) -> Vec<&'static str> {
    let mut plans = Vec::new();
    for row in all.iter().flat_map(|(_, rows)| rows) {
        if !plans.contains(&row.plan) {
            plans.push(row.plan);
        }
    }
    plans
}

fn time_of(rows: &[Row], plan: &str) -> Option<f64> {
    rows.iter().find(|row| row.plan == plan).map(|row| row.time_us)
}

fn lines(all: &[(u64, Vec<Row>)]) -> Vec<plot::PlotLine> {
    let line = |plan: &'static str| plot::PlotLine {
        name: plan.to_string(),
        points: all.iter().filter_map(|(size, rows)| Some((*size as f64, time_of(rows, plan)?))).collect(),
    };
    plans(all).into_iter().map(line).collect()
}

fn table(title: &str, all: &[(u64, Vec<Row>)]) -> String {
    let plans = plans(all);
    let mut columns = vec![right("bytes", 12), left("selected", PLAN_WIDTH)];
    columns.extend(plans.iter().copied().map(|plan| right(plan, PLAN_WIDTH)));
    let table = TextTable::new(&columns);
    let mut text = format!("{title}: predicted microseconds\n{}\n", table.head());
    for (size, rows) in all {
        let selected = rows.iter().find(|row| row.selected).map_or("-", |row| row.plan);
        let times =
            plans.iter().map(|plan| time_of(rows, plan).map_or("-".to_string(), |us| format!("{us:.1}")));
        let cells: Vec<String> = [size.to_string(), selected.to_string()].into_iter().chain(times).collect();
        text += &(table.row(&cells) + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::tests::Line;
    use clap::Parser;

    #[test]
    fn sizes_double_and_what_is_not_a_range_is_said() {
        assert_eq!(sizes("4K..20K").unwrap(), [4096, 8192, 16384]);
        assert_eq!(sizes("8..8").unwrap(), [8]);
        for bad in ["4K", "4K..", "..4K", "8K..4K", "0..4", "a..b", "4K...8K"] {
            let said = sizes(bad).unwrap_err();
            assert_eq!(
                said,
                format!("--sweep {bad:?} is not two sizes such as 4K..256M, the smaller one first")
            );
        }
        assert!(sizes("1..1G").is_ok() && sizes("1..1024G").is_err());
    }

    #[test]
    fn every_size_has_a_row_and_the_picture_a_line_for_each_plan() {
        let words = ["simulate", "--tiers", "4x3", "--sweep", "4K..64K"];
        let args = Line::parse_from(words).args;
        let text = run(&args, "4K..64K").unwrap();
        assert!(text.starts_with("allreduce on 12 ranks as 4x3: predicted microseconds\n"), "{text}");
        assert_eq!(text.lines().count(), 2 + 5);
        assert!(text.contains("tiers-small") && text.lines().nth(2).unwrap().contains("  4096"), "{text}");
        let json = run(&SimulateArgs { json: true, ..args }, "4K..4K").unwrap();
        let row: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!(row["bytes"], 4096);
    }
}
