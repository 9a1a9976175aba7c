//! The mover: it owns a set's communicator and runs the agreed batches in order, on a thread of its own or on one that waits (`helm`).
//!
//! - MOVER-1: a rank knows a set only if every member has a mover for it; where one cannot have one, no rank has the set, and all are told who.

use super::{
    bell::Bell,
    carry::{Carrier, Load},
    counters::add,
    error::EngineError,
    handle::{Outcome, Slot},
    negotiate::{Input, NegotiatorSetup, message::Tuning, replay::View},
    set::{Job, Set},
    shared::{NoThread, Shared},
    spec::Kind,
    tune::{Advice, Fixed, Tuner},
};
use crate::{communicator::Communicator, error::Error, split::show};
use phalanx_core::{Rank, config::Autotune};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

pub(crate) struct Mover {
    pub shared: Arc<Shared>,
    pub set: Arc<Set>,
    pub comm: Communicator,
    carrier: Carrier,
    seen: Option<View>,
    /// Jobs so far.
    n_jobs: u64,
    /// Operations so far; the same on every rank of the set.
    n_run: u64,
    /// On the first rank of the first set, if the program wants it.
    tuner: Option<Tuner>,
}

impl Mover {
    /// Makes a set of this communicator's ranks, with what runs its operations; nobody else knows of it yet.
    pub fn new(shared: Arc<Shared>, id: u32, comm: Communicator) -> Mover {
        let setup = NegotiatorSetup {
            me: comm.rank().index(),
            members: comm.members.clone(),
            limits: shared.options.limits(),
            cache_capacity: shared.options.cache_capacity as usize,
            board: false,
            replay: shared.options.replay,
            stall_ms: shared.options.stall_ms,
            abort_ms: shared.options.abort_ms,
            says_where: shared.options.whereabouts.is_some(),
        };
        let bell = Bell::new(shared.world.arena().cloned());
        let set = Arc::new(Set::new(id, comm.number, setup, comm.board(), bell));
        let carrier = Carrier::new(&comm);
        let tuner = (id == 0 && comm.rank() == Rank::ZERO).then(|| tuner(&shared, &comm)).flatten();
        Mover { shared, set, comm, carrier, seen: None, n_jobs: 0, n_run: 0, tuner }
    }

    /// Works until the end; gives the communicator back.
    pub fn run(self) -> Communicator {
        let (set, shared) = (self.set.clone(), self.shared.clone());
        set.helm.put(Box::new(self));
        loop {
            let news = || set.helm.is_free_and(Mover::has_news);
            if !news() {
                add(&shared.tally.waits, 1);
                set.bell.wait(&news, &|| !set.is_expecting() || !set.helm.is_free());
            }
            let Some(mut mover) = set.helm.take_if_free() else { continue };
            while mover.has_news() {
                mover.look();
                while let Some(job) = mover.next(|_| true) {
                    if matches!(job, Job::End) {
                        mover.say_what_was_tuned();
                        return mover.comm;
                    }
                    mover.perform(job);
                }
            }
            set.helm.put(mover);
        }
    }

    /// Whether there is something that it has not looked at.
    pub fn has_news(&self) -> bool {
        self.set.version() != self.n_jobs || self.set.view() != self.seen
    }

    /// Runs what there is until this operation is done or the deadline has passed, on the thread that waits for it. False if there is something
    /// for its own thread.
    pub fn help(&mut self, slot: &Slot, deadline: Instant) -> bool {
        while self.has_news() && !slot.is_done() {
            self.look();
            while let Some(job) = self.next(Job::is_for_all) {
                self.perform(job);
                if slot.is_done() || Instant::now() >= deadline {
                    return true;
                }
            }
            if self.set.version() != self.n_jobs {
                return false;
            }
        }
        true
    }

    /// Tells the node what the board shows.
    fn look(&mut self) {
        let view = self.set.view();
        if view != self.seen
            && let Some(view) = view
        {
            self.seen = Some(view);
            self.set.drive(&self.shared, Input::Seen(view));
        }
    }

    /// The next job, if it is one of these.
    fn next(&mut self, of: impl FnOnce(&Job) -> bool) -> Option<Job> {
        let mut state = self.set.state();
        let job = if of(state.queue.front()?) { state.queue.pop_front()? } else { return None };
        drop(state);
        self.n_jobs += 1;
        Some(job)
    }

