//! `-v`: describes the world that is about to start. Text only; this module does not know the secret.

use super::route::Route;
use crate::{
    numbers,
    place::{HostRanks, WorldPlan},
    table::{TextTable, left, right, widest},
};
use std::{fmt::Write, net::SocketAddr};

/// A table of hosts, how each is reached, then where the ranks meet. Nothing has been started yet.
pub fn world(plan: &WorldPlan, routes: &[Route], meeting: &[SocketAddr]) -> String {
    let (n_ranks, n_hosts) = (plan.n_ranks(), plan.hosts().len());
    let count = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let roles = match plan.n_servers() {
        0 => String::new(),
        n => format!(" ({}, {})", count(plan.n_workers().into(), "worker"), count(n.into(), "server")),
    };
    let mut text = format!(
        "phalanx: a world of {}{roles} on {}\n",
        count(n_ranks.into(), "rank"),
        count(n_hosts as u64, "host")
    );
    let width = widest(plan.hosts().iter().map(|h| h.name.as_str())).max(4);
    let columns = [left("host", width), right("ranks", 9), right("local", 5), left("reached by", 0)];
    let table = TextTable::wide(&columns);
    let _ = writeln!(text, "{}", table.head());
    for (host, route) in plan.hosts().iter().zip(routes) {
        let ranks = numbers::runs(host.ranks.iter().copied());
        let cells = [host.name.to_string(), ranks, host.ranks.len().to_string(), route.shown().to_string()];
        let _ = writeln!(text, "{}", table.row(&cells));
    }
    if let Some(evaluator) = plan.evaluator() {
        let _ = writeln!(text, "  an evaluator runs beside them on {}", plan.host_name(evaluator));
    }
    let meeting: Vec<String> = meeting.iter().map(SocketAddr::to_string).collect();
    let _ = writeln!(text, "  ranks meet at {}", meeting.join(", "));
    text
}

/// What the hosts said when they answered.
pub fn cores(plan: &WorldPlan, cores: &[u32]) -> String {
    let host = |(host, cores): (&HostRanks, &u32)| {
        let crowded = if host.ranks.len() as u32 > *cores { " (fewer than ranks)" } else { "" };
        format!("{} {cores}{crowded}", host.name)
    };
    let all: Vec<String> = plan.hosts().iter().zip(cores).map(host).collect();
    format!("  every host has answered; cores: {}\n", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    #[test]
    fn the_plan_is_a_table() {
        let plan = WorldPlan::fill(&parse_list("n0:2,node1:1").unwrap(), 3, "-H").unwrap();
        let routes = [
            Route::Direct { command: vec!["/p".into(), "agent".into()] },
            Route::Remote {
                command: vec!["ssh".into(), "node1".into(), "/p".into(), "agent".into()],
                through_shell: true,
            },
        ];
        assert_eq!(
            world(&plan, &routes, &["10.0.0.1:7".parse().unwrap()]),
            "phalanx: a world of 3 ranks on 2 hosts\n\
             \x20 host       ranks  local  reached by\n\
             \x20 n0           0-1      2  this machine\n\
             \x20 node1          2      1  ssh node1 /p agent\n\
             \x20 ranks meet at 10.0.0.1:7\n"
        );
        assert_eq!(
            cores(&plan, &[1, 8]),
            "  every host has answered; cores: n0 1 (fewer than ranks), node1 8\n"
        );
    }
}
