//! One process set on this rank: its negotiation node, its submissions, and the batches that were agreed.
//!
//! A thread with new input steps the node under its lock and performs the outputs immediately; so outputs happen in order.
//! Nothing that can block is done under the lock: messages go to the outbox, batches to the queue, answers are given after it.

use super::{
    bell::Bell,
    carry::{InOut, Load},
    counters::add,
    error::EngineError,
    handle::{Handle, Outcome, Slot},
    helm::Helm,
    negotiate::{
        Input, Negotiator, NegotiatorSetup, Output,
        message::{EngineEnd, Generation, Message, Tuning},
        replay::View,
        report::{StallReport, seen_text},
    },
    shared::Shared,
    spec::{Kind, Name, Spec},
    tensor::EngineTensor,
};
use phalanx_core::Rank;
use phalanx_net::arena::Board;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

/// One operation as this rank submitted it.
#[derive(Debug)]
pub(crate) struct Submission {
    pub places: Vec<InOut>,
    pub memory: Option<Vec<EngineTensor>>,
    pub slot: Arc<Slot>,
}

/// What the mover does next.
#[derive(Debug)]
pub(crate) enum Job {
    Batch { loads: Vec<Load>, slots: Vec<Option<Arc<Slot>>>, replayed: bool },
    Tune(Tuning),
    End,
}

impl Job {
    /// Whether any thread may do it, not only the mover's own (HELM-3).
    pub fn is_for_all(&self) -> bool {
        match self {
            Job::Batch { loads, .. } => !matches!(loads[0].agreed.spec.kind, Kind::AddSet | Kind::RemoveSet),
            Job::Tune(_) => true,
            Job::End => false,
        }
    }
}

/// What is due once the lock is gone: answers, and words for people, who may be slow to take them.
#[derive(Debug, Default)]
pub(crate) struct Due {
    answers: Vec<(Arc<Slot>, Result<Outcome, EngineError>)>,
    reports: Vec<StallReport>,
}

impl Due {
    pub fn answer(self) {
        self.answers.into_iter().for_each(|(slot, answer)| slot.answer(answer));
    }
}

#[derive(Debug)]
pub(crate) struct SetState {
    pub node: Negotiator,
    pending: BTreeMap<Name, Submission>,
    /// Names whose handles were not looked at yet.
    reserved: BTreeMap<Name, Arc<Slot>>,
    /// How many there were when they were last looked through.
    n_kept: usize,
    /// How many answers the program has seen.
    seen: Arc<AtomicU64>,
    /// Numbers for operations without a name, by kind.
    unnamed: BTreeMap<&'static str, u64>,
    pub queue: VecDeque<Job>,
    pub outbox: VecDeque<(usize, Message)>,
    join: Option<Arc<Slot>>,
    /// Why nothing is accepted any more.
    pub ended: Option<EngineError>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
pub(crate) struct Set {
    pub id: u32,
    /// The number of its communicator, which no other set of this world ever has.
    pub number: u32,
    pub members: Vec<Rank>,
    pub me: usize,
    /// A lock because the threads of the program, the control thread and the mover all have news.
    state: Mutex<SetState>,
    pub bell: Bell,
    pub helm: Helm,
    /// Raised with every job.
    version: AtomicU64,
    board: Option<Board>,
    generation: AtomicU32,
    /// The process that made it.
    owner: u32,
}

const FROZEN: u64 = 1 << 47;
const COUNT: u64 = FROZEN - 1;

impl Set {
    pub fn new(id: u32, number: u32, setup: NegotiatorSetup, board: Option<Board>, bell: Bell) -> Set {
        let (members, me) = (setup.members.clone(), setup.me);
        let node = Negotiator::new(NegotiatorSetup { board: board.is_some(), ..setup });
        if let Some(board) = &board {
            board.show(0);
        }
        let state = SetState {
            node,
            pending: BTreeMap::new(),
            reserved: BTreeMap::new(),
            n_kept: 0,
            seen: Arc::default(),
            unnamed: BTreeMap::new(),
            queue: VecDeque::new(),
            outbox: VecDeque::new(),
            join: None,
            ended: None,
            outputs: Vec::new(),
        };
        let (state, version, generation) = (Mutex::new(state), AtomicU64::new(0), AtomicU32::new(0));
        let (helm, owner) = (Helm::default(), std::process::id());
        Set { id, number, members, me, state, bell, helm, version, board, generation, owner }
    }

    pub fn state(&self) -> MutexGuard<'_, SetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread that waits may run its operations: not where other hosts take part, nor in a forked child.
    pub fn is_ours(&self) -> bool {
        self.board.is_some() && self.owner == std::process::id()
    }

