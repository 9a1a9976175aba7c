//! A rank of the doctor's trial world: it reads orders line by line and prints an answer to each.
//!
//! Orders come and answers go through the launcher, so that ranks that do not reach each other can say so.

use super::pair::{Reached, TrialAnswer, TrialOrder, TrialWord};
use super::trial_link::Stretch;
use crate::addresses;
use phalanx_core::Rank;
use phalanx_net::{NetError, World};
use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

/// At most this long for round trips.
const ROUND_TRIPS: Duration = Duration::from_millis(100);

pub fn main() -> ExitCode {
    let world = match World::from_env_with(phalanx_collective::BUILD) {
        Ok(world) => world,
        Err(error) => {
            let by = std::env::var("PHALANX_RANK").ok().and_then(|r| r.parse().ok()).unwrap_or(0);
            say(&TrialAnswer { by, said: stayed_out(by, &error) });
            return ExitCode::FAILURE;
        }
    };
    let by = world.rank().0;
    say(&TrialAnswer { by, said: TrialWord::Joined });
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(order) = serde_json::from_str::<TrialOrder>(&line) else { continue };
        let Some(with) = order.other(by) else { continue };
        let said = match measure(&world, Rank(with), &order) {
            Ok(reached) => TrialWord::Reached { with, reached },
            Err(error) => TrialWord::NotReached { with, is_connector: by > with, why: error },
        };
        say(&TrialAnswer { by, said });
    }
    ExitCode::SUCCESS
}

/// Who is to be left out, as far as this rank can tell.
fn stayed_out(by: u32, error: &NetError) -> TrialWord {
    let ranks = match error {
        NetError::NoMeeting { .. } => vec![by],
        NetError::NotFormed { missing, .. } => {
            missing.split_whitespace().filter_map(|rank| rank.parse().ok()).collect()
        }
        _ => Vec::new(),
    };
    TrialWord::StayedOut { missing: ranks, why: error.to_string() }
}

fn say(answer: &TrialAnswer) {
    let line = serde_json::to_string(answer).unwrap_or_default() + "\n";
    // Who started this rank may be gone; then stdin ends, too.
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

fn measure(world: &World, with: Rank, order: &TrialOrder) -> Result<Reached, String> {
    let link = world.link(with, 0).map_err(|error| match error {
        NetError::NoLink { last, .. } => last,
        other => other.to_string(),
    })?;
    let for_long = Duration::from_millis(order.send_ms);
    let deadline = Instant::now() + Duration::from_millis(order.within_ms);
    let stretch = Stretch { link: &link, deadline };
    // The higher rank goes first.
    let figures = if world.rank() > with {
        stretch.round_trip_us(ROUND_TRIPS).and_then(|us| {
            let bytes = stretch.bytes_per_second(for_long)?;
            stretch.sink()?;
            Ok((Some(us), bytes))
        })
    } else {
        stretch.echo().and_then(|()| {
            stretch.sink()?;
            Ok((None, stretch.bytes_per_second(for_long)?))
        })
    };
    let (round_trip_us, bytes_per_s) = figures.map_err(|error| format!("connected, but then: {error}"))?;
    let ends = link.ends();
    let interface = ends.and_then(|[here, _]| {
        addresses::list().ok()?.into_iter().find(|a| a.ip == here).map(|a| a.interface)
    });
    let address = ends.map_or(world.transport_to(with).to_string(), |[here, _]| here.to_string());
    Ok(Reached { address, interface, round_trip_us, bytes_per_s, is_encrypted: link.is_encrypted() })
}
