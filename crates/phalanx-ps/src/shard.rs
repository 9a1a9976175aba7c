//! A server: the partitions that it has, and when they change. Pure: letters in, letters out.
//!
//! - SHARD-1: with `Sync`, a pull of step t is answered with version t, and only with it: all pushes of step t, added in the order of the offices,
//!   make version t + 1, or nothing does.
//! - SHARD-2: with `Bounded(k)`, a pull of step t is answered when every worker has pushed step t - k - 1.
//! - SHARD-3: an element's bits do not depend on partitions, servers, or the order in which letters arrive (`Sync`).

use crate::{
    exact_sum::ExactSum,
    letter::{LetterKind, RowLetter},
    office::Port,
    placement::Placement,
    spec::{RowReduction, TableClip, TableRule, TableSpec, TableUpdate},
    split::servers_of,
    tables::Consistency,
    values::{RowValues, Rows},
};
use phalanx_core::{
    DType,
    kernel::{
        Float,
        update::{self, AdamStep},
    },
};
use std::collections::BTreeMap;

/// What a server is told of the world.
#[derive(Clone, Debug)]
pub struct ShardSetup {
    pub server: u32,
    pub specs: Vec<TableSpec>,
    pub placement: Placement,
    pub consistency: Consistency,
    /// How many offices push (`Sync`).
    pub n_offices: u32,
    pub n_workers: u32,
    /// The first step.
    pub step: u64,
}

/// The state of one server.
#[derive(Debug)]
pub struct Shard {
    setup: ShardSetup,
    tables: Vec<ServedTable>,
}

#[derive(Debug)]
struct ServedTable {
    /// By partition; `None` where another server has it.
    stores: Vec<Option<Store>>,
    /// Steps that were applied, or pushes (other consistencies).
    version: u64,
    /// What each office or worker will push next.
    next: Vec<u64>,
    pushes: BTreeMap<u64, BTreeMap<u32, (f64, Rows)>>,
    releases: BTreeMap<u64, BTreeMap<u32, f64>>,
    /// The whole gradient of a step whose factor is not known.
    held: Option<Held>,
    /// Pulls, reads and writes that wait for their step, as they came.
    pulls: Vec<(Port, RowLetter)>,
    /// Who has said goodbye, and the first step that it never pushes; the earliest such step.
    gone: Option<(u64, u32)>,
    norms: Vec<(Port, RowLetter)>,
    /// How many more steps its rule has counted than were applied here: those before a resume.
    older: i64,
}

#[derive(Debug)]
struct Held {
    rate: f64,
    rows: Rows,
    norm: ExactSum,
}

/// One partition: its rows, and as many of each state.
#[derive(Debug)]
struct Store {
    parts: Vec<RowValues>,
}

impl Shard {
    /// With first values.
    pub fn new(setup: ShardSetup) -> Shard {
        let n_pushers = match setup.consistency {
            Consistency::Sync => setup.n_offices,
            _ => setup.n_workers,
        };
        let table = |(number, spec): (usize, &TableSpec)| {
            let layout = setup.placement.layout(number);
            let store = |partition: u32| {
                (layout.server_of(partition) == setup.server).then(|| {
                    let n_rows = layout.n_rows(partition) as usize;
                    let mut values = RowValues::zeros(n_rows * spec.row_bytes());
                    for (at, row) in values.bytes_mut().chunks_exact_mut(spec.row_bytes()).enumerate() {
                        (spec.first)(layout.row(partition, at), row);
                    }
                    let state = || {
                        let mut state = RowValues::zeros(n_rows * spec.row_bytes());
                        match spec.dtype {
                            DType::F64 => state.as_mut_slice::<f64>().fill(spec.rule.first_state),
                            _ => state.as_mut_slice::<f32>().fill(spec.rule.first_state as f32),
                        }
                        state
                    };
                    let states = std::iter::repeat_with(state).take(spec.rule.n_states());
                    Store { parts: std::iter::once(values).chain(states).collect() }
                })
            };
            ServedTable {
                stores: (0..layout.n_partitions()).map(store).collect(),
                version: setup.step,
                next: vec![setup.step; n_pushers as usize],
                pushes: BTreeMap::new(),
                releases: BTreeMap::new(),
                held: None,
                pulls: Vec::new(),
                gone: None,
                norms: Vec::new(),
                older: 0,
            }
        };
        let tables = setup.specs.iter().enumerate().map(table).collect();
        Shard { setup, tables }
    }

    /// The version of a table: how many steps were applied.
    pub fn version(&self, table: usize) -> u64 {
        self.tables[table].version
    }