    /// Takes a submission of this rank.
    pub fn submit(
        self: &Arc<Self>,
        shared: &Shared,
        name: Option<&str>,
        spec: Spec,
        (places, memory): (Vec<InOut>, Option<Vec<EngineTensor>>),
        grouped: bool,
    ) -> Result<Handle, EngineError> {
        let mut state = self.state();
        if let Some(error) = state.ended.clone() {
            drop(state);
            shared.note_missed(&error);
            return Err(error);
        }
        let name: Name = match name {
            Some(name) => name.into(),
            None => {
                let kind = kind_name(spec.kind, grouped);
                let number = state.unnamed.entry(kind).or_default();
                *number += 1;
                format!("{kind}.noname.{number}").into()
            }
        };
        if state.reserved.get(&name).is_some_and(|slot| !slot.is_free()) {
            return Err(EngineError::DuplicateName { name: name.to_string() });
        }
        let slot = Arc::new(Slot::new(state.seen.clone()));
        state.reserved.insert(name.clone(), slot.clone());
        if state.reserved.len() > state.n_kept * 2 + 256 {
            state.reserved.retain(|_, slot| !slot.is_free());
            state.n_kept = state.reserved.len();
        }
        state.pending.insert(name.clone(), Submission { places, memory, slot: slot.clone() });
        add(&shared.tally.submitted, 1);
        shared.timeline.submitted(self.id, &name, spec.kind);
        let n_seen = state.seen.load(Ordering::Relaxed);
        state.node.set_phase(n_seen);
        self.drive_locked(shared, state, Input::Submit { name: name.clone(), spec });
        Ok(Handle::new(name, slot, Arc::downgrade(self)))
    }

    /// This rank submits nothing more until all have joined.
    pub fn join(self: &Arc<Self>, shared: &Shared) -> Result<Handle, EngineError> {
        let mut state = self.state();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let name: Name = "join.noname".into();
        if state.join.is_some() {
            return Err(EngineError::DuplicateName { name: name.to_string() });
        }
        let slot = Arc::new(Slot::default());
        state.join = Some(slot.clone());
        self.drive_locked(shared, state, Input::Join);
        Ok(Handle::new(name, slot, Arc::downgrade(self)))
    }

    /// Tells the node something.
    pub fn drive(&self, shared: &Shared, input: Input) {
        self.drive_locked(shared, self.state(), input);
    }

    fn drive_locked(&self, shared: &Shared, mut state: MutexGuard<'_, SetState>, input: Input) {
        let mut due = Due::default();
        let quiet = matches!(input, Input::Flush);
        let mut outputs = std::mem::take(&mut state.outputs);
        state.node.step(shared.now_us(), input, &mut outputs);
        if shared.timeline.marks_cycles() && outputs.iter().any(|o| matches!(o, Output::Run { .. })) {
            shared.timeline.cycle();
        }
        for output in outputs.drain(..) {
            self.act(shared, &mut state, output, &mut due);
        }
        state.outputs = outputs;
        add(&shared.tally.cached, std::mem::take(&mut state.node.n_by_number));
        add(&shared.tally.negotiated, std::mem::take(&mut state.node.n_in_full));
        // While replaying on a board, nobody else has anything to do with it.
        let wake_control =
            !quiet && (self.board.is_none() || !state.node.is_replaying() || !state.outbox.is_empty());
        drop(state);
        if wake_control {
            shared.wake_control();
        }
        due.reports.drain(..).for_each(|report| shared.report(self.me == 0, report));
        if let Some(error) = due.answers.iter().find_map(|(_, answer)| answer.as_ref().err()) {
            shared.note_missed(error);
        }
        if !due.answers.is_empty() {
            due.answer();
            // A thread that looks out may be waiting for one of them.
            self.bell.nudge();
        }
    }

