//! `phalanx simulate` without `--ranks` or `--tiers`: one collective on worlds of several sizes, each with its selected plan.

use super::{PLAN_WIDTH, Row, SimulateArgs, prepare, priced, rate};
use crate::table::{TextTable, left, right};
use phalanx_collective::plan;
use std::{io::Write, process::ExitCode};

/// One host, then hosts of eight.
const WORLDS: [u32; 6] = [2, 8, 16, 64, 256, 1024];

pub fn main(args: &SimulateArgs) -> ExitCode {
    match rows(args) {
        Ok(rows) => {
            let text = match args.json {
                true => rows.iter().map(|r| serde_json::to_string(r).unwrap_or_default() + "\n").collect(),
                false => table(args, &rows),
            };
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

fn rows(args: &SimulateArgs) -> Result<Vec<Row>, String> {
    let row = |n_ranks| {
        let (request, cost) = prepare(&SimulateArgs { ranks: Some(n_ranks), ..args.clone() })?;
        Ok(priced(args, &request, &cost, plan::select(&request)))
    };
    WORLDS.into_iter().map(row).collect()
}

fn table(args: &SimulateArgs, rows: &[Row]) -> String {
    let columns = [
        right("ranks", 6),
        right("hosts", 6),
        left("plan", PLAN_WIDTH),
        right("time us", 14),
        right("alg GB/s", 10),
    ];
    let table = TextTable::new(&columns);
    let mut text = format!(
        "{} of {} on hosts of 8 ranks, with the plan selected for each world\n{}\n",
        args.op,
        args.bytes,
        table.head()
    );
    for row in rows {
        let (ranks, hosts) = (row.ranks.to_string(), row.ranks.div_ceil(8).to_string());
        let cells = [ranks, hosts, row.plan.to_string(), format!("{:.1}", row.time_us), rate(row)];
        text += &(table.row(&cells) + "\n");
    }
    text + "\n`phalanx simulate --ranks 64` compares all plans; --op, --bytes and --tier-cost choose the operation, the size and the network\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::tests::Line;
    use clap::Parser;

    #[test]
    fn without_a_world_several_are_compared() {
        let args = Line::parse_from(["simulate", "--bytes", "1M"]).args;
        let rows = rows(&args).unwrap();
        assert_eq!(rows.iter().map(|r| r.ranks).collect::<Vec<_>>(), WORLDS);
        assert!(rows.iter().all(|r| r.selected && r.time_us > 0.0), "{rows:?}");
        let text = table(&args, &rows);
        assert!(
            text.starts_with("allreduce of 1M on hosts of 8 ranks") && text.contains("\n  1024    128  "),
            "{text}"
        );
        let bad = Line::parse_from(["simulate", "--op", "allmagic"]).args;
        assert!(super::rows(&bad).unwrap_err().contains("allmagic"));
    }
}
