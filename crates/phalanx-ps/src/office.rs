//! The office of a host: what its workers want of servers and give to them, collected. Pure: letters in, letters out.
//!
//! - OFFICE-1: in a step, a row is fetched from its server at most once for all workers of the host (consistency `Sync`); again after one of
//!   them has written rows, where the rows of a step take more than `KEPT_BYTES`, and of a table with raw rows each time.
//! - OFFICE-2: a push leaves the host when every worker of it has pushed that step; rows are added in the order of the workers.
//! - OFFICE-3: other consistencies collect nothing: what a worker wants or gives travels at once, in its name.

use crate::{
    exact_sum::ExactSum,
    gathering::{Gathering, Wait},
    letter::{LetterKind, RowLetter},
    placement::Placement,
    spec::{TableClip, TableSpec},
    split::{picked, servers_of, split},
    tables::Consistency,
    values::{RowValues, Rows},
};
use phalanx_core::{DType, Rank, kernel::update::clip_factor};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a step are kept up to so much for who asks again; evaluation may touch whole tables in one step.
const KEPT_BYTES: usize = 64 << 20;

/// To whom a letter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// A worker of this host.
    Worker(Rank),
    /// An office, by its number.
    Office(u32),
    Server(u32),
}

/// What has left this host and come to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfficeCounters {
    /// Rows that workers asked for, and those of them that servers were asked for.
    pub wanted_rows: u64,
    pub pulled_rows: u64,
    /// Rows that workers gave, and those that went to servers.
    pub given_rows: u64,
    pub pushed_rows: u64,
    /// Letters to servers.
    pub pulls: u64,
    pub pushes: u64,
}

/// The state of one host's office.
#[derive(Debug)]
pub struct Office {
    number: u32,
    workers: Vec<Rank>,
    specs: Vec<TableSpec>,
    placement: Placement,
    consistency: Consistency,
    next_ticket: u64,
    /// Rows that came or are on their way, for all workers (sync: by table and step) or for one (by its ticket).
    gathering: BTreeMap<(u32, u64, u64), Gathering>,
    /// Where the answer to a letter belongs.
    asked: BTreeMap<u64, Asked>,
    /// Requests that several servers answer, by the number of the request.
    requests: BTreeMap<u64, Request>,
    /// Pushes of workers that wait for the others, by table and step.
    pushes: BTreeMap<(u32, u64), Vec<Option<Gift>>>,
    /// The step that each worker pushes next, by table.
    next: Vec<Vec<u64>>,
    releases: BTreeMap<(u32, u64), Vec<Option<f64>>>,
    counters: OfficeCounters,
}

/// What a worker pushed: the rate, and its rows.
type Gift = (f64, Rows);

#[derive(Debug)]
enum Asked {
    Pull {
        key: (u32, u64, u64),
        slots: Vec<u32>,
    },
    /// A part of a request; where its rows belong.
    Part {
        of: u64,
        places: Vec<u32>,
    },
}

/// What several servers answer together.
#[derive(Debug)]
struct Request {
    /// Nobody for what the office wants for itself: the norm that a table is clipped by.
    to: Option<(Rank, u64)>,
    answer: LetterKind,
    table: u32,
    step: u64,
    left: usize,
    values: RowValues,
    sum: ExactSum,
}

impl Office {
    pub fn new(
        number: u32,
        workers: Vec<Rank>,
        specs: Vec<TableSpec>,
        placement: Placement,
        consistency: Consistency,
        step: u64,
    ) -> Office {
        Office {
            next: vec![vec![step; workers.len()]; specs.len()],
            number,
            workers,
            specs,
            placement,
            consistency,
            next_ticket: 0,
            gathering: BTreeMap::new(),
            asked: BTreeMap::new(),
            requests: BTreeMap::new(),
            pushes: BTreeMap::new(),
            releases: BTreeMap::new(),
            counters: OfficeCounters::default(),
        }
    }

    pub fn counters(&self) -> OfficeCounters {
        self.counters
    }

