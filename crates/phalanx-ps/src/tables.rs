//! What a worker sees of tables on servers.

use crate::{
    error::PsError,
    exact_sum::ExactSum,
    greeting,
    letter::{LetterKind, RowLetter},
    line::{self, Line},
    memory,
    office::{Office, OfficeCounters},
    placement::Placement,
    reshard::Reopened,
    seats::Seats,
    shard::{Shard, ShardSetup},
    spec::{RowReduction, TableClip, TableSpec},
    station::{Station, StationSetup},
    values::{RowValues, Rows},
};
use phalanx_core::Rank;
use phalanx_net::World;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// More steps than any training makes, and few enough to be exact in a letter.
const MOST_STEPS: u64 = 1 << 52;

/// How far workers may be apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// All see the rows of the same step.
    Sync,
    /// Nobody is more steps than this ahead of the slowest.
    Bounded(u64),
    /// Nobody waits for anybody.
    Async,
}

/// How tables are opened, on all ranks alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableTerms {
    pub consistency: Consistency,
    /// The first step.
    pub step: u64,
    /// Whether the office of a host collects what its workers want and give. Otherwise each worker asks servers by itself.
    pub collects: bool,
    /// The most bytes that a server may hold; otherwise what its machine has free.
    pub most_bytes: Option<u64>,
}

impl Default for TableTerms {
    fn default() -> TableTerms {
        TableTerms { consistency: Consistency::Sync, step: 0, collects: true, most_bytes: None }
    }
}

/// What was asked for, and what of it left the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounters {
    pub office: OfficeCounters,
    /// Over links of this process's station.
    pub bytes_out: u64,
    pub bytes_in: u64,
}

/// The tables of a world, from one rank.
#[derive(Debug)]
pub struct Tables {
    pub(crate) line: Line,
    pub(crate) terms: TableTerms,
    /// The step that each table gets next.
    pub(crate) next_push: Vec<u64>,
    /// How many more steps each table's rule has counted: those before a resume.
    pub(crate) older: Vec<i64>,
}

impl Tables {
    /// Opens tables on all ranks of the world, servers included; every rank calls it with the same arguments. The first step is `step`.
    pub fn open(
        world: &Arc<World>,
        specs: Vec<TableSpec>,
        consistency: Consistency,
        step: u64,
    ) -> Result<Tables, PsError> {
        Tables::open_as(world, specs, TableTerms { consistency, step, ..TableTerms::default() })
    }

    /// The same on other terms.
    pub fn open_as(world: &Arc<World>, specs: Vec<TableSpec>, terms: TableTerms) -> Result<Tables, PsError> {
        let TableTerms { consistency, step, collects, most_bytes } = terms;
        check(&specs, terms)?;
        let seats = match collects {
            true => Seats::of(world.workers(), world.servers()),
            false => Seats::of_each(world.workers(), world.servers()),
        };
        let placement = Placement::greedy(&specs, seats.servers().len() as u32);
        let specs: Arc<[TableSpec]> = specs.into();
        let me = world.rank();
        if !world.is_ours() {
            return Err(PsError::Forked);
        }
        let stream = world.next_tables();
        let (office, server) = (seats.office_at(me), seats.server_at(me));
        let fits = server.map_or(Ok(()), |server| {
            let (bytes, room) =
                (placement.loads()[server as usize], memory::free().into_iter().chain(most_bytes).min());
            has_room(&specs, &placement, (me, server), bytes, room)
        });
        let mine = greeting::words(&specs, &placement, terms);
        // Links that a failure left open would be taken for those of the next tables.
        let failed = Undone { world, stream };
        let mut wires = line::connect(world, &seats, stream)?;
        greeting::exchange(world, &mut wires, &seats, &specs, &mine, fits)?;
        let (next_push, older) = (vec![step; specs.len()], vec![0; specs.len()]);
        let mut line = Line {
            world: world.clone(),
            specs: specs.clone(),
            placement: placement.clone(),
            seats: seats.clone(),
            stream,
            wire: None,
            station: None,
            next_ticket: 0,
            failed: None,
            recut: None,
        };
        if office.is_none() && server.is_none() {
            line.wire = wires.into_values().next();
            std::mem::forget(failed);
            return Ok(Tables { line, terms, next_push, older });
        }
        let shard = server.map(|server| {
            Shard::new(ShardSetup {
                server,
                specs: specs.to_vec(),
                placement: placement.clone(),
                consistency,
                n_offices: seats.offices().len() as u32,
                n_workers: world.n_workers(),
                step,
            })
        });
        let office = office.map(|number| {
            let workers = seats.offices()[number as usize].1.clone();
            Office::new(number, workers, specs.to_vec(), placement, consistency, step)
        });
        let setup = StationSetup { world: world.clone(), specs, seats, office, shard, wires };
        line.station = Some(Station::start(setup)?);
        std::mem::forget(failed);
        Ok(Tables { line, terms, next_push, older })
    }

