//! Workers: the caller's thread and others that sleep between runs.
//! - POOL-1: a run ends for the caller after every worker has let go of it.
//! - POOL-3: the first failure cancels what has not begun; the rest is passed over, so that all counters are as before.

use super::{
    accord::Accord,
    lower::Planned,
    ready::Ready,
    schedule::Half,
    served::Served,
    trace::Slots,
    travel::{Landing, Places},
    work::Doing,
};
use crate::{
    exec::RunError,
    ir::Program,
    kernel::{Env, MemoryView, RawMemory},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

/// One executor's runs, one after another. Between runs nobody but the executor holds it.
#[derive(Debug)]
pub(super) struct Run {
    pub program: Arc<Program>,
    pub accord: Accord,
    pub served: Option<Arc<dyn Served>>,
    pub plan: Arc<Planned>,
    pub arenas: Vec<RawMemory>,
    pub shared: RawMemory,
    /// One for each replica.
    pub envs: Vec<Env>,
    pub check_finite: bool,
    pub dry: bool,
    pub trace: Option<Slots>,
    /// Shared with exchanges on their way, which may let go of it a moment after the run has ended.
    ready: Arc<Ready>,
    pub places: Arc<Places>,
    cancelled: AtomicBool,
    /// The failure of the first task in order, of those that failed.
    failure: Mutex<Option<(usize, RunError)>>,
    pub n_visited: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A worker that panics between two changes breaks the run, which says so; the data itself stays whole.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Run {
    pub(super) fn new(
        program: Arc<Program>,
        accord: Accord,
        served: Option<Arc<dyn Served>>,
        (n_exchanges, n_desks): (usize, usize),
        plan: Arc<Planned>,
        n_threads: usize,
    ) -> Run {
        Run {
            program,
            accord,
            served,
            plan,
            arenas: Vec::new(),
            shared: RawMemory::new(0),
            envs: Vec::new(),
            check_finite: false,
            dry: false,
            trace: None,
            ready: Arc::new(Ready::new(n_threads)),
            places: Arc::new(Places::new(n_exchanges, n_desks)),
            cancelled: AtomicBool::new(false),
            failure: Mutex::new(None),
            n_visited: AtomicUsize::new(0),
        }
    }

    /// Takes a plan; makes room so that queues never grow while it runs.
    pub(super) fn take_plan(&mut self, plan: Arc<Planned>) {
        self.ready.reserve(plan.schedule.tasks.len());
        if let Some(slots) = &mut self.trace {
            slots.fit(plan.schedule.tasks.len());
        }
        self.plan = plan;
    }

    fn begin(&mut self) {
        self.cancelled = AtomicBool::new(false);
        self.places.begin();
        self.ready.begin(self.plan.schedule.tasks.len());
        self.n_visited = AtomicUsize::new(0);
    }

    pub(super) fn outcome(&mut self) -> Result<(), RunError> {
        if self.ready.is_broken() {
            return Err(RunError::Broken { why: "it panicked between tasks; make a new executor".into() });
        }
        match self.failure.get_mut().unwrap_or_else(|e| e.into_inner()).take() {
            None => Ok(()),
            Some((_, error)) => Err(error),
        }
    }

    /// All tasks in order, on this thread.
    fn in_order(&self, store: &[RawMemory]) {
        for task in 0..self.plan.schedule.tasks.len() {
            self.perform(task, 0, store);
        }
    }

    fn landing(&self) -> Landing {
        let (plan, ready, places) = (self.plan.clone(), self.ready.clone(), self.places.clone());
        Landing { plan, ready, places }
    }

    fn perform(&self, task: usize, worker: usize, store: &[RawMemory]) {
        self.n_visited.fetch_add(1, Ordering::Relaxed);
        let half = self.plan.schedule.tasks[task].half;
        if self.dry || self.cancelled.load(Ordering::Relaxed) {
            match half {
                Half::Bring(exchange) => self.landing().arrive(exchange),
                Half::Ask(desk) => drop(self.landing().visit(desk)),
                _ => {}
            }
            return;
        }
        if self.plan.gate == Some(task as u32) {
            self.places.pass_gate();
        }
        let begin = self.trace.as_ref().map(Slots::now);
        let replica = self.plan.schedule.tasks[task].replica;
        let landing = (half != Half::None).then(|| self.landing());
        let memory = MemoryView::common(&self.arenas[replica % self.arenas.len()], &self.shared, store);
        let doing = Doing {
            program: &self.program,
            accord: &self.accord,
            served: self.served.as_ref(),
            landing: landing.as_ref(),
            replica: replica % self.arenas.len(),
            check_finite: self.check_finite,
        };
        for called in &self.plan.calls[self.plan.schedule.tasks[task].calls.clone()] {
            if let Err(error) = called.perform(memory, self.envs[replica], doing) {
                self.fail(task, error);
                break;
            }
        }
        if let (Some(slots), Some(begin)) = (&self.trace, begin) {
            slots.record(task, worker, begin);
        }
    }

    fn fail(&self, task: usize, error: RunError) {
        self.cancelled.store(true, Ordering::Relaxed);
        // What other processes did is less than what went wrong here.
        let order = |task: usize, error: &RunError| (matches!(error, RunError::Collective(_)), task);
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|(first, known)| order(task, &error) < order(*first, known)) {
            *failure = Some((task, error));
        }
    }

    fn push(&self, task: u32) {
        let schedule = &self.plan.schedule;
        self.ready.push(schedule.tasks[task as usize].home, schedule.priority[task as usize], task);
    }

    /// Counts down what waits for this task; one of those that may begin is for this worker.
    fn ended(&self, task: usize) -> Option<usize> {
        let schedule = &self.plan.schedule;
        let mut own: Option<u32> = None;
        for &next in schedule.successors(task) {
            if !schedule.arrive(next as usize) {
                continue;
            }
            let near = |t: u32| schedule.tasks[t as usize].replica == schedule.tasks[task].replica;
            let rank = |t: u32| (near(t), schedule.priority[t as usize]);
            match own {
                None => own = Some(next),
                Some(best) if rank(next) > rank(best) => {
                    self.push(best);
                    own = Some(next);
                }
                Some(_) => self.push(next),
            }
        }
        self.ready.done();
        own.map(|t| t as usize)
    }

    fn work(&self, worker: usize, store: &[RawMemory]) {
        /// How often an idle worker looks again before it sleeps: about as long as a small operation takes.
        const LOOKS: usize = 300;
        let mut looks = 0;
        let mut mine = None;
        loop {
            if let Some(task) = mine.take().or_else(|| self.ready.next(worker)) {
                self.perform(task, worker, store);
                mine = self.ended(task);
                looks = 0;
                continue;
            }
            if self.ready.is_over() {
                return;
            }
            if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
                continue;
            }
            self.ready.sleep();
            looks = 0;
        }
    }
}

