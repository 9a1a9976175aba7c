//! `phalanx simulate --agreement`: the time the engine's negotiation takes, by size of the world.

use super::{MAX_RANKS, SimulateArgs};
use crate::table::{TextTable, right};
use phalanx_collective::engine::negotiate::predict::{MessageCost, predict};
use std::process::ExitCode;

const DEFAULT_RANKS: u32 = 4096;

pub fn main(args: &SimulateArgs, n_tensors: usize) -> ExitCode {
    let most = args.ranks.unwrap_or(DEFAULT_RANKS);
    if !(1..=MAX_RANKS).contains(&most) || !(1..=100_000).contains(&n_tensors) {
        eprintln!("phalanx simulate: --agreement takes 1 to 100000 tensors and 1 to {MAX_RANKS} ranks");
        return ExitCode::from(2);
    }
    let cost = MessageCost::default();
    let table = TextTable::new(&[
        right("ranks", 8),
        right("first us", 14),
        right("by number us", 14),
        right("replayed us", 14),
        right("messages", 10),
    ]);
    if !args.json {
        let MessageCost { latency_us, us_per_byte, handling_us, entry_us } = cost;
        println!(
            "{n_tensors} tensors; a message takes {latency_us} us and {} us a kilobyte, a node {handling_us} us a message and {entry_us} us a tensor",
            us_per_byte * 1e3
        );
        println!("{}", table.head());
    }
    let sizes =
        std::iter::successors(Some(2u32), |n| n.checked_mul(4)).take_while(|n| *n < most).chain([most]);
    for n in sizes {
        let a = predict(n as usize, n_tensors, cost);
        if args.json {
            println!(
                "{}",
                serde_json::json!({
                    "ranks": n, "tensors": n_tensors, "first_us": a.first_us, "cached_us": a.cached_us,
                    "replayed_us": a.replayed_us, "messages": a.n_messages,
                })
            );
        } else {
            let [first, cached, replayed] =
                [a.first_us, a.cached_us, a.replayed_us].map(|us| format!("{us:.1}"));
            println!("{}", table.row(&[n.to_string(), first, cached, replayed, a.n_messages.to_string()]));
        }
    }
    ExitCode::SUCCESS
}
