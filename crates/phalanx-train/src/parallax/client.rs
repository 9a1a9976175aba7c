//! The thread of a process that asks servers for its executors. Executors never wait in here: their callbacks are called.
//! - CLIENT-1: what is asked for is done in the order in which it was asked; every callback is called once, whatever happens.

use phalanx_core::DType;
use phalanx_graph::exec::{CollectiveError, Data, Done, PushedRows, Served};
use phalanx_net::World;
use phalanx_ps::{PsError, TableCounters, TableSpec, TableTerms, Tables};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread::JoinHandle,
};

/// Tables of a world, for executors of this process.
pub struct TableClient {
    tables: BTreeMap<String, usize>,
    specs: Vec<TableSpec>,
    /// A lock because workers of executors ask at the same time. Not more is in it than one step of each executor asks for.
    jobs: Mutex<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Pull(usize, Vec<u64>, Done),
    Push(usize, PushedRows, Done),
    /// The squares of what waits in these tables together.
    Squares(Vec<usize>, Done),
    Release(usize, f64, Done),
    Abort(String),
    /// Anything that somebody waits for.
    Ask(Asked),
}

type Asked = Box<dyn FnOnce(&mut Option<Tables>) + Send>;

impl fmt::Debug for TableClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableClient").field("tables", &self.tables).finish_non_exhaustive()
    }
}

impl TableClient {
    /// Opens tables; every worker of the world calls it with the same ones.
    pub fn open(
        world: &Arc<World>,
        specs: Vec<TableSpec>,
        terms: TableTerms,
    ) -> Result<TableClient, PsError> {
        let tables = specs.iter().enumerate().map(|(at, spec)| (spec.name.clone(), at)).collect();
        let opened = Tables::open_as(world, specs.clone(), terms)?;
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new().name("tables".into()).spawn(move || work(opened, &queue));
        Ok(TableClient {
            tables,
            specs,
            jobs: Mutex::new(jobs),
            thread: Some(thread.map_err(PsError::Thread)?),
        })
    }

    pub fn specs(&self) -> &[TableSpec] {
        &self.specs
    }

    /// All rows of the parameter (part 0) or a state, with every bit.
    pub fn read(&self, table: &str, part: u8) -> Result<Vec<u8>, PsError> {
        let number = self.number(table)?;
        let spec = &self.specs[number];
        let (height, bytes) = (spec.height, spec.height as usize * spec.row_bytes());
        self.ask(move |tables| {
            let ids: Vec<u64> = (0..height).collect();
            let mut rows = vec![0; bytes];
            tables.read(number, part, &ids, &mut rows).map(|()| rows)
        })
    }

    /// Replaces all rows of a part. It is enough that one worker does, between steps.
    pub fn write(&self, table: &str, part: u8, rows: Vec<u8>) -> Result<(), PsError> {
        let number = self.number(table)?;
        let height = self.specs[number].height;
        self.ask(move |tables| {
            let ids: Vec<u64> = (0..height).collect();
            tables.write(number, part, &ids, &rows)
        })
    }

    /// How many steps the rule of a table has counted.
    pub fn age(&self, table: &str) -> Result<u64, PsError> {
        let number = self.number(table)?;
        self.ask(move |tables| Ok(tables.age(number)))
    }

    /// It has counted this many; every worker says so, between the same steps.
    pub fn set_age(&self, table: &str, age: u64) -> Result<(), PsError> {
        let number = self.number(table)?;
        self.ask(move |tables| tables.set_age(number, age))
    }

    /// Cuts all tables anew; every worker calls it between the same steps.
    pub fn reshard(&self, partitions: u32) -> Result<(), PsError> {
        self.ask(move |tables| tables.reshard(partitions))
    }

    /// Whether this process could have its part of that number of partitions.
    pub fn admits(&self, partitions: u32) -> Result<(), PsError> {
        self.ask(move |tables| Ok(tables.admits(partitions)))?
    }

    pub fn counters(&self) -> Result<TableCounters, PsError> {
        self.ask(|tables| Ok(tables.counters()))
    }

    /// Where the rows are, in a few lines.
    pub fn explain(&self) -> Result<String, PsError> {
        self.ask(|tables| Ok(tables.placement().explain(tables.specs())))
    }

    /// Every worker closes its tables when it wants nothing more. Tables that are dropped end the world.
    pub fn close(&self) -> Result<(), PsError> {
        self.take(|tables| match tables.take() {
            Some(tables) => tables.close(),
            None => Ok(()),
        })
    }

    fn number(&self, table: &str) -> Result<usize, PsError> {
        let known = || PsError::Spec { table: table.to_string(), why: "it is not on servers".into() };
        self.tables.get(table).copied().ok_or_else(known)
    }

