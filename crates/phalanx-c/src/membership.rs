//! Init and shutdown, rank and size, process sets, errors, counters.

use crate::{
    abi::{CCounters, Status},
    failure::Failure,
    guard::{self, code},
    pointers,
    process::{EngineRun, PROCESS, Wish, sorted_set},
};
use phalanx_collective::engine::EngineError;
use phalanx_core::{Rank, Topology};
use std::{
    ffi::{CStr, OsStr, c_char},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

/// Joins the world that the environment describes (a launcher's, or a world of one) and starts the engine. Every rank calls it. Does nothing if it
/// runs already. After phalanx_shutdown() it may be called again, as often as one likes.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_init() -> i32 {
    code(|| {
        PROCESS.init(Ok(Wish { ranks: Vec::new(), process_sets: Vec::new(), ddl: None }))?;
        Ok(Status::Ok as i32)
    })
}

/// Ends the engine, for all ranks: what all have submitted still runs, everything else fails with PHALANX_STATUS_SHUT_DOWN. Handles stay until they
/// are released. Does nothing if it does not run.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_shutdown() -> i32 {
    code(|| {
        PROCESS.shutdown()?;
        Ok(Status::Ok as i32)
    })
}

/// 1 between phalanx_init() and phalanx_shutdown(), otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_is_initialized() -> i32 {
    code(|| Ok(PROCESS.engine().is_ok().into()))
}

/// This rank's number. As the five functions below: a negative code if phalanx_init() was not called.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_rank() -> i32 {
    code(rank)
}

/// The number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_size() -> i32 {
    code(size)
}

/// This rank's place among the ranks of its host.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_local_rank() -> i32 {
    code(local_rank)
}

/// The number of ranks on this host.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_local_size() -> i32 {
    code(local_size)
}

/// This rank's place among the ranks with the same place on their hosts.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_cross_rank() -> i32 {
    code(cross_rank)
}

/// The number of ranks with the same place on their hosts.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_cross_size() -> i32 {
    code(cross_size)
}

/// Makes a process set of these ranks. Every rank calls it with the same ranks, in any order, also those that are not in it; waits for all.
/// Returns its number, or a negative code.
///
/// # Safety
/// `ranks` points to `n` ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_add_process_set(ranks: *const i32, n: i32) -> i32 {
    code(|| {
        let session = PROCESS.engine()?;
        guard::may_wait()?;
        // SAFETY: the header asks the same of the caller.
        add_set(&session, unsafe { pointers::slice(ranks, n, "the ranks") }?)
    })
}

/// Removes a process set. Every rank calls it; waits for all. Returns PHALANX_STATUS_OK or a negative code.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_remove_process_set(process_set: i32) -> i32 {
    code(|| {
        let session = PROCESS.engine()?;
        guard::may_wait()?;
        remove_set(&session, process_set)?;
        Ok(Status::Ok as i32)
    })
}

/// Writes what happens on this rank from now on to this file, for Perfetto or Chrome; with every look that finds something to run, if `mark_cycles`.
/// The file is this rank's own: another rank needs another one.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_start_timeline(path: *const c_char, mark_cycles: bool) -> i32 {
    code(|| {
        let session = PROCESS.engine()?;
        // SAFETY: the header asks the same of the caller.
        let path = unsafe { timeline_path(path) }?;
        session.engine.start_timeline(path, mark_cycles)?;
        Ok(Status::Ok as i32)
    })
}

/// Ends the timeline, if there is one: when this returns, the file holds everything. phalanx_shutdown() does it, too.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_stop_timeline() -> i32 {
    code(|| {
        let session = PROCESS.engine()?;
        guard::may_wait()?;
        session.engine.stop_timeline()?;
        Ok(Status::Ok as i32)
    })
}