    /// Takes one letter of a worker or a server.
    pub fn step(&mut self, from: Port, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        match (from, letter.kind) {
            (Port::Worker(worker), LetterKind::Pull) => self.pull(worker, letter, out),
            (Port::Worker(worker), LetterKind::Push) => self.push(worker, letter, out),
            (Port::Worker(worker), LetterKind::Read | LetterKind::Write) => self.rows(worker, letter, out),
            (Port::Worker(worker), LetterKind::Norm) => {
                self.norm(Some((worker, letter.ticket)), letter.table, letter.step, out);
            }
            (Port::Worker(worker), LetterKind::Release) => self.release(worker, &letter, out),
            (Port::Worker(worker), LetterKind::Age) => {
                let to = Some((worker, letter.ticket));
                let letter = RowLetter { from: self.sender(worker), ..letter };
                self.ask_servers(to, LetterKind::Written, &letter, out);
            }
            (Port::Server(_), LetterKind::Pulled) => self.pulled(letter, out),
            (Port::Server(_), LetterKind::HaveRead | LetterKind::Written | LetterKind::NormIs) => {
                self.part(letter, out);
            }
            // A server that refuses one letter refuses what every worker of the host does with it.
            (Port::Server(_), LetterKind::Refused) => self.refuse(&letter.text(), out),
            // No member sends anything else.
            _ => {}
        }
    }

    /// A worker has said goodbye: servers shall not let others wait for it.
    pub fn leave(&self, worker: Rank, out: &mut Vec<(Port, RowLetter)>) {
        let Some(index) = self.index(worker) else { return };
        for (table, next) in (0..).zip(&self.next) {
            let letter = RowLetter { from: worker.0, ..RowLetter::new(LetterKind::Gone, table, next[index]) };
            let servers = servers_of(&self.placement, table);
            out.extend(servers.into_iter().map(|server| (Port::Server(server), letter.clone())));
        }
    }

    fn index(&self, worker: Rank) -> Option<usize> {
        self.workers.iter().position(|w| *w == worker)
    }

    fn refuse(&self, text: &str, out: &mut Vec<(Port, RowLetter)>) {
        let letter = |w: &Rank| (Port::Worker(*w), RowLetter::words(LetterKind::Refused, 0, text));
        out.extend(self.workers.iter().map(letter));
    }

    /// Rows of the table are about to change within the step: who asks from now on gets new ones.
    fn forget_rows(&mut self, table: u32) {
        self.gathering.retain(|key, gathering| key.0 != table || !gathering.waits.is_empty());
        let of_table = self.gathering.range_mut((table, 0, 0)..=(table, u64::MAX, u64::MAX));
        // Who waits already gets what was asked for.
        of_table.for_each(|(_, gathering)| gathering.slots.clear());
    }

