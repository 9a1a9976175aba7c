//! Which variable goes to servers and which is reduced between ranks, and what each choice costs.
//!
//! Gradients that are rows go to servers, dense ones are added up by allreduce; a table that is used both ways has dense gradients, so it is
//! dense. Bytes are those in and out of a host in a step: with H hosts, G workers on each, W = HG, f = (H-1)/H, the bytes D of a dense
//! variable, a of a worker's rows as they come, U of the different rows of a host's workers together:
//! allreduce 4Df, allgather of rows 2(W-1)a, servers 4Df or 4Uf; with one host, nothing.
//! - ALLOT-1: the same arguments give the same answer; nothing is measured here.

use phalanx_graph::{
    Init, Program, VarKind,
    graph::{ServedVar, Unserved, servable},
};
use std::{collections::BTreeMap, fmt::Write};

/// How variables are spread.
#[derive(Clone, Debug, PartialEq)]
pub enum AllotmentStrategy {
    /// Everything is reduced between ranks; rows are gathered by all.
    AllReduce,
    /// Everything is on servers.
    Ps,
    /// Tables whose gradients are rows are on servers, everything else is reduced.
    Hybrid,
    /// Like `Hybrid`, but a table goes to servers only where that is predicted to take less time, with what `measure` has found.
    Auto(MeasuredRates),
}

/// Where a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lodging {
    AllReduce,
    Servers,
}

/// The ranks that train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub hosts: usize,
    /// On the fullest host.
    pub workers_per_host: usize,
    /// Of each worker, in a step.
    pub samples_per_worker: usize,
}

/// Rows that a step touches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TouchedRows {
    /// Of a worker, as they come: with repetitions.
    pub raw: f64,
    /// Of all workers of a host, each once.
    pub union: f64,
}

/// What was measured before.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRates {
    /// Between hosts, bytes in a second, one way.
    pub wire: f64,
    /// Of a host's memory.
    pub memory: f64,
    /// By table. Of others, every row counts as new.
    pub rows: BTreeMap<String, TouchedRows>,
}

impl MeasuredRates {
    /// Seconds of a step that a table takes: its rows gathered by all workers, and on servers. A row that is gathered travels with a number of
    /// eight bytes, one to or from a server with one of four.
    pub fn predicted(&self, cluster: Cluster, rows: TouchedRows, row_bytes: f64) -> (f64, f64) {
        let (h, g) = (cluster.hosts as f64, cluster.workers_per_host as f64);
        let (w, f) = (h * g, (h - 1.0) / h);
        let (a, u) = (rows.raw * row_bytes, rows.union * row_bytes);
        let one_way = if cluster.hosts > 1 { (w - 1.0) * rows.raw * (row_bytes + 8.0) } else { 0.0 };
        let both_ways = 2.0 * rows.union * (row_bytes + 4.0) * f;
        // Beside the wire: all rows of all workers are merged and applied by each worker; or once, by servers that also hand rows out.
        let gathered = one_way / self.wire + 3.0 * g * w * a / self.memory;
        (gathered, both_ways / self.wire + (4.0 * g * a + 3.0 * u) / self.memory)
    }
}

/// A variable and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct AllottedVar {
    pub name: String,
    pub at: Lodging,
    pub why: String,
    /// Whether its gradients are rows.
    pub sparse: bool,
    /// In and out of a host in a step: reduced between ranks, and on servers.
    pub reduced_bytes: f64,
    pub served_bytes: f64,
    /// Of a table, if its gradients were made dense.
    pub dense_bytes: f64,
    /// What servers hold, if it is there.
    pub served: Option<ServedVar>,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq)]
pub struct Allotment {
    pub vars: Vec<AllottedVar>,
    pub cluster: Cluster,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllotError {
    #[error("there is no learned parameter `{name}` to be placed; the program has {known}")]
    Unknown { name: String, known: String },
    #[error("`{name}` cannot be on servers: {why}")]
    Unserved { name: String, why: Unserved },
    #[error("{hosts} hosts with {workers} workers each cannot train; there is at least one of each")]
    Empty { hosts: usize, workers: usize },
}

/// What rows on servers begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstRows {
    /// What a store of the configuration's seed would give them; ranks that only serve run `parallel_serve` with the same program.
    Seeded,
    /// A worker writes them. Ranks that only serve open what rank 0 offers, and need no program.
    Written,
}

