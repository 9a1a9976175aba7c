//! Starts an engine; if a part cannot start, ends the parts that have started.
//!
//! - START-1: an engine that does not start leaves nothing behind: no thread, no set that waits, no world. Where the other ranks do not fail alike
//!   they are told why.

use super::{
    Engine, control::Control, error::EngineError, mover::Mover, negotiate::Input, options::EngineOptions,
    shared::Shared, timeline, tune, well_formed, whereabouts::Asker,
};
use crate::{communicator::Communicator, error::Error};
use phalanx_core::{Rank, config::Autotune};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    thread::JoinHandle,
};

/// The control thread and the mover of the first set.
type Threads = (JoinHandle<()>, JoinHandle<Communicator>);

impl Engine {
    /// Starts with these settings; rank 0's hold for all, but process sets must be the same on all.
    pub fn start_with(mut communicator: Communicator, options: EngineOptions) -> Result<Engine, EngineError> {
        let mut words = options.to_words();
        communicator.broadcast(&mut words, Rank::ZERO)?;
        let options = options.with_words(words);
        check_same_sets(&mut communicator, &options.process_sets)?;
        let sets: Vec<Vec<Rank>> = options
            .process_sets
            .iter()
            .map(|ranks| well_formed(ranks, communicator.size()))
            .collect::<Result<_, _>>()?;
        let (world, is_shaped) = (communicator.world_arc(), communicator.wiring().is_some());
        let shared = Shared::new(world.clone(), options).map_err(|error| {
            world.doom(error.doom(world.rank()));
            Error::from(error)
        })?;
        let shared = Arc::new(shared);
        match begin(&shared, communicator, &sets) {
            Ok((control, mover)) => {
                Ok(Engine { shared, control: Some(control), mover: Some(mover), is_shaped })
            }
            Err(error) => Err(undo(&shared, error)),
        }
    }
}

fn begin(
    shared: &Arc<Shared>,
    mut communicator: Communicator,
    sets: &[Vec<Rank>],
) -> Result<Threads, EngineError> {
    let stream = communicator.next_engine();
    if let Some(whereabouts) = &shared.options.whereabouts {
        shared.take_asker(Asker::start(whereabouts.clone(), shared)?);
    }
    let config = shared.world.config();
    if let Some(path) = &config.timeline {
        let path = timeline::path_of_rank(path.as_ref(), communicator.rank());
        // Not a reason to leave the other ranks waiting.
        if let Err(error) = shared.timeline.start(&path, config.timeline_mark_cycles) {
            phalanx_net::voice::warn(&format!("no timeline is written: {error}"));
        }
    }
    let id = shared.sets().take_id();
    let mut mover = Mover::new(shared.clone(), id, communicator);
    shared.add_set(id, &mover.set);
    // Until every rank has wiped its part of the board, nobody may read it.
    mover.comm.barrier()?;
    for ranks in sets {
        mover.make_set(ranks)?;
    }
    let mut control = Control::new(shared.clone(), stream);
    control.connect()?;
    shared.sets().changed = false;
    // Read by the first rank only, which tells all others.
    if let (Autotune::From(path), Rank::ZERO) = (&config.autotune, shared.world.rank()) {
        let log = std::fs::read_to_string(path).map_err(|e| e.to_string());
        match log.and_then(|log| tune::recorded(&log)) {
            Ok(tuning) => {
                if let (Some(name), Some(_)) = (&tuning.algorithm, mover.comm.wiring()) {
                    phalanx_net::voice::warn(&format!(
                        "PHALANX_AUTOTUNE={path} names the algorithm {name}, which is not used: the shape of the network counts"
                    ));
                }
                mover.set.drive(shared, Input::Tune(tuning));
            }
            Err(why) => phalanx_net::voice::warn(&format!("PHALANX_AUTOTUNE={path} is not used: {why}")),
        }
    }
    let control = shared.spawn("phalanx-control".into(), move || control.run())?;
    match shared.spawn("phalanx-mover".into(), move || mover.run()) {
        Ok(mover) => Ok((control, mover)),
        Err(error) => {
            shared.keep(control);
            Err(error.into())
        }
    }
}

/// START-1. Returns what every rank names as the reason.
fn undo(shared: &Shared, error: EngineError) -> EngineError {
    let alike = match &error {
        EngineError::BadSet(_) => true,
        EngineError::Failed(error) => matches!(**error, Error::Split(_)),
        _ => false,
    };
    let why = if alike { error } else { shared.ruin(error) };
    shared.close_sets(&why);
    shared.wake_control();
    // They have been told to end; one that panicked has ended.
    shared.take_kept().into_iter().for_each(|thread| drop(thread.join()));
    let _ = shared.timeline.stop();
    why
}

fn check_same_sets(comm: &mut Communicator, sets: &[Vec<u32>]) -> Result<(), EngineError> {
    let mut hasher = DefaultHasher::new();
    sets.hash(&mut hasher);
    let n = comm.size() as usize;
    let mut all = vec![0i64; n];
    comm.allgather(&[hasher.finish() as i64], &mut all, &vec![1; n])?;
    match all.iter().position(|h| *h != all[0]) {
        None => Ok(()),
        Some(rank) => {
            Err(EngineError::BadSet(format!("ranks 0 and {rank} were started with different process sets")))
        }
    }
}
