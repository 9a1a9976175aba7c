//! `-v`: the world as it is about to be started. Text only; no secret is known here.

use super::route::Route;
use crate::place::WorldPlan;
use std::{fmt::Write, net::SocketAddr};

/// A table of hosts, then where the ranks meet and how each host is reached.
pub fn world(plan: &WorldPlan, routes: &[Route], cores: &[u32], meeting: &[SocketAddr]) -> String {
    let (n_ranks, n_hosts) = (plan.n_ranks(), plan.hosts().len());
    let count = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut text = format!(
        "phalanx: a world of {} on {}\n",
        count(n_ranks.into(), "rank"),
        count(n_hosts as u64, "host")
    );
    let width = plan.hosts().iter().map(|h| h.name.chars().count()).max().unwrap_or(0).max(4);
    let _ =
        writeln!(text, "  {:<width$}  {:>9}  {:>5}  {:>5}  reached by", "host", "ranks", "local", "cores");
    for ((host, route), cores) in plan.hosts().iter().zip(routes).zip(cores) {
        let (first, last, n_local) = (host.ranks.start, host.ranks.end - 1, host.ranks.len());
        let ranks = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let crowded = if n_local as u32 > *cores { "  (more ranks than cores)" } else { "" };
        let _ = writeln!(
            text,
            "  {:<width$}  {ranks:>9}  {n_local:>5}  {cores:>5}  {}{crowded}",
            host.name,
            route.shown()
        );
    }
    let meeting: Vec<String> = meeting.iter().map(SocketAddr::to_string).collect();
    let _ = writeln!(text, "  ranks meet at {}", meeting.join(", "));
    text
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
        let text = world(&plan, &routes, &[1, 8], &["10.0.0.1:7".parse().unwrap()]);
        assert_eq!(
            text,
            "phalanx: a world of 3 ranks on 2 hosts\n\
             \x20 host       ranks  local  cores  reached by\n\
             \x20 n0           0-1      2      1  this machine  (more ranks than cores)\n\
             \x20 node1          2      1      8  ssh node1 /p agent\n\
             \x20 ranks meet at 10.0.0.1:7\n"
        );
    }
}