    /// Takes one letter of an office.
    pub fn step(&mut self, from: Port, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let number = letter.table as usize;
        let pusher = letter.from as usize;
        if matches!(letter.kind, LetterKind::Push | LetterKind::Release)
            && pusher >= self.tables[number].next.len()
        {
            return refuse(from, &format!("there is no pusher number {pusher}"), out);
        }
        let is_own = self.setup.consistency != Consistency::Sync || from == Port::Office(letter.from);
        if matches!(letter.kind, LetterKind::Push | LetterKind::Release) && !is_own {
            return refuse(from, &format!("a letter of office {pusher} that comes from another one"), out);
        }
        match letter.kind {
            LetterKind::Pull | LetterKind::Read | LetterKind::Write | LetterKind::Age => {
                self.tables[number].pulls.push((from, letter));
            }
            LetterKind::Push => self.push(from, letter, out),
            LetterKind::Gone => {
                let gone = (letter.step, letter.from);
                let known = &mut self.tables[number].gone;
                *known = Some(known.map_or(gone, |known| known.min(gone)));
            }
            LetterKind::Norm => self.tables[number].norms.push((from, letter)),
            LetterKind::Release => {
                let releases = self.tables[number].releases.entry(letter.step).or_default();
                releases.insert(letter.from, letter.number);
            }
            _ => return refuse(from, "a server does not take such a letter", out),
        }
        self.advance(number, out);
        self.answer(number, out);
    }

    fn push(&mut self, from: Port, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let spec = &self.setup.specs[letter.table as usize];
        let table = &mut self.tables[letter.table as usize];
        let next = &mut table.next[letter.from as usize];
        if letter.step != *next {
            let text = format!(
                "table {:?}: step {} was pushed where step {next} comes next",
                spec.name, letter.step
            );
            return refuse(from, &text, out);
        }
        *next += 1;
        let values = letter.rows.values.convert(spec.wire_dtype(), spec.dtype);
        let rows = Rows { values, ..letter.rows };
        let rows = if spec.raw { rows.of_raw(spec) } else { rows };
        let step = match self.setup.consistency {
            Consistency::Sync => letter.step,
            // Each push is a step of its own.
            _ => {
                let last = table.pushes.keys().next_back().map_or(table.version, |last| last + 1);
                last.max(table.version)
            }
        };
        table.pushes.entry(step).or_default().insert(letter.from, (letter.number, rows));
    }

    /// Applies what is complete.
    fn advance(&mut self, number: usize, out: &mut Vec<(Port, RowLetter)>) {
        let spec = &self.setup.specs[number];
        let n_wanted = match self.setup.consistency {
            Consistency::Sync => self.setup.n_offices as usize,
            _ => 1,
        };
        loop {
            let table = &mut self.tables[number];
            let step = table.version;
            if table.held.is_none() {
                if table.pushes.get(&step).is_none_or(|pushes| pushes.len() < n_wanted) {
                    return;
                }
                let pushes = table.pushes.remove(&step).expect("it was found above");
                let rates: BTreeMap<u32, f64> = pushes.iter().map(|(&of, (rate, _))| (of, *rate)).collect();
                let rate = match agreed(&rates) {
                    Ok(rate) => rate,
                    Err(both) => {
                        let text = format!(
                            "table {:?}, step {step}: {both} as rates; every rank must push with the same rate",
                            spec.name
                        );
                        return refuse_all(self.setup.n_offices, &text, out);
                    }
                };
                let rows = pushes.into_values().map(|(_, rows)| rows).collect();
                let mut rows = Rows::merge(rows, spec.width, spec.dtype);
                reduce(&mut rows, spec, self.setup.n_workers);
                let norm =
                    if spec.rule.clip == TableClip::No { ExactSum::default() } else { norm(&rows, spec) };
                table.held = Some(Held { rate, rows, norm });
            }
            let factor = match spec.rule.clip {
                TableClip::No => 1.0,
                _ => match table.releases.get(&step) {
                    Some(given) if given.len() >= n_wanted => match agreed(given) {
                        Ok(factor) => factor,
                        Err(both) => {
                            let text = format!(
                                "table {:?}, step {step}: {both} as factors; every rank must release with the same factor",
                                spec.name
                            );
                            table.releases.remove(&step);
                            return refuse_all(self.setup.n_offices, &text, out);
                        }
                    },
                    _ => return,
                },
            };
            table.releases.remove(&step);
            let held = table.held.take().expect("it was set above");
            let layout = self.setup.placement.layout(number);
            match spec.dtype {
                DType::F64 => apply::<f64>(table, spec, layout, held, factor),
                _ => apply::<f32>(table, spec, layout, held, factor),
            }
            table.version += 1;
        }
    }