#[derive(Clone)]
struct Job {
    run: Arc<Run>,
    store: Arc<Vec<RawMemory>>,
}

#[derive(Default)]
struct JobSlot {
    state: Mutex<SlotState>,
    /// There is a job, or it is time to go.
    news: Condvar,
    /// Nobody is at work any more.
    quiet: Condvar,
}

impl JobSlot {
    /// A worker has nothing to do any more.
    fn leave(&self) {
        let mut state = lock(&self.state);
        state.n_active -= 1;
        if state.n_active == 0 {
            self.quiet.notify_all();
        }
    }

    /// Waits until no worker is at work; one that begins later does so because of a new job.
    fn await_quiet(&self) {
        let mut state = lock(&self.state);
        while state.n_active > 0 {
            state = self.quiet.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }
}

#[derive(Default)]
struct SlotState {
    job: Option<Job>,
    turn: u64,
    n_active: usize,
    stop: bool,
}

/// The threads beside the caller's.
pub(super) struct Pool {
    slot: Arc<JobSlot>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish()
    }
}

impl Pool {
    pub(super) fn new(n_threads: usize) -> std::io::Result<Pool> {
        let mut pool = Pool { slot: Arc::new(JobSlot::default()), threads: Vec::new() };
        for worker in 1..n_threads {
            let slot = pool.slot.clone();
            let name = format!("graph-{worker}");
            lock(&slot.state).n_active += 1;
            let thread = std::thread::Builder::new().name(name).spawn(move || attend(&slot, worker))?;
            pool.threads.push(thread);
        }
        // What threads allocate when they begin belongs to no run (PARA-3).
        pool.slot.await_quiet();
        Ok(pool)
    }

    pub(super) fn run(&self, run: &mut Arc<Run>, store: Arc<Vec<RawMemory>>) -> Result<(), RunError> {
        let ready = Arc::get_mut(run).expect("POOL-1: workers let go of runs");
        if ready.ready.is_broken() {
            // Its counters and queues are in the middle of something.
            return ready.outcome();
        }
        ready.begin();
        let is_alone = self.threads.is_empty() && run.plan.takes.is_empty() && run.plan.answers.is_empty();
        if is_alone || run.plan.schedule.tasks.is_empty() {
            run.in_order(&store);
        } else {
            run.plan.schedule.roots.iter().for_each(|&task| run.push(task));
            {
                let mut slot = lock(&self.slot.state);
                slot.job = Some(Job { run: run.clone(), store: store.clone() });
                slot.turn += 1;
                self.slot.news.notify_all();
            }
            if catch_unwind(AssertUnwindSafe(|| run.work(0, &store))).is_err() {
                run.ready.break_off();
            }
            lock(&self.slot.state).job = None;
            self.slot.await_quiet();
        }
        drop(store);
        Arc::get_mut(run).expect("POOL-1: workers let go of runs").outcome()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.slot.state).stop = true;
        self.slot.news.notify_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so to its run.
            let _ = thread.join();
        }
    }
}

/// What a worker does all its life.
fn attend(slot: &JobSlot, worker: usize) {
    let mut seen = 0;
    slot.leave();
    loop {
        let job = {
            let mut state = lock(&slot.state);
            loop {
                if state.stop {
                    return;
                }
                if let Some(job) = state.job.clone().filter(|_| state.turn != seen) {
                    seen = state.turn;
                    state.n_active += 1;
                    break job;
                }
                state = slot.news.wait(state).unwrap_or_else(|e| e.into_inner());
            }
        };
        if catch_unwind(AssertUnwindSafe(|| job.run.work(worker, &job.store))).is_err() {
            job.run.ready.break_off();
        }
        drop(job);
        slot.leave();
    }
}
