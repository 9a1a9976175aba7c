//! Another number of partitions while a world trains, between two steps.
//!
//! Every worker takes an equal part of all rows and states, the tables are closed and opened anew at the same step, and every worker writes
//! its part back. So for a moment every row is there twice, but on no rank more than its part.
//! - RESHARD-1: rows, states and steps have the same bits before and after.
//! - RESHARD-2: where a server has no room for its new part, every rank opens the old partitions again and is told why.

use crate::{
    error::PsError,
    memory,
    placement::Placement,
    spec::TableSpec,
    tables::{Consistency, TableTerms, Tables, has_room},
};

/// How tables that have ended go on.
pub(crate) enum Reopened {
    /// Nobody asked for it.
    No,
    Cut,
    /// A server has no room for what was asked for, in these words.
    AsBefore(String),
}

/// Rows of one part of a table that a worker holds while partitions move.
struct Moved {
    table: usize,
    part: u8,
    ids: Vec<u64>,
    rows: Vec<u8>,
}

/// A table in this many partitions, or as many as it has rows.
fn cut(spec: &TableSpec, partitions: u32) -> TableSpec {
    let most = u32::try_from(spec.height).unwrap_or(u32::MAX);
    TableSpec { partitions: partitions.clamp(1, most), ..spec.clone() }
}

impl Tables {
    /// Cuts every table into this many partitions, or as many as it has rows. All workers call it between the same two steps; they see the
    /// same rows afterwards. After [`PsError::Uncut`] they are cut as before; after any other error tables cannot be used any more.
    pub fn reshard(&mut self, partitions: u32) -> Result<(), PsError> {
        let world = self.line.world.clone();
        let refused = |why: &str| Err(PsError::Spec { table: "of all names".into(), why: why.to_string() });
        if partitions == 0 {
            return refused("a table is cut into at least one partition");
        }
        if self.terms.consistency != Consistency::Sync {
            return refused("workers are not at the same step, so partitions cannot move: that needs sync");
        }
        // Tables that were pushed less often, because nothing trains them, have the steps of the others afterwards.
        let step = self.next_push.iter().copied().max().unwrap_or_default();
        if step == 0 {
            return refused("nothing was pushed yet; open the tables with that many partitions instead");
        }
        let (me, n) = (world.rank().index() as u64, u64::from(world.n_workers()));
        let mut moved = Vec::new();
        for (table, spec) in self.specs().to_vec().iter().enumerate() {
            for part in 0..=spec.rule.n_states() as u8 {
                let ids: Vec<u64> = (me..spec.height).step_by(n as usize).collect();
                let mut rows = vec![0; ids.len() * spec.row_bytes()];
                self.read(table, part, &ids, &mut rows)?;
                moved.push(Moved { table, part, ids, rows });
            }
        }
        let ages: Vec<u64> = (0..self.specs().len()).map(|table| self.age(table)).collect();
        // Every rank says goodbye to the old tables after it has read, so nobody's rows are gone too early. Ranks that only serve learn from
        // it how to go on.
        // They begin a step earlier, which everybody ends without rows when its own are written: a pull of the present step then waits
        // for all of them.
        self.line.end_recut(step - 1, partitions, world.config().timeout)?;
        self.line.recut = Some((step - 1, partitions));
        let reopened = self.reopen()?;
        for Moved { table, part, ids, rows } in moved {
            self.write(table, part, &ids, &rows)?;
        }
        for table in 0..self.specs().len() {
            self.push(table, step - 1, &[], &[], 0.0)?;
        }
        self.release(step - 1, 1.0)?;
        (0..).zip(ages).try_for_each(|(table, age)| self.set_age(table, age))?;
        match reopened {
            Reopened::AsBefore(why) => Err(PsError::Uncut(why)),
            Reopened::No | Reopened::Cut => Ok(()),
        }
    }

    /// Whether servers could have their parts of tables that are cut into this many partitions, as far as this rank can tell: it knows
    /// what servers may hold, and the memory of its own. Workers ask each other before they move any row.
    pub fn admits(&self, partitions: u32) -> Result<(), PsError> {
        let specs: Vec<TableSpec> = self.specs().iter().map(|spec| cut(spec, partitions)).collect();
        let (seats, world) = (&self.line.seats, &self.line.world);
        let wanted = Placement::greedy(&specs, seats.servers().len() as u32);
        let all = seats.servers().iter().copied().zip(0..);
        for ((rank, server), &bytes) in all.zip(wanted.loads()) {
            has_room(&specs, &wanted, (rank, server), bytes, self.terms.most_bytes)?;
        }
        let Some(server) = seats.server_at(world.rank()) else { return Ok(()) };
        // What it has is given back first; meanwhile workers hold their parts of all rows, those of its host here.
        let here = seats.office_at(world.rank()).map_or(0, |office| seats.offices()[office as usize].1.len());
        let total: u64 = wanted.loads().iter().sum();
        let moved = total.div_ceil(u64::from(world.n_workers())) * here as u64;
        let has = self.line.placement.loads()[server as usize];
        let needs = wanted.loads()[server as usize].max(has) + moved;
        let room = memory::free().map(|free| free + has);
        has_room(&specs, &wanted, (world.rank(), server), needs, room)
    }

    /// Opens tables that have ended as the goodbyes of workers said, if they said something.
    pub(crate) fn reopen(&mut self) -> Result<Reopened, PsError> {
        let Some((step, partitions)) = self.line.recut.take() else { return Ok(Reopened::No) };
        let (world, terms) = (self.line.world.clone(), TableTerms { step, ..self.terms });
        let before = self.specs().to_vec();
        let wanted = before.iter().map(|spec| cut(spec, partitions)).collect();
        match Tables::open_as(&world, wanted, terms) {
            Ok(tables) => {
                *self = tables;
                Ok(Reopened::Cut)
            }
            // GREETING-1: all ranks are here.
            Err(PsError::Unopened(why)) => self.back(before, terms, why),
            Err(why @ (PsError::Memory { .. } | PsError::Differs { .. })) => {
                self.back(before, terms, why.to_string())
            }
            Err(why) => Err(why),
        }
    }

    fn back(&mut self, specs: Vec<TableSpec>, terms: TableTerms, why: String) -> Result<Reopened, PsError> {
        *self = Tables::open_as(&self.line.world.clone(), specs, terms)?;
        Ok(Reopened::AsBefore(why))
    }

    /// On a rank that only serves, and looks after other things meanwhile: opens the tables anew if workers have cut them.
    pub fn follow(&mut self) -> Result<bool, PsError> {
        if self
            .line
            .station
            .as_ref()
            .is_none_or(|station| !station.has_ended() || station.counter.recut().is_none())
        {
            return Ok(false);
        }
        self.line.end(None)?;
        Ok(!matches!(self.reopen()?, Reopened::No))
    }
}