    fn act(&self, shared: &Shared, state: &mut SetState, output: Output, due: &mut Due) {
        match output {
            Output::Send { to, message } => state.outbox.push_back((to, message)),
            Output::Run { batch, replayed } => {
                let mut slots = Vec::with_capacity(batch.len());
                let loads = batch.iter().map(|agreed| {
                    let submission = state.pending.remove(&agreed.name);
                    let mut load = Load::new(agreed.clone());
                    slots.push(submission.map(|Submission { places, memory, slot }| {
                        (load.places, load.memory) = (Some(places), memory);
                        slot
                    }));
                    load
                });
                let loads: Vec<Load> = loads.collect();
                shared.timeline.agreed(self.id, &loads);
                self.enqueue(state, Job::Batch { loads, slots, replayed });
            }
            Output::Fail { name, fault } => {
                if let Some(submission) = state.pending.remove(&name) {
                    add(&shared.tally.failed, 1);
                    shared.timeline.refused(self.id, &name);
                    let name = name.to_string();
                    due.answers.push((submission.slot, Err(EngineError::Mismatch { name, fault })));
                }
            }
            Output::AllJoined { last } => {
                state.unnamed.clear();
                if let Some(slot) = state.join.take() {
                    due.answers.push((slot, Ok(Outcome { last_joined: Some(last), ..Outcome::default() })));
                }
            }
            Output::Tune(tuning) => self.enqueue(state, Job::Tune(tuning)),
            Output::Over { rank, why } => {
                let error = match why {
                    EngineEnd::ShutDown => EngineError::ShutDown { rank },
                    EngineEnd::Stalled { name, missing, waited_ms, missed } => EngineError::Stalled {
                        name: name.to_string(),
                        seen: seen_text(&missed, &missing),
                        missing,
                        waited_s: waited_ms as f64 / 1e3,
                    },
                };
                self.end_locked(state, error, due);
            }
            Output::Show { generation, count, frozen } => {
                self.show(generation, count, frozen);
            }
            Output::Locate => shared.ask_where(self.id),
            Output::Report(report) => due.reports.push(report),
        }
    }

    fn enqueue(&self, state: &mut SetState, job: Job) {
        state.queue.push_back(job);
        self.version.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Wakes who has to look at what was just written here: the thread that has the mover, or else the mover's own (HELM-2).
    fn wake(&self) {
        if self.helm.is_free() { self.bell.ring() } else { self.bell.nudge() }
    }

    /// Shows other ranks what this one is ready for; wakes them if that is what they wait for.
    fn show(&self, generation: Generation, count: u64, frozen: bool) {
        let board = self.board.as_ref().expect("a node shows only if it was told of a board");
        self.generation.store(generation, Ordering::Relaxed);
        let before = self.own_count();
        board.show(u64::from(generation) << 48 | if frozen { FROZEN } else { 0 } | count & COUNT);
        if frozen {
            // Ranks that wait for nothing have to stop, too (REPLAY-2).
            board.ring_all();
        } else if self.view().is_some_and(|view| view.lowest > before) {
            // This rank was the last one, or of several at the same time one that saw the others (BOARD-2).
            board.ring();
        }
        self.wake();
    }

    /// What this rank has shown in this generation.
    fn own_count(&self) -> u64 {
        let word = self.board.as_ref().and_then(|board| board.words().nth(self.me)).unwrap_or(0);
        let generation = self.generation.load(Ordering::Relaxed);
        if word >> 48 == u64::from(generation) & 0xffff { word & COUNT } else { 0 }
    }

    /// Whether other ranks have yet to become ready for what this one is ready for.
    pub fn is_expecting(&self) -> bool {
        self.view().is_some_and(|view| view.lowest < self.own_count())
    }

    /// Accepts nothing more and fails what waits; what is agreed still runs.
    pub fn end(&self, error: EngineError) {
        let mut due = Due::default();
        self.end_locked(&mut self.state(), error, &mut due);
        due.answer();
    }

    fn end_locked(&self, state: &mut SetState, error: EngineError, due: &mut Due) {
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(error.clone());
        for (_, submission) in std::mem::take(&mut state.pending) {
            due.answers.push((submission.slot, Err(error.clone())));
        }
        due.answers.extend(state.join.take().map(|slot| (slot, Err(error))));
        self.enqueue(state, Job::End);
    }

    pub fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    /// What the board shows, if there is one.
    pub fn view(&self) -> Option<View> {
        let board = self.board.as_ref()?;
        let generation = self.generation.load(Ordering::Relaxed);
        let start = View { generation, lowest: u64::MAX, any_frozen: false, all_frozen: true };
        Some(board.words().fold(start, |view, word| {
            // A rank that is not there yet, or not any more, has counted nothing.
            let theirs = word >> 48 == u64::from(generation) & 0xffff;
            let (count, frozen) = if theirs { (word & COUNT, word & FROZEN != 0) } else { (0, false) };
            View {
                lowest: view.lowest.min(count),
                any_frozen: view.any_frozen || frozen,
                all_frozen: view.all_frozen && frozen,
                ..view
            }
        }))
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

fn kind_name(kind: Kind, grouped: bool) -> &'static str {
    match (kind, grouped) {
        (Kind::Allreduce, true) => "grouped_allreduce",
        (Kind::Allgather, true) => "grouped_allgather",
        (Kind::Reducescatter, true) => "grouped_reducescatter",
        (kind, _) => kind.name(),
    }
}
