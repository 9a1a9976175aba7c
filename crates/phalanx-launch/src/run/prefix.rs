//! The prefix of a line of output: `3 | ` or, with several hosts, `node1:3 | `.

use crate::place::WorldPlan;
use phalanx_core::Rank;

/// ANSI colours that are readable on dark and light ground.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// The prefixes of all ranks and of the evaluator, equally wide.
#[derive(Debug)]
pub struct Prefixes {
    plain: Vec<String>,
}

impl Prefixes {
    pub fn new(plan: &WorldPlan) -> Prefixes {
        let several = plan.hosts().len() > 1;
        let label = |rank| match several {
            true => format!("{}:{}", plan.host_name(Rank(rank)), plan.label(Rank(rank))),
            false => plan.label(Rank(rank)),
        };
        let labels: Vec<String> = (0..plan.n_processes()).map(label).collect();
        let width = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        Prefixes { plain: labels.iter().map(|l| format!("{l:>width$} | ")).collect() }
    }

    /// Appends one line of a rank with its prefix.
    pub fn write_line(&self, rank: Rank, line: &[u8], colour: bool, to: &mut Vec<u8>) {
        let prefix = &self.plain[rank.index()];
        if colour {
            let code = COLOURS[rank.index() % COLOURS.len()];
            to.extend_from_slice(format!("\x1b[{code}m{prefix}\x1b[0m").as_bytes());
        } else {
            to.extend_from_slice(prefix.as_bytes());
        }
        to.extend_from_slice(line);
        to.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    fn line(hosts: &str, n_ranks: u32, rank: u32, colour: bool) -> String {
        let plan = WorldPlan::fill(&parse_list(hosts).unwrap(), n_ranks, "-H").unwrap();
        let mut bytes = Vec::new();
        Prefixes::new(&plan).write_line(Rank(rank), b"hi", colour, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn prefixes_are_aligned_and_name_hosts_when_there_are_several() {
        assert_eq!(line("localhost:4", 4, 3, false), "3 | hi\n");
        assert_eq!(line("localhost:11", 11, 3, false), " 3 | hi\n");
        assert_eq!(line("a:1,node:1", 2, 0, false), "   a:0 | hi\n");
        assert_eq!(line("a:1,node:1", 2, 1, false), "node:1 | hi\n");
    }

    #[test]
    fn colour_covers_the_prefix_only() {
        assert_eq!(line("localhost:2", 2, 1, true), "\x1b[33m1 | \x1b[0mhi\n");
    }
}