/// What this rank has done since phalanx_init(). `size` is sizeof(phalanx_counters): later versions may add to the end.
///
/// # Safety
/// `counters` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_get_counters(counters: *mut CCounters, size: usize) -> i32 {
    code(|| {
        let now = PROCESS.engine()?.engine.counters();
        if counters.is_null() {
            return Err(Failure::invalid("the pointer to the counters is NULL"));
        }
        let all = CCounters {
            submitted: now.submitted,
            operations: now.operations,
            failed: now.failed,
            bytes: now.bytes,
            batches: now.batches,
            fused_batches: now.fused_batches,
            packed_bytes: now.packed_bytes,
            replayed: now.replayed,
            cached: now.cached,
            negotiated: now.negotiated,
            moving_us: now.moving_us,
            waits: now.waits,
        };
        let known = size.min(size_of::<CCounters>());
        // SAFETY: not null, and the header asks for room for `size` bytes, of which these are no more.
        unsafe { counters.cast::<u8>().copy_from_nonoverlapping((&raw const all).cast(), known) };
        Ok(Status::Ok as i32)
    })
}

/// What last went wrong on this thread; "" if nothing did. Valid until the next failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_last_error() -> *const c_char {
    guard::last_error()
}

/// A few words for a code.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_status_name(status: i32) -> *const c_char {
    let known = Status::ALL.into_iter().find(|s| *s as i32 == status);
    known.map_or(c"unknown code", Status::name).as_ptr()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Asks where this rank stands.
fn place(ask: impl FnOnce(&Topology, Rank) -> u32) -> Result<i32, Failure> {
    let session = PROCESS.engine()?;
    Ok(ask(session.engine.world().workers(), session.engine.rank()) as i32)
}

pub fn rank() -> Result<i32, Failure> {
    place(|_, rank| rank.0)
}

pub fn size() -> Result<i32, Failure> {
    place(|topology, _| topology.n_ranks())
}

pub fn local_rank() -> Result<i32, Failure> {
    place(Topology::local_of)
}

pub fn local_size() -> Result<i32, Failure> {
    place(|topology, rank| topology.neighbours(rank).len() as u32)
}

pub fn cross_rank() -> Result<i32, Failure> {
    place(|topology, rank| {
        topology.cross(rank).iter().position(|r| *r == rank).expect("a rank crosses itself") as u32
    })
}

pub fn cross_size() -> Result<i32, Failure> {
    place(|topology, rank| topology.cross(rank).len() as u32)
}

/// # Safety
/// `path` is null or a string.
pub unsafe fn timeline_path(path: *const c_char) -> Result<PathBuf, Failure> {
    if path.is_null() {
        return Err(Failure::invalid("the path of the timeline is NULL"));
    }
    // SAFETY: not null, and the caller says that it is a string. Paths need not be UTF-8.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

pub fn add_set(session: &EngineRun, ranks: &[i32]) -> Result<i32, Failure> {
    let negative = |r: i32| Failure::invalid(format!("rank {r} of the process set {ranks:?} is negative"));
    let wanted: Vec<u32> =
        ranks.iter().map(|r| u32::try_from(*r).map_err(|_| negative(*r))).collect::<Result<_, _>>()?;
    let wanted = sorted_set(&wanted, session.engine.size())?;
    let same = |ranks: &[Rank]| ranks.iter().map(|r| r.0).eq(wanted.iter().copied());
    if let Some((id, _)) = session.engine.process_sets().into_iter().find(|(_, ranks)| same(ranks)) {
        return Err(Failure::new(
            Status::ExistingSet,
            format!("process set {id} already has exactly the ranks {wanted:?}"),
        ));
    }
    Ok(session.engine.add_process_set(&wanted)? as i32)
}

pub fn remove_set(session: &EngineRun, id: i32) -> Result<(), Failure> {
    let set = u32::try_from(id).map_err(|_| pointers::unknown_set(id))?;
    match session.engine.remove_process_set(set)? {
        true => Ok(()),
        false if set == 0 => {
            Err(Failure::new(Status::UnknownSet, "process set 0, all ranks, cannot be removed"))
        }
        false => Err(EngineError::NoSuchSet { set }.into()),
    }
}