    /// Answers what can be answered now.
    fn answer(&mut self, number: usize, out: &mut Vec<(Port, RowLetter)>) {
        let table = &mut self.tables[number];
        let version = table.version;
        let pushed_by_all = table.next.iter().copied().min().unwrap_or(version);
        let is_ready = |step: u64| match self.setup.consistency {
            Consistency::Sync => step <= version,
            Consistency::Bounded(k) => step <= pushed_by_all.saturating_add(k),
            Consistency::Async => true,
        };
        let (ready, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut table.pulls).into_iter().partition(|(_, letter)| is_ready(letter.step));
        table.pulls = rest;
        for (to, letter) in ready {
            let text = match self.setup.consistency {
                Consistency::Sync if letter.step < version => {
                    Some(format!("rows of step {} are gone: the table is at step {version}", letter.step))
                }
                _ => None,
            };
            match text {
                Some(text) => refuse(to, &text, out),
                None if letter.kind == LetterKind::Write => self.write(to, &letter, out),
                None if letter.kind == LetterKind::Age => {
                    self.tables[number].older = letter.number as i64 - version as i64;
                    out.push((to, written(&letter)));
                }
                None => out.push((to, self.fetch(&letter))),
            }
        }
        self.refuse_the_late(number, out);
        let table = &mut self.tables[number];
        let step = table.version;
        if let Some(held) = &table.held {
            let bytes = held.norm.to_bytes();
            let (ready, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut table.norms).into_iter().partition(|(_, letter)| letter.step == step);
            table.norms = rest;
            for (to, letter) in ready {
                let rows = Rows { values: RowValues::of(&bytes), ..Rows::default() };
                out.push((
                    to,
                    RowLetter {
                        ticket: letter.ticket,
                        rows,
                        ..RowLetter::new(LetterKind::NormIs, letter.table, step)
                    },
                ));
            }
        }
    }

    /// What waits for a push of a worker that has said goodbye is refused.
    fn refuse_the_late(&mut self, number: usize, out: &mut Vec<(Port, RowLetter)>) {
        let table = &mut self.tables[number];
        let Some((end, rank)) = table.gone else { return };
        let slack = match self.setup.consistency {
            Consistency::Sync => 0,
            Consistency::Bounded(k) => k,
            Consistency::Async => return,
        };
        let in_vain: Vec<Port> = table
            .pulls
            .extract_if(.., |(_, letter)| letter.step > end.saturating_add(slack))
            .chain(table.norms.extract_if(.., |(_, letter)| letter.step >= end))
            .map(|(to, _)| to)
            .collect();
        let name = &self.setup.specs[number].name;
        let text = format!("table {name:?}: rank {rank} has closed its tables and never pushes step {end}");
        in_vain.into_iter().for_each(|to| refuse(to, &text, out));
    }

    fn fetch(&self, letter: &RowLetter) -> RowLetter {
        let spec = &self.setup.specs[letter.table as usize];
        let layout = self.setup.placement.layout(letter.table as usize);
        let table = &self.tables[letter.table as usize];
        let row_bytes = spec.row_bytes();
        let mut values = RowValues::zeros(letter.rows.ids.len() * row_bytes);
        for (to, &id) in values.bytes_mut().chunks_exact_mut(row_bytes).zip(&letter.rows.ids) {
            let place = layout.place(id.into());
            if let Some(store) = &table.stores[place.partition as usize] {
                let at = place.at * row_bytes;
                to.copy_from_slice(&store.parts[usize::from(letter.part)].bytes()[at..at + row_bytes]);
            }
        }
        let (kind, values) = match letter.kind {
            LetterKind::Pull => (LetterKind::Pulled, values.convert(spec.dtype, spec.wire_dtype())),
            _ => (LetterKind::HaveRead, values),
        };
        let rows = Rows { values, ..Rows::default() };
        RowLetter {
            ticket: letter.ticket,
            part: letter.part,
            rows,
            ..RowLetter::new(kind, letter.table, letter.step)
        }
    }

    fn write(&mut self, from: Port, letter: &RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let spec = &self.setup.specs[letter.table as usize];
        let layout = self.setup.placement.layout(letter.table as usize);
        let table = &mut self.tables[letter.table as usize];
        let row_bytes = spec.row_bytes();
        for (row, &id) in letter.rows.values.bytes().chunks_exact(row_bytes).zip(&letter.rows.ids) {
            let place = layout.place(id.into());
            if let Some(store) = &mut table.stores[place.partition as usize] {
                let at = place.at * row_bytes;
                store.parts[usize::from(letter.part)].bytes_mut()[at..at + row_bytes].copy_from_slice(row);
            }
        }
        out.push((from, written(letter)));
    }

    /// What this server has, for messages about its loss.
    pub fn serves(specs: &[TableSpec], placement: &Placement, server: u32) -> String {
        let names =
            specs.iter().enumerate().filter(|(i, _)| servers_of(placement, *i as u32).contains(&server));
        let names: Vec<&str> = names.map(|(_, spec)| spec.name.as_str()).collect();
        if names.is_empty() { "no table".to_string() } else { format!("partitions of {}", names.join(", ")) }
    }
}