    fn perform(&mut self, job: Job) {
        match job {
            Job::End => {}
            Job::Tune(tuning) => self.comm.tune(tuning.segment_bytes, tuning.algorithm.as_deref()),
            Job::Batch { loads, slots, replayed } => self.batch(loads, slots, replayed),
        }
    }

    fn batch(&mut self, mut loads: Vec<Load>, slots: Vec<Option<Arc<Slot>>>, replayed: bool) {
        let began = Instant::now();
        let number = self.n_run;
        self.n_run += loads.len() as u64;
        self.shared.timeline.moving(self.set.id, &loads);
        let result = match loads[0].agreed.spec.kind {
            Kind::AddSet | Kind::RemoveSet => {
                self.shared.timeline.moved(self.set.id, &loads, "", number);
                return self.answer_change(&loads[0], slots);
            }
            // A panic is our own fault; that nobody waits for ever because of it is worth the catch.
            _ => catch_unwind(AssertUnwindSafe(|| self.carrier.carry(&mut self.comm, &mut loads)))
                .unwrap_or(Err(Error::Panicked { doing: "moved data" })),
        };
        self.shared.timeline.moved(self.set.id, &loads, self.comm.last_plan(), number);
        self.count(&loads, replayed, began);
        self.tune(&loads);
        match result {
            Ok(()) => {
                for (load, slot) in loads.into_iter().zip(slots) {
                    let Some(slot) = slot else { continue };
                    slot.answer(Ok(load.outcome()));
                }
            }
            Err(error @ Error::NoMpi { .. }) => {
                // All ranks agreed on it, and none has moved anything.
                let error = EngineError::from(error);
                slots.into_iter().flatten().for_each(|slot| slot.answer(Err(error.clone())));
            }
            Err(error) => {
                let error = EngineError::from(error);
                // Ranks no longer know what the others have done. Before the answers: a thread that sees one cannot submit more.
                self.shared.own_sets().iter().for_each(|set| set.end(error.clone()));
                self.shared.wake_control();
                slots.into_iter().flatten().for_each(|slot| slot.answer(Err(error.clone())));
            }
        }
        if !replayed {
            self.set.drive(&self.shared, Input::Ran(1));
        }
    }

    /// Tells the tuner what ran, and every rank what it advises.
    fn tune(&mut self, loads: &[Load]) {
        let Some(tuner) = &mut self.tuner else { return };
        let now_us = self.shared.now_us();
        let advice = loads.iter().find_map(|l| tuner.ran(now_us, &l.agreed.name, l.agreed.spec.n_bytes()));
        match advice {
            None => {}
            Some(Advice::Try(tuning)) => {
                write_log(&self.shared, tuner);
                self.set.drive(&self.shared, Input::Tune(tuning));
            }
            Some(Advice::Settle(tuning)) => {
                self.say_what_was_tuned();
                self.set.drive(&self.shared, Input::Tune(tuning));
            }
        }
    }

    /// Tells people what was tried and chosen, or how far it came; once. A world that ends badly has worse to tell.
    fn say_what_was_tuned(&mut self) {
        let Some(tuner) = self.tuner.take() else { return };
        write_log(&self.shared, &tuner);
        let text = tuner.to_string();
        if self.shared.doom().is_none() && !self.shared.world.tell_launcher(&text) {
            phalanx_net::voice::warn(&text);
        }
    }

