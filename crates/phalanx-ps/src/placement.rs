//! Which server has which rows.
//!
//! - PART-1: every row of a table is in exactly one partition, and every partition on exactly one server.
//! - PART-2: partitions are given out in creation order, each to the server with the fewest bytes, the lowest number first.

use crate::spec::{Spread, TableSpec};
use std::fmt::Write;

/// Where the partitions of all tables are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    n_servers: u32,
    tables: Vec<TableLayout>,
    loads: Vec<u64>,
}

/// Where the rows of one table are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLayout {
    height: u64,
    spread: Spread,
    /// The server of each partition.
    servers: Vec<u32>,
}

/// A row's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    pub server: u32,
    pub partition: u32,
    /// Among the rows of the partition.
    pub at: usize,
}

impl Placement {
    /// The way of PART-2.
    ///
    /// # Panics
    /// Without a server.
    pub fn greedy(specs: &[TableSpec], n_servers: u32) -> Placement {
        assert!(n_servers > 0, "tables need a server");
        let mut loads = vec![0u64; n_servers as usize];
        let place = |spec: &TableSpec| {
            let mut layout = TableLayout { height: spec.height, spread: spec.spread, servers: Vec::new() };
            let per_row = spec.bytes() / spec.height;
            for partition in 0..spec.partitions {
                let (server, load) =
                    loads.iter_mut().enumerate().min_by_key(|(_, load)| **load).expect("there is a server");
                *load += cut(spec.height, spec.partitions, partition) * per_row;
                layout.servers.push(server as u32);
            }
            layout
        };
        let tables = specs.iter().map(place).collect();
        Placement { n_servers, tables, loads }
    }

    pub fn n_servers(&self) -> u32 {
        self.n_servers
    }

    pub fn layout(&self, table: usize) -> &TableLayout {
        &self.tables[table]
    }

    /// Bytes of rows and states on each server.
    pub fn loads(&self) -> &[u64] {
        &self.loads
    }

    /// One line for each table, one for each server.
    pub fn explain(&self, specs: &[TableSpec]) -> String {
        let mut text = String::new();
        for (spec, layout) in specs.iter().zip(&self.tables) {
            let TableSpec { name, height, width, dtype, .. } = spec;
            let how = match spec.spread {
                Spread::Mod => "row mod partitions",
                Spread::Range => "ranges of rows",
            };
            let on = layout.servers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let n = layout.servers.len();
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "table {name}: {height} x {width} {dtype}, {n} partitions ({how}) on servers {on}"
            );
        }
        for (server, bytes) in self.loads.iter().enumerate() {
            let _ = writeln!(text, "server {server}: {:.1} MB with states", *bytes as f64 / 1e6);
        }
        text
    }
}

impl TableLayout {
    pub fn n_partitions(&self) -> u32 {
        self.servers.len() as u32
    }

    pub fn server_of(&self, partition: u32) -> u32 {
        self.servers[partition as usize]
    }

    /// How many rows a partition has.
    pub fn n_rows(&self, partition: u32) -> u64 {
        cut(self.height, self.n_partitions(), partition)
    }

    /// Where a row is.
    pub fn place(&self, row: u64) -> RowPlace {
        let n = u64::from(self.n_partitions());
        let (partition, at) = match self.spread {
            Spread::Mod => (row % n, row / n),
            Spread::Range => {
                let (short, longer) = (self.height / n, self.height % n);
                let in_longer = longer * (short + 1);
                if row < in_longer {
                    (row / (short + 1), row % (short + 1))
                } else {
                    (longer + (row - in_longer) / short, (row - in_longer) % short)
                }
            }
        };
        RowPlace { server: self.servers[partition as usize], partition: partition as u32, at: at as usize }
    }

    /// The row at a place of a partition.
    pub fn row(&self, partition: u32, at: usize) -> u64 {
        let (n, p, at) = (u64::from(self.n_partitions()), u64::from(partition), at as u64);
        match self.spread {
            Spread::Mod => at * n + p,
            Spread::Range => {
                let (short, longer) = (self.height / n, self.height % n);
                p * short + p.min(longer) + at
            }
        }
    }
}

/// Rows of a partition: either way the first ones have a row more.
fn cut(height: u64, partitions: u32, partition: u32) -> u64 {
    let n = u64::from(partitions);
    height / n + u64::from(u64::from(partition) < height % n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use proptest::prelude::*;

    proptest! {
        /// PART-1
        #[test]
        fn rows_and_places_are_the_same_thing(height in 1u64..200, cuts in 1u32..20, servers in 1u32..6, range: bool) {
            let spread = if range { Spread::Range } else { Spread::Mod };
            let table = TableSpec { height, spread, partitions: cuts.min(height as u32), ..spec("t") };
            let placement = Placement::greedy(&[table], servers);
            let layout = placement.layout(0);
            let mut seen = vec![false; height as usize];
            for partition in 0..layout.n_partitions() {
                for at in 0..layout.n_rows(partition) as usize {
                    let row = layout.row(partition, at);
                    prop_assert_eq!(layout.place(row), RowPlace { server: layout.server_of(partition), partition, at });
                    prop_assert!(!std::mem::replace(&mut seen[row as usize], true));
                }
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }

    #[test]
    fn partitions_go_to_the_least_loaded_server_in_creation_order() {
        let table = |name: &str, height, partitions| TableSpec { height, partitions, ..spec(name) };
        let specs = [table("big", 100, 1), table("cut", 30, 3), table("late", 90, 2)];
        let placement = Placement::greedy(&specs, 3);
        let on =
            |t: usize| (0..specs[t].partitions).map(|p| placement.layout(t).server_of(p)).collect::<Vec<_>>();
        assert_eq!((on(0), on(1), on(2)), (vec![0], vec![1, 2, 1], vec![2, 1]), "PART-2");
        assert_eq!(placement.loads().iter().sum::<u64>(), specs.iter().map(TableSpec::bytes).sum::<u64>());
        let text = placement.explain(&specs);
        assert!(
            text.starts_with("table big: 100 x 4 f32, 1 partitions (row mod partitions) on servers 0\n"),
            "{text}"
        );
    }
}
