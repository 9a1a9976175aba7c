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

    pub fn is_worth_showing(&self) -> bool {
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
        tables.push(limits(samples, np));
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
            "hand-made private",
            "hand-made arena",
            "Open MPI",
            "Gloo",
            "ours private",
            "ours arena",
            "private / Open MPI",
            "arena / Open MPI",
            "private / hand-made",
            "arena / hand-made",
        ],
    );
    for bytes in SIZES {
        let get = |who: &str| samples.get(who, np, "allreduce", "f32", bytes);
        let (private, arena) = (get("ours-private"), get("ours-arena"));
        let (made_private, made_shared) = (get("handmade-private"), get("handmade-shared"));
        let mpi = get("openmpi");
        table.rows.push(vec![
            size(bytes),
            us(made_private),
            us(made_shared),
            us(mpi),
            us(get("gloo")),
            us(private),
            us(arena),
            ratio(private, mpi, goals::against_openmpi(np, Memory::Private, bytes)),
            ratio(arena, mpi, goals::against_openmpi(np, Memory::Arena, bytes)),
            ratio(private, made_private, goals::against_handmade(Memory::Private, bytes)),
            ratio(arena, made_shared, goals::against_handmade(Memory::Arena, bytes)),
        ]);
    }
    table
}

/// Bandwidths rather than times, because that is how memory is described. A rank's, not the sum of all.
fn limits(samples: &Samples, np: u32) -> Table {
    let mut table = Table::new(
        format!("allreduce of f32 beside plain memory, {np} ranks or threads (GB/s of each)"),
        1,
        &["size", "copy", "add", "ours private", "ours arena", "time of private / (copy + add)"],
    );
    for bytes in SIZES {
        let get = |who: &str, op: &str| samples.get(who, np, op, "f32", bytes);
        let (copy, add) = (get("memory", "copy"), get("memory", "add"));
        // Without the limits there is nothing to stand beside.
        let ours = |who: &str| get(who, "allreduce").filter(|_| copy.is_some());
        let (private, arena) = (ours("ours-private"), ours("ours-arena"));
        let both = copy.zip(add).map(|(copy, add)| copy + add);
        let cells = [copy, add, private, arena].map(|time| speed(bytes, time));
        let row = std::iter::once(size(bytes)).chain(cells);
        table.rows.push(row.chain([ratio(private, both, None)]).collect());
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
            "two TCP streams",
            "hand-made",
            "Open MPI",
            "Gloo",
            "ours, plain",
            "ours, encrypted",
            "ours / Open MPI",
            "ours / Gloo",
            "ours / streams",
            "ours / hand-made",
            "encrypted / plain",
        ],
    );
    for bytes in NET_SIZES {
        let get = |who: &str| samples.get(who, 2, "allreduce", "f32", bytes);
        let streams = samples.get("net-streams", 2, "streams", "f32", bytes);
        let (handmade, mpi, gloo, ours) =
            (get("net-handmade"), get("net-openmpi"), get("net-gloo"), get("net-private"));
        table.rows.push(vec![
            size(bytes),
            us(streams),
            us(handmade),
            us(mpi),
            us(gloo),
            us(ours),
            us(get("net-tls-private")),
            ratio(ours, mpi, Some(1.0)),
            ratio(ours, gloo, Some(1.0)),
            ratio(ours, streams, goals::against_streams(bytes)),
            ratio(ours, handmade, None),
            ratio(get("net-tls-private"), ours, None),
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

/// Gigabytes per second.
fn speed(bytes: u64, time_us: Option<f64>) -> String {
    time_us.map_or("-".into(), |us| format!("{:.2}", bytes as f64 / us / 1e3))
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
    fn limits_stand_beside_our_figures() {
        let mut samples = Samples::default();
        for row in ["memory\t2\tcopy\tf32\t1048576\t100", "memory\t2\tadd\tf32\t1048576\t150"] {
            samples.add_tsv(&format!("{row}\t0\t0\n"));
        }
        samples.add_tsv("net-streams\t2\tstreams\tf32\t67108864\t50000\t0\t0\n");
        for (who, bytes, us) in [("ours", 1 << 20, 500), ("net", 64 << 20, 55000)] {
            let row = format!(
                r#"{{"op":"allreduce","dtype":"f32","bytes":{bytes},"np":2,"buffers":"private","median_us":{us}}}"#
            );
            samples.add_json(who, &row);
        }
        let texts: Vec<String> = all(&samples, &[2], true).iter().map(Table::text).collect();
        let [_, limits, net] = &texts[..] else { panic!("{texts:?}") };
        for cell in ["10.49", "6.99", "2.10", "2.00x"] {
            assert!(limits.contains(cell), "{cell} in {limits}");
        }
        assert!(net.contains("1.10x, goal 1.11 ✓"), "{net}");
    }

    #[test]
    fn sizes_read_like_people_write_them() {
        assert_eq!([4, 1024, 65536, 1 << 20, 1500].map(size), ["4 B", "1 KiB", "64 KiB", "1 MiB", "1500 B"]);
    }
}