    pub fn specs(&self) -> &[TableSpec] {
        &self.line.specs
    }

    pub fn placement(&self) -> &Placement {
        &self.line.placement
    }

    pub fn seats(&self) -> &Seats {
        &self.line.seats
    }

    /// The step that a table's next push is of.
    pub fn step(&self, table: usize) -> u64 {
        self.next_push[table]
    }

    /// The rows of these numbers, in their order, as of a step. Numbers may repeat.
    pub fn pull(&mut self, table: usize, step: u64, ids: &[u64], out: &mut [u8]) -> Result<(), PsError> {
        self.fetch(LetterKind::Pull, 0, table, step, ids, out)
    }

    /// Rows of the parameter (part 0) or a state, with every bit.
    pub fn read(&mut self, table: usize, part: u8, ids: &[u64], out: &mut [u8]) -> Result<(), PsError> {
        let step = self.next_push.get(table).copied().unwrap_or_default();
        self.fetch(LetterKind::Read, part, table, step, ids, out)
    }

    /// Replaces rows of the parameter (part 0) or a state. Returns when servers have them.
    pub fn write(&mut self, table: usize, part: u8, ids: &[u64], rows: &[u8]) -> Result<(), PsError> {
        let spec = self.checked(table, ids)?;
        is_length(spec, "the rows have", ids.len(), rows.len())?;
        is_part(spec, part)?;
        let (ids, values) = last_of_each(spec, ids, rows);
        let letter = RowLetter {
            part,
            rows: Rows { ids, values, touches: Vec::new() },
            ..RowLetter::new(LetterKind::Write, table as u32, self.next_push[table])
        };
        self.line.ask(letter).map(drop)
    }

    /// How many steps the rule of a table has counted: those that were pushed, and those before a resume.
    pub fn age(&self, table: usize) -> u64 {
        let age = self.next_push[table] as i64 + self.older[table];
        u64::try_from(age).unwrap_or_default()
    }

    /// The rule of a table has counted this many steps before the next one; Adam's formula depends on it. Every worker calls it between the
    /// same steps, as it replaces rows and states.
    pub fn set_age(&mut self, table: usize, age: u64) -> Result<(), PsError> {
        let spec = self.checked(table, &[])?;
        let step = self.next_push[table];
        if age > MOST_STEPS {
            let why = format!("a rule counts at most {MOST_STEPS} steps, not {age}");
            return Err(PsError::Spec { table: spec.name.clone(), why });
        }
        let number = age as f64;
        self.line.ask(RowLetter { number, ..RowLetter::new(LetterKind::Age, table as u32, step) })?;
        self.older[table] = age as i64 - step as i64;
        Ok(())
    }

    /// A step of the others, for which this worker has neither rows nor a rate: it has no data left.
    pub fn attend(&mut self, table: usize, step: u64) -> Result<(), PsError> {
        self.give(table, step, &[], &[], f64::NAN)
    }

    /// The gradients of a step. Every worker pushes every step once, in order; one that touched nothing pushes no rows.
    pub fn push(
        &mut self,
        table: usize,
        step: u64,
        ids: &[u64],
        grads: &[u8],
        rate: f64,
    ) -> Result<(), PsError> {
        if rate.is_nan() {
            let table = self.checked(table, ids)?.name.clone();
            let why =
                format!("the rate of step {step} is not a number; push with a learning rate that is one");
            return Err(PsError::Spec { table, why });
        }
        self.give(table, step, ids, grads, rate)
    }

    fn give(&mut self, table: usize, step: u64, ids: &[u64], grads: &[u8], rate: f64) -> Result<(), PsError> {
        let spec = self.checked(table, ids)?;
        is_length(spec, "the gradients have", ids.len(), grads.len())?;
        let next = self.next_push[table];
        if step < next {
            return Err(PsError::PushedTwice { table: spec.name.clone(), step, next });
        }
        if step > next {
            return Err(PsError::Skipped { table: spec.name.clone(), step, next });
        }
        let rows = match spec.raw {
            false => Rows::of_worker(ids, grads, spec),
            // Servers add them up, and count who touched them.
            true if ids.len() as u64 <= spec.height => {
                let ids = ids.iter().map(|&id| id as u32).collect();
                Rows { ids, values: RowValues::of(grads), touches: Vec::new() }
            }
            true => Rows { touches: Vec::new(), ..Rows::of_worker(ids, grads, spec) },
        };
        self.next_push[table] += 1;
        self.line.send(RowLetter {
            number: rate,
            rows,
            ..RowLetter::new(LetterKind::Push, table as u32, step)
        })
    }