/// Places every learned parameter. `overrides` name what goes somewhere whatever the strategy says.
pub fn place(
    program: &Program,
    strategy: &AllotmentStrategy,
    overrides: &BTreeMap<String, Lodging>,
    cluster: Cluster,
) -> Result<Allotment, AllotError> {
    place_with(program, strategy, overrides, cluster, FirstRows::Seeded)
}

/// The same; where a worker writes first values, they need not be in the program.
pub fn place_with(
    program: &Program,
    strategy: &AllotmentStrategy,
    overrides: &BTreeMap<String, Lodging>,
    cluster: Cluster,
    first: FirstRows,
) -> Result<Allotment, AllotError> {
    let Cluster { hosts, workers_per_host: workers, .. } = cluster;
    if hosts == 0 || workers == 0 {
        return Err(AllotError::Empty { hosts, workers });
    }
    let written = |id| program.ops().any(|(_, op)| op.outputs.contains(&id));
    let is_learned = |id, kind: &VarKind| matches!(kind, VarKind::Parameter(_)) && written(id);
    let learned: Vec<_> = program.vars().filter(|(id, var)| is_learned(*id, &var.kind)).collect();
    if let Some(name) = overrides.keys().find(|name| !learned.iter().any(|(_, var)| var.name == **name)) {
        let known = learned.iter().map(|(_, var)| format!("`{}`", var.name)).collect::<Vec<_>>().join(", ");
        return Err(AllotError::Unknown { name: name.clone(), known });
    }
    let mut vars = Vec::new();
    for (_, var) in learned {
        let bytes = var.sig.bytes(0) as f64;
        let served = match servable(program, &var.name) {
            Ok(served) if served.init == Init::Given && first == FirstRows::Seeded => Err(Unserved::Given),
            served => served,
        };
        let costs = Costs::new(program, &var.name, bytes, &served, strategy, cluster);
        let (at, why) = match overrides.get(&var.name) {
            Some(&at) => (at, "as it was asked for".to_string()),
            None => chosen(strategy, &served, &costs),
        };
        if let (Lodging::Servers, Err(why)) = (at, &served) {
            return Err(AllotError::Unserved { name: var.name.clone(), why: why.clone() });
        }
        let Costs { sparse, reduced, served: served_bytes, dense, .. } = costs;
        vars.push(AllottedVar {
            name: var.name.clone(),
            at,
            why,
            sparse,
            reduced_bytes: reduced,
            served_bytes,
            dense_bytes: dense,
            served: served.ok().filter(|_| at == Lodging::Servers),
        });
    }
    Ok(Allotment { vars, cluster })
}

impl Allotment {
    /// What is on servers.
    pub fn served(&self) -> impl Iterator<Item = &ServedVar> {
        self.vars.iter().filter_map(|var| var.served.as_ref())
    }

    /// Whether any rank serves: without tables nobody does.
    pub fn has_servers(&self) -> bool {
        self.served().next().is_some()
    }

    /// Whether anything is reduced between ranks.
    pub fn reduces(&self) -> bool {
        self.vars.iter().any(|var| var.at == Lodging::AllReduce)
    }

    /// In and out of a host in a step, of everything where it is.
    pub fn bytes_per_host(&self) -> f64 {
        let of = |var: &AllottedVar| match var.at {
            Lodging::AllReduce => var.reduced_bytes,
            Lodging::Servers => var.served_bytes,
        };
        self.vars.iter().map(of).sum()
    }