    fn is_sync(&self) -> bool {
        self.consistency == Consistency::Sync
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// In whose name a server gets a letter.
    fn sender(&self, worker: Rank) -> u32 {
        if self.is_sync() { self.number } else { worker.0 }
    }

    fn pull(&mut self, worker: Rank, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let (table, step) = (letter.table, letter.step);
        let (row_bytes, is_raw) = (self.specs[table as usize].row_bytes(), self.specs[table as usize].raw);
        let alone = if self.is_sync() && !is_raw { 0 } else { self.ticket() };
        let key = (table, step, alone);
        let layout = self.placement.layout(table as usize);
        let gathering = self.gathering.entry(key).or_default();
        let mut slots = Vec::with_capacity(letter.rows.ids.len());
        let mut missing = BTreeSet::new();
        let mut asks: BTreeMap<u32, (Vec<u32>, Vec<u32>)> = BTreeMap::new();
        for &id in &letter.rows.ids {
            let fresh = gathering.bringer.len() as u32;
            let slot = if is_raw { fresh } else { *gathering.slots.entry(id).or_insert(fresh) };
            if slot == fresh {
                gathering.bringer.push(0);
                let (ids, to) = asks.entry(layout.place(id.into()).server).or_default();
                ids.push(id);
                to.push(slot);
            } else if gathering.bringer[slot as usize] != 0 {
                missing.insert(gathering.bringer[slot as usize]);
            }
            slots.push(slot);
        }
        let n_slots = gathering.bringer.len();
        gathering.values.resize(n_slots * row_bytes);
        self.counters.wanted_rows += slots.len() as u64;
        for (server, (ids, to)) in asks {
            let ticket = self.ticket();
            missing.insert(ticket);
            let gathering = self.gathering.get_mut(&key).expect("it was made above");
            to.iter().for_each(|&slot| gathering.bringer[slot as usize] = ticket);
            self.counters.pulled_rows += ids.len() as u64;
            self.counters.pulls += 1;
            self.asked.insert(ticket, Asked::Pull { key, slots: to });
            let rows = Rows { ids, ..Rows::default() };
            let from = self.sender(worker);
            out.push((
                Port::Server(server),
                RowLetter { from, ticket, rows, ..RowLetter::new(LetterKind::Pull, table, step) },
            ));
        }
        let wait = Wait { worker, ticket: letter.ticket, slots, missing };
        self.gathering.get_mut(&key).expect("it was made above").waits.push(wait);
        self.answer(key, out);
    }

    fn pulled(&mut self, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let Some(Asked::Pull { key, slots }) = self.asked.remove(&letter.ticket) else { return };
        let spec = &self.specs[key.0 as usize];
        let row_bytes = spec.row_bytes();
        let values = letter.rows.values.convert(spec.wire_dtype(), spec.dtype);
        if values.len() != slots.len() * row_bytes {
            let text = format!(
                "table {:?}: a server sent {} bytes for {} rows",
                spec.name,
                values.len(),
                slots.len()
            );
            return self.refuse(&text, out);
        }
        // A step that is over wants nothing any more.
        let Some(gathering) = self.gathering.get_mut(&key) else { return };
        gathering.bring(letter.ticket, &slots, &values, row_bytes);
        self.answer(key, out);
    }

    /// Gives rows to the workers for whom all of them are there.
    fn answer(&mut self, key: (u32, u64, u64), out: &mut Vec<(Port, RowLetter)>) {
        let row_bytes = self.specs[key.0 as usize].row_bytes();
        let gathering = self.gathering.get_mut(&key).expect("callers have it");
        for (wait, values) in gathering.take_ready(row_bytes) {
            let rows = Rows { values, ..Rows::default() };
            let letter =
                RowLetter { ticket: wait.ticket, rows, ..RowLetter::new(LetterKind::Pulled, key.0, key.1) };
            out.push((Port::Worker(wait.worker), letter));
        }
        let is_large = gathering.values.len() > KEPT_BYTES;
        if (key.2 != 0 || is_large) && gathering.waits.is_empty() {
            self.gathering.remove(&key);
        }
    }

    fn push(&mut self, worker: Rank, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let key = (letter.table, letter.step);
        let Some(index) = self.index(worker) else { return };
        self.counters.given_rows += letter.rows.ids.len() as u64;
        self.next[key.0 as usize][index] = letter.step + 1;
        if !self.is_sync() {
            let from = worker.0;
            return self.forward(key, from, letter.number, letter.rows, out);
        }
        let n = self.workers.len();
        let given = self.pushes.entry(key).or_insert_with(|| vec![None; n]);
        given[index] = Some((letter.number, letter.rows));
        if given.iter().any(Option::is_none) {
            return;
        }
        let given: Vec<Gift> =
            self.pushes.remove(&key).expect("it was found above").into_iter().flatten().collect();
        // Nobody of this host asks for rows of this step any more.
        self.gathering.remove(&(key.0, key.1, 0));
        // Who has joined has no rate.
        let first = given.iter().position(|(rate, _)| !rate.is_nan()).unwrap_or(0);
        let rate = given[first].0;
        let differs = |other: f64| !other.is_nan() && other.to_bits() != rate.to_bits();
        if let Some(at) = given.iter().position(|(other, _)| differs(*other)) {
            let spec = &self.specs[key.0 as usize].name;
            let (a, b, other) = (self.workers[first], self.workers[at], given[at].0);
            let text = format!(
                "table {spec:?}, step {}: rank {a} has the rate {rate}, rank {b} has {other}; every rank must push with the same rate",
                key.1
            );
            return self.refuse(&text, out);
        }
        let spec = &self.specs[key.0 as usize];
        // One worker's rows go on as they came.
        let merges = spec.raw && given.len() > 1;
        let once = |(_, rows): Gift| if merges { rows.of_raw(spec) } else { rows };
        let rows = Rows::merge(given.into_iter().map(once).collect(), spec.width, spec.dtype);
        let rows = if spec.raw { Rows { touches: Vec::new(), ..rows } } else { rows };
        self.forward(key, self.number, rate, rows, out);
        if matches!(self.specs[key.0 as usize].rule.clip, TableClip::Norm(_)) {
            self.norm(None, key.0, key.1, out);
        }
    }

    /// Every server of the table gets its rows, if only none: servers count contributions.
    fn forward(
        &mut self,
        key: (u32, u64),
        from: u32,
        rate: f64,
        rows: Rows,
        out: &mut Vec<(Port, RowLetter)>,
    ) {
        let spec = &self.specs[key.0 as usize];
        self.counters.pushed_rows += rows.ids.len() as u64;
        for (server, rows) in split(&self.placement, key.0, spec.row_bytes(), rows) {
            self.counters.pushes += 1;
            let values = rows.values.convert(spec.dtype, spec.wire_dtype());
            let rows = Rows { values, ..rows };
            let letter =
                RowLetter { from, number: rate, rows, ..RowLetter::new(LetterKind::Push, key.0, key.1) };
            out.push((Port::Server(server), letter));
        }
    }

    /// Reads or replaces rows as they are.
    fn rows(&mut self, worker: Rank, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let (table, step, part, kind) = (letter.table, letter.step, letter.part, letter.kind);
        if kind == LetterKind::Write {
            self.forget_rows(table);
        }
        let row_bytes = self.specs[table as usize].row_bytes();
        let of = self.ticket();
        let n = letter.rows.ids.len();
        let layout = self.placement.layout(table as usize);
        let mut parts: BTreeMap<u32, (Vec<u32>, Vec<u32>)> = BTreeMap::new();
        for (at, &id) in letter.rows.ids.iter().enumerate() {
            let (ids, places) = parts.entry(layout.place(id.into()).server).or_default();
            ids.push(id);
            places.push(at as u32);
        }
        let (answer, values) = match kind {
            LetterKind::Read => (LetterKind::HaveRead, RowValues::zeros(n * row_bytes)),
            _ => (LetterKind::Written, RowValues::default()),
        };
        let to = Some((worker, letter.ticket));
        let sum = ExactSum::default();
        self.requests.insert(of, Request { to, answer, table, step, left: parts.len(), values, sum });
        for (server, (ids, places)) in parts {
            let ticket = self.ticket();
            let values = match kind {
                LetterKind::Read => RowValues::default(),
                _ => picked(&letter.rows.values, &places, row_bytes),
            };
            self.asked.insert(ticket, Asked::Part { of, places });
            let (from, rows) = (self.sender(worker), Rows { ids, values, ..Rows::default() });
            out.push((
                Port::Server(server),
                RowLetter { part, from, ticket, rows, ..RowLetter::new(kind, table, step) },
            ));
        }
        self.close(of, out);
    }

    fn norm(&mut self, to: Option<(Rank, u64)>, table: u32, step: u64, out: &mut Vec<(Port, RowLetter)>) {
        let letter = RowLetter { from: self.number, ..RowLetter::new(LetterKind::Norm, table, step) };
        self.ask_servers(to, LetterKind::NormIs, &letter, out);
    }

    /// Every server of a table gets a letter, and all of them answer together.
    fn ask_servers(
        &mut self,
        to: Option<(Rank, u64)>,
        answer: LetterKind,
        letter: &RowLetter,
        out: &mut Vec<(Port, RowLetter)>,
    ) {
        let (table, step, of) = (letter.table, letter.step, self.ticket());
        let servers = servers_of(&self.placement, table);
        let (left, values, sum) = (servers.len(), RowValues::default(), ExactSum::default());
        self.requests.insert(of, Request { to, answer, table, step, left, values, sum });
        for server in servers {
            let ticket = self.ticket();
            self.asked.insert(ticket, Asked::Part { of, places: Vec::new() });
            out.push((Port::Server(server), RowLetter { ticket, ..letter.clone() }));
        }
    }

    /// One server's part of the answer to a request.
    fn part(&mut self, letter: RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let Some(Asked::Part { of, places }) = self.asked.remove(&letter.ticket) else { return };
        let Some(request) = self.requests.get_mut(&of) else { return };
        request.left -= 1;
        let row_bytes = self.specs[request.table as usize].row_bytes();
        match letter.kind {
            LetterKind::HaveRead => {
                for (&at, row) in places.iter().zip(letter.rows.values.bytes().chunks_exact(row_bytes)) {
                    let at = at as usize * row_bytes;
                    request.values.bytes_mut()[at..at + row_bytes].copy_from_slice(row);
                }
            }
            LetterKind::NormIs => {
                if let Some(sum) = ExactSum::from_bytes(letter.rows.values.bytes()) {
                    request.sum.add_sum(&sum);
                }
            }
            _ => {}
        }
        self.close(of, out);
    }

    /// Answers a request if every server has.
    fn close(&mut self, of: u64, out: &mut Vec<(Port, RowLetter)>) {
        if self.requests.get(&of).is_none_or(|request| request.left > 0) {
            return;
        }
        let Request { to, answer, table, step, values, sum, .. } =
            self.requests.remove(&of).expect("it was found above");
        let Some((worker, ticket)) = to else { return self.clip(table, step, &sum, out) };
        let values = if answer == LetterKind::NormIs { RowValues::of(&sum.to_bytes()) } else { values };
        let rows = Rows { values, ..Rows::default() };
        out.push((Port::Worker(worker), RowLetter { ticket, rows, ..RowLetter::new(answer, table, step) }));
    }

    /// Every office computes the same factor from the same norm.
    fn clip(&mut self, table: u32, step: u64, sum: &ExactSum, out: &mut Vec<(Port, RowLetter)>) {
        let spec = &self.specs[table as usize];
        let TableClip::Norm(limit) = spec.rule.clip else { return };
        let factor = match spec.dtype {
            DType::F64 => clip_factor(sum.value(), limit),
            _ => f64::from(clip_factor(sum.value() as f32, limit)),
        };
        self.send_release(table, step, factor, out);
    }

    fn release(&mut self, worker: Rank, letter: &RowLetter, out: &mut Vec<(Port, RowLetter)>) {
        let key = (letter.table, letter.step);
        let Some(index) = self.index(worker) else { return };
        let n = self.workers.len();
        let given = self.releases.entry(key).or_insert_with(|| vec![None; n]);
        given[index] = Some(letter.number);
        if given.iter().any(Option::is_none) {
            return;
        }
        let given: Vec<f64> =
            self.releases.remove(&key).expect("it was found above").into_iter().flatten().collect();
        let factor = given[0];
        match given.iter().position(|other| other.to_bits() != factor.to_bits()) {
            None => self.send_release(key.0, key.1, factor, out),
            Some(at) => {
                let (table, step) = (&self.specs[key.0 as usize].name, key.1);
                let (a, b, other) = (self.workers[0], self.workers[at], given[at]);
                let text = format!(
                    "table {table:?}, step {step}: rank {a} has the factor {factor}, rank {b} has {other}; every rank must release with the same factor"
                );
                self.refuse(&text, out);
            }
        }
    }

    fn send_release(&self, table: u32, step: u64, factor: f64, out: &mut Vec<(Port, RowLetter)>) {
        for server in servers_of(&self.placement, table) {
            let letter = RowLetter {
                from: self.number,
                number: factor,
                ..RowLetter::new(LetterKind::Release, table, step)
            };
            out.push((Port::Server(server), letter));
        }
    }
}
