//! Measurements as tables, for the terminal and the page alike.

use super::{
    goals::{self, HALF_BYTES, Memory, NET_SIZES, OTHER_SIZES, OTHERS, SIZES},
    row::Samples,
};

/// A title, column names and cells.
#[derive(Debug)]
pub struct Table {
    pub title: String,
    columns: Vec<String>,
    /// How many columns say what was measured; numbers follow.
    n_labels: usize,
    rows: Vec<Vec<String>>,
}

/// How many goals were met, of how many that could be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    pub met: usize,
    pub of: usize,
}

const MET: &str = "✓";
const MISSED: &str = "✗";

impl Table {
    pub fn new(title: String, n_labels: usize, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Table { title, columns, n_labels, rows: Vec::new() }
    }

    pub fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    fn is_worth_showing(&self) -> bool {
        self.rows.iter().any(|row| row[self.n_labels..].iter().any(|cell| cell != "-"))
    }

    pub fn score(&self) -> Score {
        let cells = || self.rows.iter().flatten();
        let met = cells().filter(|c| c.ends_with(MET)).count();
        Score { met, of: met + cells().filter(|c| c.ends_with(MISSED)).count() }
    }

    /// Markdown, with columns aligned so that it also reads well as text.
    pub fn text(&self) -> String {
        let width = |i: usize| {
            let cells = self.rows.iter().map(|row| &row[i]).chain([&self.columns[i]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().zip(&widths).map(|(c, &w)| format!("{c:>w$}")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = widths.iter().map(|&w| format!("{}:", "-".repeat(w + 1))).collect();
        let mut text = line(&self.columns);
        text.push_str(&format!("|{}|\n", rule.join("|")));
        self.rows.iter().for_each(|row| text.push_str(&line(row)));
        text
    }
}

/// Every table for which something was measured.
pub fn all(samples: &Samples, np: &[u32], with_net: bool) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for &np in np {
        tables.push(allreduce(samples, np));
        tables.push(others(samples, np));
        tables.push(half(samples, np));
    }
    if with_net {
        tables.push(net(samples));
    }
    tables.retain(Table::is_worth_showing);
    tables
}

fn allreduce(samples: &Samples, np: u32) -> Table {
    let mut table = Table::new(
        format!("allreduce of f32, sum, in place, {np} ranks (microseconds)"),
        1,
        &[
            "size",
            "floor private",
            "floor arena",
            "Open MPI",
            "Gloo",
            "ours private",
            "ours arena",
            "private / Open MPI",
            "arena / Open MPI",
            "private / floor",
            "arena / floor",
        ],
    );
    for bytes in SIZES {
        let get = |who: &str| samples.get(who, np, "allreduce", "f32", bytes);
        let (private, arena) = (get("ours-private"), get("ours-arena"));
        let (floor_private, floor_shared) = (get("floor-private"), get("floor-shared"));
        let mpi = get("openmpi");
        table.rows.push(vec![
            size(bytes),
            us(floor_private),
            us(floor_shared),
            us(mpi),
            us(get("gloo")),
            us(private),
            us(arena),
            ratio(private, mpi, goals::against_openmpi(np, Memory::Private, bytes)),
            ratio(arena, mpi, goals::against_openmpi(np, Memory::Arena, bytes)),
            ratio(private, floor_private, goals::against_floor(Memory::Private, bytes)),
            ratio(arena, floor_shared, goals::against_floor(Memory::Arena, bytes)),
        ]);
    }
    table
}

fn others(samples: &Samples, np: u32) -> Table {
    let mut table = Table::new(
        format!("other collectives, f32, private memory, {np} ranks (microseconds)"),
        2,
        &["operation", "size", "Open MPI", "Gloo", "ours", "ours / Open MPI"],
    );
    for op in OTHERS {
        for bytes in OTHER_SIZES {
            let get = |who: &str| samples.get(who, np, op, "f32", bytes);
            let (ours, mpi) = (get("ours-private"), get("openmpi"));
            let cells = [us(mpi), us(get("gloo")), us(ours), ratio(ours, mpi, Some(1.0))];
            table.rows.push([op.to_string(), size(bytes)].into_iter().chain(cells).collect());
        }
    }
    table
}

fn half(samples: &Samples, np: u32) -> Table {
    let mut table = Table::new(
        format!("allreduce of {} by type, private memory, {np} ranks (microseconds)", size(HALF_BYTES)),
        1,
        &["type", "Open MPI", "Gloo", "ours", "ours / our f32"],
    );
    let get = |who: &str, dtype: &str| samples.get(who, np, "allreduce", dtype, HALF_BYTES);
    let f32 = get("ours-private", "f32");
    for dtype in ["f32", "f16", "bf16"] {
        let ours = get("ours-private", dtype);
        let goal = (dtype != "f32").then_some(1.0);
        let cells = [us(get("openmpi", dtype)), us(get("gloo", dtype)), us(ours), ratio(ours, f32, goal)];
        table.rows.push(std::iter::once(dtype.to_string()).chain(cells).collect());
    }
    table
}

fn net(samples: &Samples) -> Table {
    let mut table = Table::new(
        "allreduce of f32 between two network namespaces, one rank each (microseconds)".to_string(),
        1,
        &[
            "size",
            "TCP floor",
            "Open MPI",
            "Gloo",
            "ours",
            "ours / Open MPI",
            "ours / Gloo",
            "ours / TCP floor",
        ],
    );
    for bytes in NET_SIZES {
        let get = |who: &str| samples.get(who, 2, "allreduce", "f32", bytes);
        let (floor, mpi, gloo, ours) =
            (get("net-floor"), get("net-openmpi"), get("net-gloo"), get("net-private"));
        table.rows.push(vec![
            size(bytes),
            us(floor),
            us(mpi),
            us(gloo),
            us(ours),
            ratio(ours, mpi, Some(1.0)),
            ratio(ours, gloo, Some(1.0)),
            ratio(ours, floor, None),
        ]);
    }
    table
}

/// `4 B`, `64 KiB`, `16 MiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Three digits are as much as a noisy machine can tell.
fn us(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(us) if us < 10.0 => format!("{us:.2}"),
        Some(us) if us < 100.0 => format!("{us:.1}"),
        Some(us) => format!("{us:.0}"),
    }
}

/// Our time over the other's, with the goal where there is one.
pub fn mark(is_met: bool) -> &'static str {
    if is_met { MET } else { MISSED }
}

pub fn ratio(ours: Option<f64>, other: Option<f64>, goal: Option<f64>) -> String {
    let (Some(ours), Some(other)) = (ours, other) else { return "-".into() };
    let ratio = ours / other;
    match goal {
        None => format!("{ratio:.2}x"),
        Some(goal) => {
            format!("{ratio:.2}x, goal {goal:.2} {}", mark(ratio <= goal))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_carry_their_goals() {
        assert_eq!(ratio(Some(1.0), Some(2.0), Some(0.5)), "0.50x, goal 0.50 ✓");
        assert_eq!(ratio(Some(3.0), Some(2.0), Some(1.0)), "1.50x, goal 1.00 ✗");
        assert_eq!(ratio(Some(3.0), Some(2.0), None), "1.50x");
        assert_eq!(ratio(None, Some(2.0), None), "-");
    }

    #[test]
    fn tables_hold_what_was_measured_and_nothing_else() {
        let mut samples = Samples::default();
        samples.add_tsv("openmpi\t2\tallreduce\tf32\t4\t0.84\t0.8\t0\n");
        samples.add_json(
            "ours",
            r#"{"op":"allreduce","dtype":"f32","bytes":4,"np":2,"buffers":"private","median_us":0.42}"#,
        );
        let tables = all(&samples, &[2, 4], true);
        assert_eq!(tables.len(), 1);
        let text = tables[0].text();
        assert!(text.contains("0.50x, goal 1.00 ✓"), "{text}");
        assert_eq!(tables[0].score(), Score { met: 1, of: 1 });
        let widths: Vec<usize> = text.lines().map(|l| l.chars().count()).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
    }

    #[test]
    fn sizes_read_like_people_write_them() {
        assert_eq!([4, 1024, 65536, 1 << 20, 1500].map(size), ["4 B", "1 KiB", "64 KiB", "1 MiB", "1500 B"]);
    }
}