    /// The sum of the squares of all gradients of a step that wait for a factor, of all workers. Collective in effect: it waits for their pushes.
    pub fn norms(&mut self, step: u64) -> Result<f64, PsError> {
        let asked = self.waiting_for_factors();
        self.squares(asked.into_iter().map(|table| RowLetter::new(LetterKind::Norm, table, step)).collect())
    }

    /// The same of these tables alone, for the step that was pushed last.
    pub fn norm_of(&mut self, tables: &[usize]) -> Result<f64, PsError> {
        let mut letters = Vec::with_capacity(tables.len());
        for &table in tables {
            letters.push(RowLetter::new(LetterKind::Norm, table as u32, self.waiting(table)?));
        }
        self.squares(letters)
    }

    fn squares(&mut self, letters: Vec<RowLetter>) -> Result<f64, PsError> {
        let mut sum = ExactSum::default();
        for letter in self.line.ask_all(letters)? {
            let part = ExactSum::from_bytes(letter.rows.values.bytes());
            sum.add_sum(&part.ok_or_else(|| PsError::Refused("a norm that is no sum".into()))?);
        }
        Ok(sum.value())
    }

    /// The step of a table's gradient that waits for a factor.
    fn waiting(&self, table: usize) -> Result<u64, PsError> {
        let spec = self.checked(table, &[])?;
        let waits = spec.rule.clip == TableClip::Given && self.next_push[table] > self.terms.step;
        let why = || "no gradient of it waits for a factor: its rule needs TableClip::Given, and a push comes first";
        match waits {
            true => Ok(self.next_push[table] - 1),
            false => Err(PsError::Spec { table: spec.name.clone(), why: why().to_string() }),
        }
    }

    /// Applies the gradients of a step that wait for a factor. Every worker calls it with the same number.
    pub fn release(&mut self, step: u64, factor: f64) -> Result<(), PsError> {
        for table in self.waiting_for_factors() {
            self.line
                .send(RowLetter { number: factor, ..RowLetter::new(LetterKind::Release, table, step) })?;
        }
        Ok(())
    }

    /// The same for one table, for the step that was pushed last.
    pub fn release_of(&mut self, table: usize, factor: f64) -> Result<(), PsError> {
        let step = self.waiting(table)?;
        self.line
            .send(RowLetter { number: factor, ..RowLetter::new(LetterKind::Release, table as u32, step) })
    }

    /// What the office of this host has counted; zeros where another process has it.
    pub fn counters(&self) -> TableCounters {
        let told = self.line.station.as_ref().map(|station| station.counter.counters());
        let (office, bytes_out, bytes_in) = told.unwrap_or_default();
        TableCounters { office, bytes_out, bytes_in }
    }

    /// On a rank that only serves: returns when no worker wants anything any more. Tables that workers cut anew are opened anew.
    pub fn serve(mut self) -> Result<(), PsError> {
        loop {
            self.line.end(None)?;
            if matches!(self.reopen()?, Reopened::No) {
                return Ok(());
            }
        }
    }

    /// Says that this rank wants nothing more, and waits until the tables that it serves are not needed any more. Tables that are dropped
    /// without it end the world: the others are told that this rank gave up.
    pub fn close(mut self) -> Result<(), PsError> {
        self.line.end(Some(self.line.world.config().timeout))
    }

    fn waiting_for_factors(&self) -> Vec<u32> {
        let waits = |(number, spec): (usize, &TableSpec)| {
            (spec.rule.clip == TableClip::Given).then_some(number as u32)
        };
        self.line.specs.iter().enumerate().filter_map(waits).collect()
    }

    fn checked(&self, table: usize, ids: &[u64]) -> Result<&TableSpec, PsError> {
        let spec = self.line.specs.get(table).ok_or(PsError::NoTable(table))?;
        match ids.iter().position(|&id| id >= spec.height) {
            None => Ok(spec),
            Some(at) => Err(PsError::Row { table: spec.name.clone(), at, id: ids[at], height: spec.height }),
        }
    }

