//! The mover: the thread that owns a set's communicator and runs what was agreed, in order.

use super::{
    bell::Bell,
    carry::{Carrier, Load, Place},
    counters::add,
    error::EngineError,
    handle::{Outcome, Slot},
    negotiate::{Input, Setup, message::Tuning, replay::View},
    set::{Job, Set},
    shared::Shared,
    spec::Kind,
    tune::{Advice, Fixed, Tuner},
};
use crate::{communicator::Communicator, error::Error};
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
    /// Operations so far; the same on every rank of the set.
    n_run: u64,
    /// On the first rank of the first set, if the program wants it.
    tuner: Option<Tuner>,
}

impl Mover {
    /// Makes a set of this communicator's ranks, with what runs its operations.
    pub fn new(shared: Arc<Shared>, id: u32, comm: Communicator) -> Mover {
        let setup = Setup {
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
        shared.add_set(id, &set);
        let carrier = Carrier::new(&comm);
        let tuner = (id == 0 && comm.rank() == Rank::ZERO).then(|| tuner(&shared, &comm)).flatten();
        Mover { shared, set, comm, carrier, seen: None, n_run: 0, tuner }
    }

    /// Works until the end; gives the communicator back.
    pub fn run(mut self) -> Communicator {
        let mut version = u64::MAX;
        loop {
            let (set, seen) = (self.set.clone(), self.seen);
            let news = || set.version() != version || set.view() != seen;
            if !news() {
                add(&self.shared.tally.waits, 1);
                set.bell.wait(&news);
            }
            version = set.version();
            let view = set.view();
            if view != self.seen
                && let Some(view) = view
            {
                self.seen = Some(view);
                self.set.drive(&self.shared, Input::Seen(view));
            }
            loop {
                let job = self.set.desk().queue.pop_front();
                match job {
                    None => break,
                    Some(Job::End) => return self.comm,
                    Some(Job::Tune(tuning)) => {
                        self.comm.tune(tuning.segment_bytes, tuning.algorithm.as_deref());
                    }
                    Some(Job::Batch { loads, slots, replayed }) => self.batch(loads, slots, replayed),
                }
            }
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
                return self.change_sets(&loads[0], slots);
            }
            // A panic is our own fault; that nobody waits for ever because of it is worth the catch.
            _ => catch_unwind(AssertUnwindSafe(|| self.carrier.carry(&mut self.comm, &mut loads)))
                .unwrap_or_else(|_| Err(Error::Split("the engine panicked while it moved data".into()))),
        };
        self.shared.timeline.moved(self.set.id, &loads, self.comm.last_plan(), number);
        self.count(&loads, replayed, began);
        self.tune(&loads);
        match result {
            Ok(()) => {
                for (load, slot) in loads.into_iter().zip(slots) {
                    let Some(slot) = slot else { continue };
                    let Load { places, made, received, .. } = load;
                    let tensors = if made.is_empty() {
                        places.into_iter().flatten().map(Place::into_output).collect()
                    } else {
                        made
                    };
                    slot.answer(Ok(Outcome { tensors, received, ..Outcome::default() }));
                }
            }
            Err(error) => {
                let error = EngineError::from(error);
                // Ranks no longer know what the others have done. Before the answers: whoever sees one cannot submit more.
                self.shared.own_sets().iter().for_each(|set| set.end(error.clone()));
                self.shared.wake_control();
                slots.into_iter().flatten().for_each(|slot| slot.answer(Err(error.clone())));
            }
        }
        if !replayed {
            self.set.drive(&self.shared, Input::Ran(1));
        }
    }

    /// Tells the tuner what ran, and everybody what it advises.
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
                tracing::info!(?tuning, "autotuning has settled");
                write_log(&self.shared, tuner);
                self.tuner = None;
                self.set.drive(&self.shared, Input::Tune(tuning));
            }
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

    fn change_sets(&mut self, load: &Load, slots: Vec<Option<Arc<Slot>>>) {
        match load.agreed.spec.kind {
            Kind::AddSet => self.add_set(load, slots),
            _ => self.remove_set(load, slots),
        }
    }

    /// All ranks come here with the same ranks, in the same place of the sequence.
    fn add_set(&mut self, load: &Load, slots: Vec<Option<Arc<Slot>>>) {
        let ranks: Vec<Rank> = load.agreed.spec.splits.iter().map(|r| Rank(*r as u32)).collect();
        let answer = self.make_set(&ranks).map(|id| Outcome { set: Some(id), ..Outcome::default() });
        self.set.drive(&self.shared, Input::Ran(1));
        self.shared.wake_control();
        if let Some(slot) = slots.into_iter().flatten().next() {
            slot.answer(answer);
        }
    }

    pub fn make_set(&mut self, ranks: &[Rank]) -> Result<u32, EngineError> {
        if let Some(id) = self.shared.sets().find(ranks) {
            return Err(EngineError::BadSet(format!(
                "process set {id} already has exactly the ranks {ranks:?}"
            )));
        }
        let mine: &[Rank] = if ranks.contains(&self.comm.rank()) { ranks } else { &[] };
        let comm = self.comm.split(mine)?;
        let id = self.shared.sets().take_id();
        match comm {
            None => drop(self.shared.sets().known.insert(id, (ranks.to_vec(), None))),
            Some(comm) => {
                let mover = Mover::new(self.shared.clone(), id, comm);
                let spawned = spawn(format!("phalanx-set-{id}"), move || drop(mover.run()))?;
                self.shared.movers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(spawned);
            }
        }
        Ok(id)
    }

    fn remove_set(&mut self, load: &Load, slots: Vec<Option<Arc<Slot>>>) {
        let id = load.agreed.spec.splits[0] as u32;
        let removed = self.shared.sets().remove(id);
        let answer = match removed {
            None => Err(EngineError::NoSuchSet { set: id }),
            Some((_, set)) => {
                if let Some(set) = set {
                    // Not at once: what its members have agreed on still runs, on all of them.
                    set.drive(&self.shared, Input::Leave);
                }
                Ok(Outcome::default())
            }
        };
        self.set.drive(&self.shared, Input::Ran(1));
        self.shared.wake_control();
        if let Some(slot) = slots.into_iter().flatten().next() {
            slot.answer(answer);
        }
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
        algorithm: config.is_set("PHALANX_ALGORITHM"),
    };
    // Inside a host the choice hardly depends on the machine; between hosts it depends on the network.
    let algorithms: &[&str] = if comm.topology().n_hosts() > 1 { &["ring", "halving"] } else { &[] };
    let tuner = Tuner::new(start, fixed, algorithms);
    tracing::info!(at_most_steps = tuner.most_steps(), "autotuning begins");
    Some(tuner)
}

pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, EngineError> {
    std::thread::Builder::new().name(name).spawn(run).map_err(|error| {
        Error::from(phalanx_net::NetError::System { what: "cannot start a thread", error }).into()
    })
}