    /// A line for each variable: where it is, why, and the bytes of each choice.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        for var in &self.vars {
            let at = match var.at {
                Lodging::AllReduce => "allreduce",
                Lodging::Servers => "servers",
            };
            let AllottedVar { name, why, reduced_bytes, served_bytes, dense_bytes, .. } = var;
            let (reduced, dense) = match var.sparse {
                true => ("rows gathered by all", format!(", made dense {dense_bytes:.0}")),
                false => ("allreduce", String::new()),
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{name} -> {at}: {why}; bytes of a host in a step: {reduced} {reduced_bytes:.0}, servers {served_bytes:.0}{dense}"
            );
        }
        let Cluster { hosts, workers_per_host, .. } = self.cluster;
        let servers =
            if self.has_servers() { format!("{hosts} servers, one a host") } else { "no server".into() };
        let reduces = if self.reduces() { "allreduce for the rest" } else { "no allreduce" };
        let _ = writeln!(
            text,
            "{hosts} hosts x {workers_per_host} workers: {servers}, {reduces}; together {:.0} bytes",
            self.bytes_per_host()
        );
        text
    }
}

/// Bytes of a host in a step, and predicted seconds where something was measured.
struct Costs {
    sparse: bool,
    reduced: f64,
    served: f64,
    dense: f64,
    seconds: Option<(f64, f64)>,
}

impl Costs {
    fn new(
        program: &Program,
        name: &str,
        bytes: f64,
        served: &Result<ServedVar, Unserved>,
        strategy: &AllotmentStrategy,
        cluster: Cluster,
    ) -> Costs {
        let (h, g) = (cluster.hosts as f64, cluster.workers_per_host as f64);
        let (w, f) = (h * g, (h - 1.0) / h);
        let dense = 4.0 * bytes * f;
        let Some(sparse) = served.as_ref().ok().filter(|var| var.sparse) else {
            return Costs { sparse: false, reduced: dense, served: dense, dense, seconds: None };
        };
        let row = bytes / sparse.height as f64;
        let measured = match strategy {
            AllotmentStrategy::Auto(measured) => Some(measured),
            _ => None,
        };
        let of_shapes = || {
            let raw = rows_of(program, name, cluster.samples_per_worker) as f64;
            TouchedRows { raw, union: (g * raw).min(sparse.height as f64) }
        };
        let rows = measured.and_then(|m| m.rows.get(name)).copied().unwrap_or_else(of_shapes);
        let (a, u) = (rows.raw * row, rows.union * row);
        // All rows pass every host, unless there is but one.
        let reduced = if cluster.hosts > 1 { 2.0 * (w - 1.0) * a } else { 0.0 };
        let served = 4.0 * u * f;
        let seconds = measured.map(|m| m.predicted(cluster, rows, row));
        Costs { sparse: true, reduced, served, dense, seconds }
    }
}

/// Rows of a table's gradient in a step of a worker, by the shapes of the program.
fn rows_of(program: &Program, name: &str, n_samples: usize) -> usize {
    let gradient = program.find(&format!("{name}@GRAD"));
    let dims = gradient.map(|g| program.sig(g).shape.at(n_samples));
    dims.and_then(|dims| dims.first().copied()).unwrap_or(0)
}