    fn fetch(
        &mut self,
        kind: LetterKind,
        part: u8,
        table: usize,
        step: u64,
        ids: &[u64],
        out: &mut [u8],
    ) -> Result<(), PsError> {
        let spec = self.checked(table, ids)?;
        is_length(spec, "there is room for", ids.len(), out.len())?;
        is_part(spec, part)?;
        if ids.is_empty() {
            return Ok(());
        }
        let row_bytes = spec.row_bytes();
        let mut unique: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let is_raw = spec.raw && kind == LetterKind::Pull && ids.len() as u64 <= spec.height;
        if !is_raw {
            unique.sort_unstable();
            unique.dedup();
        }
        let rows = Rows { ids: unique.clone(), ..Rows::default() };
        let came = self.line.ask(RowLetter { part, rows, ..RowLetter::new(kind, table as u32, step) })?;
        let values = came.rows.values.bytes();
        if values.len() != unique.len() * row_bytes {
            return Err(PsError::Refused("an answer of another length".to_string()));
        }
        if is_raw || unique.len() == ids.len() && ids.is_sorted() {
            out.copy_from_slice(values);
            return Ok(());
        }
        for (to, &id) in out.chunks_exact_mut(row_bytes).zip(ids) {
            let at = unique.partition_point(|&have| u64::from(have) < id) * row_bytes;
            to.copy_from_slice(&values[at..at + row_bytes]);
        }
        Ok(())
    }
}

/// Tables that nobody closed: this rank gives up, and the others are told.
impl Drop for Tables {
    fn drop(&mut self) {
        self.line.abandon();
    }
}

/// Tables that are being opened; without `forget` their links are closed.
struct Undone<'a> {
    world: &'a World,
    stream: u32,
}

impl Drop for Undone<'_> {
    fn drop(&mut self) {
        self.world.close_links(self.stream);
    }
}

fn check(specs: &[TableSpec], TableTerms { consistency, collects, .. }: TableTerms) -> Result<(), PsError> {
    if specs.is_empty() {
        return Err(PsError::Spec { table: String::new(), why: "there is no table to open".to_string() });
    }
    for (at, spec) in specs.iter().enumerate() {
        spec.check()?;
        if specs[..at].iter().any(|other| other.name == spec.name) {
            return Err(PsError::Twice(spec.name.clone()));
        }
        if spec.raw && collects && spec.reduction == RowReduction::ByTouch {
            let why = "raw rows do not say who touched them: by-touch needs merged rows, or workers that ask by themselves";
            return Err(PsError::Spec { table: spec.name.clone(), why: why.to_string() });
        }
        if consistency != Consistency::Sync && spec.rule.clip != TableClip::No {
            let why = "a gradient is clipped when all workers have pushed it: that needs sync".to_string();
            return Err(PsError::Spec { table: spec.name.clone(), why });
        }
        if consistency != Consistency::Sync && spec.reduction != RowReduction::Sum {
            let why =
                "without sync every push is applied by itself: only a sum has a meaning there".to_string();
            return Err(PsError::Spec { table: spec.name.clone(), why });
        }
    }
    Ok(())
}

/// Refuses more bytes than there is room for; says nothing where that is not known.
pub(crate) fn has_room(
    specs: &[TableSpec],
    placement: &Placement,
    (rank, server): (Rank, u32),
    bytes: u64,
    room: Option<u64>,
) -> Result<(), PsError> {
    match room {
        Some(available) if bytes > available => {
            let serves = Shard::serves(specs, placement, server);
            Err(PsError::Memory { rank, serves, bytes, available })
        }
        _ => Ok(()),
    }
}

fn is_part(spec: &TableSpec, part: u8) -> Result<(), PsError> {
    if usize::from(part) <= spec.rule.n_states() {
        return Ok(());
    }
    let why = format!("it has {} states, not {part}", spec.rule.n_states());
    Err(PsError::Spec { table: spec.name.clone(), why })
}

fn is_length(spec: &TableSpec, what: &'static str, n_rows: usize, got: usize) -> Result<(), PsError> {
    let row_bytes = spec.row_bytes();
    let wanted = n_rows * row_bytes;
    if got == wanted {
        return Ok(());
    }
    Err(PsError::Length { table: spec.name.clone(), what, got, wanted, n_rows, row_bytes })
}

/// Sorted numbers; of a number that repeats, the last row counts.
fn last_of_each(spec: &TableSpec, ids: &[u64], rows: &[u8]) -> (Vec<u32>, RowValues) {
    let places: BTreeMap<u64, usize> = ids.iter().enumerate().map(|(at, &id)| (id, at)).collect();
    let row_bytes = spec.row_bytes();
    let mut values = RowValues::zeros(places.len() * row_bytes);
    for (to, &at) in values.bytes_mut().chunks_exact_mut(row_bytes).zip(places.values()) {
        to.copy_from_slice(&rows[at * row_bytes..(at + 1) * row_bytes]);
    }
    (places.keys().map(|&id| id as u32).collect(), values)
}