    fn ask<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Tables) -> Result<T, PsError> + Send + 'static,
    ) -> Result<T, PsError> {
        self.take(|tables| tables.as_mut().map_or(Err(PsError::Closed), f))
    }

    fn take<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Option<Tables>) -> Result<T, PsError> + Send + 'static,
    ) -> Result<T, PsError> {
        let (reply, answer): (SyncSender<Result<T, PsError>>, _) = sync_channel(1);
        self.send(Job::Ask(Box::new(move |tables| {
            // Who asked may have gone.
            let _ = reply.send(f(tables));
        })));
        // Calls of tables have deadlines of their own.
        answer.recv().unwrap_or(Err(PsError::Closed))
    }

    fn send(&self, job: Job) {
        let sent = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
        if let Err(unsent) = sent {
            refuse(unsent.0);
        }
    }
}

impl Drop for TableClient {
    fn drop(&mut self) {
        // Without its sender the thread ends.
        let (jobs, _) = channel();
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
        if let Some(thread) = self.thread.take() {
            // A callback that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Served for TableClient {
    fn pull(&self, table: &str, ids: Vec<i64>, done: Done) {
        match self.number(table) {
            Ok(number) => self.send(Job::Pull(number, ids.into_iter().map(|id| id as u64).collect(), done)),
            Err(why) => done(Err(failed("a pull", &why))),
        }
    }

    fn push(&self, table: &str, rows: PushedRows, done: Done) {
        match self.number(table) {
            Ok(number) => self.send(Job::Push(number, rows, done)),
            Err(why) => done(Err(failed("a push", &why))),
        }
    }

    fn squares(&self, tables: &[String], done: Done) {
        match tables.iter().map(|table| self.number(table)).collect::<Result<Vec<_>, _>>() {
            Ok(numbers) => self.send(Job::Squares(numbers, done)),
            Err(why) => done(Err(failed("a norm", &why))),
        }
    }

    fn release(&self, table: &str, factor: f64, done: Done) {
        match self.number(table) {
            Ok(number) => self.send(Job::Release(number, factor, done)),
            Err(why) => done(Err(failed("a factor", &why))),
        }
    }

    fn abort(&self, why: &str) {
        self.send(Job::Abort(why.to_string()));
    }
}

fn work(tables: Tables, queue: &Receiver<Job>) {
    let mut tables = Some(tables);
    while let Ok(job) = queue.recv() {
        let Some(open) = &mut tables else {
            match job {
                Job::Ask(f) => f(&mut tables),
                job => refuse(job),
            }
            continue;
        };
        match job {
            Job::Pull(table, ids, done) => done(pull(open, table, &ids)),
            Job::Push(table, rows, done) => {
                let ids: Vec<u64> = rows.ids.iter().map(|&id| id as u64).collect();
                let step = open.step(table);
                let pushed = open.push(table, step, &ids, rows.grads.bytes(), rows.rate);
                done(pushed.map(|()| Vec::new()).map_err(|why| failed("a push", &why)));
            }
            Job::Squares(tables, done) => {
                let sum = open.norm_of(&tables).map(|sum| vec![Data::F64(vec![sum])]);
                done(sum.map_err(|why| failed("a norm", &why)));
            }
            Job::Release(table, factor, done) => {
                let released = open.release_of(table, factor);
                done(released.map(|()| Vec::new()).map_err(|why| failed("a factor", &why)));
            }
            Job::Abort(why) => {
                tracing::info!(%why, "a step failed in the middle; the tables are given up");
                tables = None;
            }
            Job::Ask(f) => f(&mut tables),
        }
    }
}

fn pull(tables: &mut Tables, table: usize, ids: &[u64]) -> Result<Vec<Data>, CollectiveError> {
    let (step, spec) = (tables.step(table), &tables.specs()[table]);
    let n = ids.len() * spec.width;
    let (data, pulled) = match spec.dtype {
        DType::F64 => {
            let mut rows = vec![0f64; n];
            let pulled = tables.pull(table, step, ids, bytemuck::cast_slice_mut(&mut rows));
            (Data::F64(rows), pulled)
        }
        _ => {
            let mut rows = vec![0f32; n];
            let pulled = tables.pull(table, step, ids, bytemuck::cast_slice_mut(&mut rows));
            (Data::F32(rows), pulled)
        }
    };
    pulled.map(|()| vec![data]).map_err(|why| failed("a pull", &why))
}

/// Nobody does it any more.
fn refuse(job: Job) {
    match job {
        Job::Pull(.., done) | Job::Push(.., done) | Job::Squares(_, done) | Job::Release(.., done) => {
            done(Err(failed("a call to servers", &PsError::Closed)));
        }
        Job::Abort(_) | Job::Ask(_) => {}
    }
}

fn failed(call: &str, why: &PsError) -> CollectiveError {
    CollectiveError::Failed { call: call.to_string(), why: why.to_string() }
}