    fn count(&self, loads: &[Load], replayed: bool, began: Instant) {
        let tally = &self.shared.tally;
        add(&tally.operations, loads.len() as u64);
        add(&tally.bytes, loads.iter().map(|l| l.agreed.spec.n_bytes()).sum());
        add(&tally.batches, 1);
        add(&tally.fused_batches, u64::from(loads.len() > 1));
        add(&tally.replayed, if replayed { loads.len() as u64 } else { 0 });
        add(&tally.moving_us, began.elapsed().as_micros() as u64);
        tally.packed_bytes.store(self.carrier.packed_bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// All ranks come here with the same change, in the same place of the sequence.
    fn answer_change(&mut self, load: &Load, slots: Vec<Option<Arc<Slot>>>) {
        let panicked =
            |shared: &Shared| Err(shared.ruin(Error::Panicked { doing: "changed process sets" }.into()));
        let change = AssertUnwindSafe(|| match load.agreed.spec.kind {
            Kind::AddSet => self.add_set(load),
            _ => self.remove_set(load),
        });
        let answer = catch_unwind(change).unwrap_or_else(|_| panicked(&self.shared));
        self.set.drive(&self.shared, Input::Ran(1));
        self.shared.wake_control();
        if let Some(slot) = slots.into_iter().flatten().next() {
            slot.answer(answer);
        }
    }

    fn add_set(&mut self, load: &Load) -> Result<Outcome, EngineError> {
        let ranks: Vec<Rank> = load.agreed.spec.splits.iter().map(|r| Rank(*r as u32)).collect();
        self.make_set(&ranks).map(|id| Outcome { set: Some(id), ..Outcome::default() })
    }

    /// Makes a set (MOVER-1).
    pub fn make_set(&mut self, ranks: &[Rank]) -> Result<u32, EngineError> {
        if let Some(id) = self.shared.sets().find(ranks) {
            return Err(EngineError::BadSet(format!(
                "process set {id} already has exactly the ranks {ranks:?}"
            )));
        }
        let mine: &[Rank] = if ranks.contains(&self.comm.rank()) { ranks } else { &[] };
        let comm = self.comm.split(mine)?;
        let id = self.shared.sets().next_id();
        let started = comm.map(|comm| {
            let mover = Mover::new(self.shared.clone(), id, comm);
            let set = mover.set.clone();
            (set, self.shared.spawn(format!("phalanx-set-{id}"), move || drop(mover.run())))
        });
        let mine = started.as_ref().and_then(|(_, thread)| thread.as_ref().err());
        if let Err(why) = self.agree_on_movers(ranks, mine) {
            if let Some((set, Ok(thread))) = started {
                set.end(why.clone());
                self.shared.keep(thread);
            }
            return Err(why);
        }
        // All ranks know that they have it.
        self.shared.sets().take_id();
        match started {
            Some((set, Ok(thread))) => {
                self.shared.keep(thread);
                self.shared.add_set(id, &set);
            }
            _ => drop(self.shared.sets().known.insert(id, (ranks.to_vec(), None))),
        }
        Ok(id)
    }

    /// MOVER-1: whether all could start what they need; if not, who could not and why, the same on all ranks.
    fn agree_on_movers(&mut self, ranks: &[Rank], mine: Option<&NoThread>) -> Result<(), EngineError> {
        let n = self.comm.size() as usize;
        // Whatever says no number of its own is an error as well.
        let code = mine.map_or(0, |NoThread(error)| error.raw_os_error().unwrap_or(-1));
        let mut codes = vec![0i32; n];
        self.comm.allgather(&[code], &mut codes, &vec![1; n])?;
        let Some(rank) = codes.iter().position(|code| *code != 0) else { return Ok(()) };
        let (error, list) = (std::io::Error::from_raw_os_error(codes[rank]), show(ranks));
        let why = format!("rank {rank} cannot start a thread for the process set {list}: {error}");
        Err(Error::Split(why).into())
    }

    fn remove_set(&mut self, load: &Load) -> Result<Outcome, EngineError> {
        let id = load.agreed.spec.splits[0] as u32;
        let (_, set) = self.shared.sets().remove(id).ok_or(EngineError::NoSuchSet { set: id })?;
        if let Some(set) = set {
            // Not at once: what its members have agreed on still runs, on all of them.
            set.drive(&self.shared, Input::Leave);
        }
        Ok(Outcome::default())
    }
}

/// What was tried so far: a job that ends early leaves that much.
fn write_log(shared: &Shared, tuner: &Tuner) {
    if let Some(path) = &shared.world.config().autotune_log
        && let Err(error) = std::fs::write(path, tuner.log())
    {
        phalanx_net::voice::warn(&format!("cannot write the autotune log {path}: {error}"));
    }
}

fn tuner(shared: &Shared, comm: &Communicator) -> Option<Tuner> {
    let config = shared.world.config();
    if config.autotune != Autotune::On {
        return None;
    }
    let start = Tuning {
        fusion_bytes: shared.options.fusion_bytes,
        segment_bytes: comm.segment_bytes,
        algorithm: None,
    };
    let fixed = Fixed {
        fusion: config.is_set("PHALANX_FUSION_BYTES"),
        segment: config.is_set("PHALANX_SEGMENT_BYTES"),
        // A shape that was asked for is not measured away.
        algorithm: config.is_set("PHALANX_ALGORITHM") || comm.wiring().is_some(),
    };
    // Inside a host the choice hardly depends on the machine; between hosts it depends on the network.
    let algorithms: &[&str] = if comm.topology().n_hosts() > 1 { &["ring", "halving"] } else { &[] };
    let tuner = Tuner::new(start, fixed, algorithms);
    tracing::info!(at_most_steps = tuner.most_steps(), "autotuning begins");
    Some(tuner)
}