fn written(letter: &RowLetter) -> RowLetter {
    RowLetter { ticket: letter.ticket, ..RowLetter::new(LetterKind::Written, letter.table, letter.step) }
}

fn refuse(to: Port, text: &str, out: &mut Vec<(Port, RowLetter)>) {
    out.push((to, RowLetter::words(LetterKind::Refused, 0, text)));
}

fn refuse_all(n_offices: u32, text: &str, out: &mut Vec<(Port, RowLetter)>) {
    (0..n_offices).for_each(|office| refuse(Port::Office(office), text, out));
}

/// The number that all offices gave, or words about two that differ. One whose workers have all joined gives none; 0 where no office gives one.
fn agreed(given: &BTreeMap<u32, f64>) -> Result<f64, String> {
    let mut some = given.iter().filter(|(_, number)| !number.is_nan());
    let Some((&first, &number)) = some.next() else { return Ok(0.0) };
    match some.find(|(_, other)| other.to_bits() != number.to_bits()) {
        None => Ok(number),
        Some((office, other)) => Err(format!("host {first} has {number} and host {office} has {other}")),
    }
}

fn reduce(rows: &mut Rows, spec: &TableSpec, n_workers: u32) {
    fn divide<T: Float>(rows: &mut Rows, width: usize, by: impl Fn(&[u32], usize) -> f64) {
        let touches = std::mem::take(&mut rows.touches);
        for (i, row) in rows.values.as_mut_slice::<T>().chunks_exact_mut(width).enumerate() {
            let by = T::of(by(&touches, i));
            row.iter_mut().for_each(|v| *v = *v / by);
        }
    }
    let by = |touches: &[u32], i: usize| match spec.reduction {
        RowReduction::ByTouch => f64::from(touches.get(i).copied().unwrap_or(1).max(1)),
        _ => f64::from(n_workers),
    };
    match (spec.reduction, spec.dtype) {
        (RowReduction::Sum, _) => {}
        (_, DType::F64) => divide::<f64>(rows, spec.width, by),
        _ => divide::<f32>(rows, spec.width, by),
    }
}

fn norm(rows: &Rows, spec: &TableSpec) -> ExactSum {
    fn squares<T: Float>(values: &[T], sum: &mut ExactSum) {
        values.iter().for_each(|v| sum.add(v.wide() * v.wide()));
    }
    let mut sum = ExactSum::default();
    match spec.dtype {
        DType::F64 => squares(rows.values.as_slice::<f64>(), &mut sum),
        _ => squares(rows.values.as_slice::<f32>(), &mut sum),
    }
    sum
}

fn apply<T: Float>(
    table: &mut ServedTable,
    spec: &TableSpec,
    layout: &crate::placement::TableLayout,
    held: Held,
    factor: f64,
) {
    let TableRule { update, decay, .. } = spec.rule;
    let rate = T::of(held.rate);
    let adam = match update {
        TableUpdate::Adam(adam) => Some(adam.at(table.version as i64 + table.older + 1, rate)),
        _ => None,
    };
    let (width, mut values) = (spec.width, held.rows.values);
    for (&id, g) in held.rows.ids.iter().zip(values.as_mut_slice::<T>().chunks_exact_mut(width)) {
        let place = layout.place(id.into());
        let Some(store) = &mut table.stores[place.partition as usize] else { continue };
        if factor != 1.0 {
            let factor = T::of(factor);
            g.iter_mut().for_each(|g| *g *= factor);
        }
        let range = place.at * width..(place.at + 1) * width;
        let (p, states) = store.parts.split_first_mut().expect("the parameter is the first part");
        let p = &mut p.as_mut_slice::<T>()[range.clone()];
        if decay != 0.0 {
            update::decay(g, p, T::of(decay));
        }
        let states = states.iter_mut().map(|state| &mut state.as_mut_slice::<T>()[range.clone()]);
        change(update, adam, rate, p, states, g);
    }
}

/// One row's update.
fn change<'a, T: Float>(
    update: TableUpdate,
    adam: Option<AdamStep<T>>,
    rate: T,
    p: &mut [T],
    mut states: impl Iterator<Item = &'a mut [T]>,
    g: &[T],
) {
    let mut state = || states.next().expect("a table has the states of its rule");
    match update {
        TableUpdate::Sgd => update::sgd(p, g, rate),
        TableUpdate::Momentum(rule) => rule.apply(p, state(), g, rate),
        TableUpdate::Adagrad(rule) => rule.apply(p, state(), g, rate),
        TableUpdate::RmsProp(rule) => rule.apply(p, state(), state(), g, rate),
        TableUpdate::Adam(_) => {
            adam.expect("its numbers were computed for this step").apply(p, state(), state(), g);
        }
    }
}
