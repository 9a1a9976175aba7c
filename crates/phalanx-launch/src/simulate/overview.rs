//! `phalanx simulate` without `--ranks` or `--tiers`: one collective on worlds of several sizes, each with its selected plan.

use super::{Row, SimulateArgs, prepare, priced};
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
    let mut text = format!(
        "{} of {} on hosts of 8 ranks, with the plan selected for each world\n{:>6} {:>6}  {:<14} {:>14} {:>10}\n",
        args.op, args.bytes, "ranks", "hosts", "plan", "time us", "alg GB/s"
    );
    for row in rows {
        let rate = row.algbw_gbps.map_or("-".to_string(), |rate| format!("{rate:.3}"));
        let hosts = row.ranks.div_ceil(8);
        text += &format!("{:>6} {hosts:>6}  {:<14} {:>14.1} {rate:>10}\n", row.ranks, row.plan, row.time_us);
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