fn chosen(
    strategy: &AllotmentStrategy,
    served: &Result<ServedVar, Unserved>,
    costs: &Costs,
) -> (Lodging, String) {
    match (strategy, served) {
        (AllotmentStrategy::AllReduce, _) => {
            (Lodging::AllReduce, "everything is reduced between ranks".into())
        }
        (AllotmentStrategy::Ps, Ok(_)) => (Lodging::Servers, "everything is on servers".into()),
        (AllotmentStrategy::Ps, Err(why)) => (Lodging::AllReduce, format!("it cannot be on servers: {why}")),
        (_, Err(why)) => (Lodging::AllReduce, format!("it cannot be on servers: {why}")),
        (_, Ok(var)) if !var.sparse => (Lodging::AllReduce, "its gradient is dense".into()),
        (AllotmentStrategy::Hybrid, Ok(_)) => (Lodging::Servers, "its gradient has rows only".into()),
        (AllotmentStrategy::Auto(_), Ok(_)) => {
            let (reduced, served) = costs.seconds.unwrap_or((0.0, 0.0));
            let times =
                format!("predicted {:.3} ms on servers, {:.3} ms gathered", served * 1e3, reduced * 1e3);
            match served < reduced {
                true => (Lodging::Servers, times),
                false => (Lodging::AllReduce, times),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::DType;
    use phalanx_graph::{Act, BATCH, Builder, Dim, Optimizer, Rule, layers::EmbeddingOptions};

    /// A table, a layer; `tied` uses the table as a matrix, too.
    fn program(table: bool, layer: bool, tied: bool) -> Program {
        let mut b = Builder::new();
        let ids = b.feed("ids", DType::I64, [BATCH, Dim::Fixed(10)]).unwrap();
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(10), Dim::Fixed(64)]).unwrap();
        let mut y = x;
        if table {
            let var = b.parameter("table", [1000, 64], Init::Xavier).unwrap();
            y = b.lookup(var, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
            if tied {
                let whole = b.mean(var).unwrap();
                y = b.add(y, whole).unwrap();
            }
        }
        if layer {
            y = b.fc(y, 3, Act::None).unwrap();
        }
        let loss = b.mean(y).unwrap();
        let loss = b.named(loss, "loss").unwrap();
        let mut program = b.finish().unwrap();
        Optimizer::new(Rule::Adagrad { epsilon: 1e-6 }, 0.1).minimize(&mut program, loss).unwrap();
        program
    }

    const AT: Cluster = Cluster { hosts: 4, workers_per_host: 2, samples_per_worker: 8 };

    fn placed(program: &Program, strategy: AllotmentStrategy) -> Allotment {
        place(program, &strategy, &BTreeMap::new(), AT).unwrap()
    }

    #[test]
    fn rows_go_to_servers_and_dense_gradients_to_allreduce() {
        // ALLOT-1, and the rows of the table of Parallax's behaviours.
        let both = placed(&program(true, true, false), AllotmentStrategy::Hybrid);
        let at: Vec<_> = both.vars.iter().map(|var| (var.name.as_str(), var.at)).collect();
        let reduced = |name| (name, Lodging::AllReduce);
        assert_eq!(at, [("table", Lodging::Servers), reduced("fc.w"), reduced("fc.b")]);
        assert!(both.has_servers() && both.reduces());
        let tied = placed(&program(true, true, true), AllotmentStrategy::Hybrid);
        assert!(!tied.has_servers(), "used both ways is dense: {}", tied.explain());
        let dense = placed(&program(false, true, false), AllotmentStrategy::Hybrid);
        assert!(!dense.has_servers() && dense.explain().contains("no server, allreduce for the rest"));
        let sparse = placed(&program(true, false, false), AllotmentStrategy::Hybrid);
        assert!(sparse.has_servers() && !sparse.reduces(), "{}", sparse.explain());
        assert!(sparse.explain().contains("4 servers, one a host, no allreduce"), "{}", sparse.explain());
        let all = placed(&program(true, true, false), AllotmentStrategy::Ps);
        assert!(all.vars.iter().all(|var| var.at == Lodging::Servers) && !all.reduces());
        let none = placed(&program(true, true, false), AllotmentStrategy::AllReduce);
        assert!(!none.has_servers());
    }

    #[test]
    fn bytes_are_those_of_the_formulas() {
        let both = placed(&program(true, true, false), AllotmentStrategy::Hybrid);
        let table = &both.vars[0];
        // 80 rows of 256 bytes a worker; 160 of a host.
        assert_eq!(table.reduced_bytes, 2.0 * 7.0 * 80.0 * 256.0);
        assert_eq!(table.served_bytes, 4.0 * 160.0 * 256.0 * 0.75);
        assert_eq!(table.dense_bytes, 4.0 * 256_000.0 * 0.75, "R4");
        assert_eq!(both.vars[1].reduced_bytes, 4.0 * (64.0 * 3.0 * 4.0) * 0.75);
        let text = both.explain();
        let line = "table -> servers: its gradient has rows only; bytes of a host in a step: rows gathered by all 286720, servers 122880, made dense 768000";
        assert_eq!(text.lines().next(), Some(line));
    }

    #[test]
    fn auto_takes_what_is_predicted_to_be_faster() {
        let measured = |wire: f64, raw: f64, union: f64| {
            let rows = [("table".to_string(), TouchedRows { raw, union })].into();
            AllotmentStrategy::Auto(MeasuredRates { wire, memory: 1e10, rows })
        };
        let program = program(true, true, false);
        let slow = placed(&program, measured(2.5e7, 80.0, 100.0));
        assert_eq!(slow.vars[0].at, Lodging::Servers, "{}", slow.explain());
        let two = Cluster { hosts: 2, workers_per_host: 1, samples_per_worker: 8 };
        let few = place(&program, &measured(2.5e12, 80.0, 80.0), &BTreeMap::new(), two).unwrap();
        assert_eq!(few.vars[0].served_bytes, few.vars[0].reduced_bytes);
        assert_eq!(
            few.vars[0].at,
            Lodging::AllReduce,
            "the wire takes no time, servers work more: {}",
            few.explain()
        );
        let often = place(&program, &measured(2.5e7, 80.0, 20.0), &BTreeMap::new(), two).unwrap();
        assert_eq!(often.vars[0].at, Lodging::Servers, "{}", often.explain());
    }

    /// R8: two tables of 2,000 rows with log-uniform numbers, 2 hosts with a worker each, 200 Mbit/s.
    #[test]
    fn auto_sees_that_frequent_rows_travel_once() {
        let two = Cluster { hosts: 2, workers_per_host: 1, samples_per_worker: 1 };
        let measured = MeasuredRates { wire: 2.5e7, memory: 5e9, rows: BTreeMap::new() };
        for (words, least_gain) in [(60, 0.9), (500, 1.5), (4000, 3.5)] {
            for n in [words, words * 9 / 5] {
                // How many different ones n numbers are, on average.
                let share = |row: usize| ((row as f64 + 2.0) / (row as f64 + 1.0)).ln() / 2001f64.ln();
                let union = (0..2000).map(|row| 1.0 - (1.0 - share(row)).powi(n)).sum();
                let rows = TouchedRows { raw: f64::from(n), union };
                let (gathered, served) = measured.predicted(two, rows, 256.0);
                assert!(gathered / served > least_gain, "{n} of {union}: {gathered} and {served} seconds");
            }
        }
    }

    #[test]
    fn values_that_are_given_are_served_where_a_worker_writes_them() {
        let mut b = Builder::new();
        let ids = b.feed("ids", DType::I64, [BATCH]).unwrap();
        let var = b.parameter("table", [10, 4], Init::Given).unwrap();
        let y = b.lookup(var, ids, EmbeddingOptions { sparse: true, padding: None }).unwrap();
        let loss = b.mean(y).unwrap();
        let mut program = b.finish().unwrap();
        Optimizer::new(Rule::Sgd, 0.1).minimize(&mut program, loss).unwrap();
        let of =
            |first| place_with(&program, &AllotmentStrategy::Hybrid, &BTreeMap::new(), AT, first).unwrap();
        assert!(of(FirstRows::Written).has_servers());
        let seeded = of(FirstRows::Seeded);
        assert!(
            !seeded.has_servers() && seeded.explain().contains("give it an `Init`"),
            "{}",
            seeded.explain()
        );
    }

    #[test]
    fn overrides_hold_and_bad_ones_are_named() {
        let program = program(true, true, false);
        let ask = |name: &str, at| {
            place(&program, &AllotmentStrategy::Hybrid, &[(name.to_string(), at)].into(), AT)
        };
        let turned = ask("table", Lodging::AllReduce).unwrap();
        assert!(!turned.has_servers());
        let served = ask("fc.w", Lodging::Servers).unwrap();
        assert_eq!(served.served().map(|var| var.name.as_str()).collect::<Vec<_>>(), ["table", "fc.w"]);
        let unknown = ask("tabel", Lodging::Servers).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no learned parameter `tabel` to be placed; the program has `table`, `fc.w`, `fc.b`"
        );
        let nobody = Cluster { hosts: 0, ..AT };
        assert!(place(&program, &AllotmentStrategy::Ps, &BTreeMap::new(), nobody).is_err());
    }
}
