//! Horovod's C functions: its names, arguments and codes. What its Python modules call through ctypes.

use crate::{
    abi::{COp, Status},
    failure::Failure,
    guard::{self, code, guard},
    membership,
    pointers::{slice, unknown_set},
    process::{EngineRun, Lease, PROCESS, Wish},
};
use phalanx_core::Rank;
use std::ffi::{c_char, c_int};

/// Joins the world and starts the engine, with process sets besides that of all ranks: `process_set_sizes` has the size of each of them,
/// `process_set_ranks` the ranks of one after the other. `ranks` is empty or has all ranks in order. False if it fails: phalanx_last_error() says why.
/// True, whatever the arguments, if it runs already.
///
/// # Safety
/// `ranks` points to `n_ranks` numbers, `process_set_sizes` to `n_process_sets`, `process_set_ranks` to as many as these add up to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn horovod_init(
    ranks: *const c_int,
    n_ranks: c_int,
    process_set_ranks: *const c_int,
    process_set_sizes: *const c_int,
    n_process_sets: c_int,
) -> bool {
    guard(
        |_| false,
        || {
            let wish = || {
                // SAFETY: the header asks the same of the caller.
                let ranks = unsafe { slice(ranks, n_ranks, "the ranks") }?;
                // SAFETY: the header asks the same of the caller.
                let sizes = unsafe { slice(process_set_sizes, n_process_sets, "the sizes of process sets") }?;
                let total = sizes.iter().try_fold(0, |sum: c_int, n| sum.checked_add(*n).filter(|_| *n >= 0));
                let total = total.ok_or_else(|| Failure::invalid("a process set of a negative size"))?;
                // SAFETY: the header asks the same of the caller.
                let mut rest = unsafe { slice(process_set_ranks, total, "the ranks of process sets") }?;
                let mut process_sets = Vec::new();
                for n in sizes {
                    let (set, after) = rest.split_at(*n as usize);
                    let set = set.iter().map(|r| u32::try_from(*r)).collect::<Result<Vec<u32>, _>>();
                    process_sets.push(set.map_err(|_| Failure::invalid("a process set of negative ranks"))?);
                    rest = after;
                }
                Ok(Wish { ranks: ranks.iter().map(|r| i64::from(*r)).collect(), process_sets, ddl: None })
            };
            PROCESS.init(wish())?;
            Ok(true)
        },
    )
}

/// Ends the engine, for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_shutdown() {
    guard(|_| (), || PROCESS.shutdown());
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_is_initialized() -> c_int {
    membership::phalanx_is_initialized()
}

/// Writes a timeline to this file, or from now on to this file if there is one already. Every rank calls it with the same name; as with Horovod,
/// only rank 0 writes (phalanx_start_timeline() is for the others). Returns 1; or -1 (not initialized), -7 (no name), -17 (it cannot be written).
///
/// # Safety
/// `file_name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn horovod_start_timeline(file_name: *const c_char, mark_cycles: bool) -> c_int {
    code(|| {
        let session = begun()?;
        // SAFETY: the header asks the same of the caller.
        let path = unsafe { membership::timeline_path(file_name) }?;
        if session.engine.rank() == Rank::ZERO {
            guard::may_wait()?;
            session.engine.stop_timeline()?;
            session.engine.start_timeline(path, mark_cycles)?;
        }
        Ok(1)
    })
}

/// Ends the timeline, if there is one. Returns 1; or -1, -17 as above.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_stop_timeline() -> c_int {
    code(|| {
        let session = begun()?;
        guard::may_wait()?;
        session.engine.stop_timeline()?;
        Ok(1)
    })
}

/// This rank's number. As the functions below: -1 before horovod_init().
#[unsafe(no_mangle)]
pub extern "C" fn horovod_rank() -> c_int {
    answer(membership::rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_size() -> c_int {
    answer(membership::size)
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_local_rank() -> c_int {
    answer(membership::local_rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_local_size() -> c_int {
    answer(membership::local_size)
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_cross_rank() -> c_int {
    answer(membership::cross_rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_cross_size() -> c_int {
    answer(membership::cross_size)
}

/// 1 if every host has the same number of ranks, otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_is_homogeneous() -> c_int {
    answer(|| Ok(PROCESS.engine()?.engine.world().workers().even().is_some().into()))
}

/// 0: there is no MPI.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_mpi_threads_supported() -> c_int {
    answer(|| PROCESS.engine().map(|_| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_mpi_enabled() -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_mpi_built() -> bool {
    false
}

/// True while the engine runs: to programs that ask, Phalanx stands where Gloo would, the way without MPI.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_gloo_enabled() -> bool {
    guard(|_| false, || Ok(PROCESS.engine().is_ok()))
}

/// True: see horovod_gloo_enabled().
#[unsafe(no_mangle)]
pub extern "C" fn horovod_gloo_built() -> bool {
    true
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_nccl_built() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_ddl_built() -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_ccl_built() -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_cuda_built() -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_rocm_built() -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_reduce_op_average() -> c_int {
    COp::Average as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_reduce_op_sum() -> c_int {
    COp::Sum as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_reduce_op_adasum() -> c_int {
    COp::Adasum as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_reduce_op_min() -> c_int {
    COp::Min as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_reduce_op_max() -> c_int {
    COp::Max as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn horovod_reduce_op_product() -> c_int {
    COp::Product as c_int
}

/// As phalanx_add_process_set(), if HOROVOD_DYNAMIC_PROCESS_SETS was 1 at horovod_init(). Returns its number; or -1 (not initialized), -2 (not
/// dynamic), -5 (shut down, or a rank is lost), -6 (such a set exists), -7 (ranks that cannot be a set).
///
/// # Safety
/// `ranks` points to `n_ranks` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn horovod_add_process_set(ranks: *const c_int, n_ranks: c_int) -> c_int {
    answer(|| {
        let session = PROCESS.engine()?;
        may_change(&session)?;
        // SAFETY: the header asks the same of the caller.
        membership::add_set(&session, unsafe { slice(ranks, n_ranks, "the ranks") }?)
    })
}

/// As phalanx_remove_process_set(), if HOROVOD_DYNAMIC_PROCESS_SETS was 1 at horovod_init(). Returns the number it had; or -1, -2, -5 as above, -3
/// (there is no such set, or it is that of all ranks).
#[unsafe(no_mangle)]
pub extern "C" fn horovod_remove_process_set(process_set_id: c_int) -> c_int {
    answer(|| {
        let session = PROCESS.engine()?;
        may_change(&session)?;
        membership::remove_set(&session, process_set_id)?;
        Ok(process_set_id)
    })
}

/// This rank's number in a process set; or -1 (not initialized), -3 (there is no such set), -4 (this rank is not in it).
#[unsafe(no_mangle)]
pub extern "C" fn horovod_process_set_rank(process_set_id: c_int) -> c_int {
    answer(|| {
        let (members, me) = members(process_set_id)?;
        let place = members.iter().position(|rank| *rank == me);
        place.map(|place| place as c_int).ok_or_else(|| {
            let text = format!("rank {me} is not a member of process set {process_set_id}");
            Failure::new(Status::ForeignSet, text)
        })
    })
}

/// The number of ranks in a process set; or -1, -3 as above.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_process_set_size(process_set_id: c_int) -> c_int {
    answer(|| Ok(members(process_set_id)?.0.len() as c_int))
}

/// 1 if this rank is in the process set, 0 if it is not; or -1, -3 as above.
#[unsafe(no_mangle)]
pub extern "C" fn horovod_process_set_included(process_set_id: c_int) -> c_int {
    answer(|| {
        let (members, me) = members(process_set_id)?;
        Ok(members.contains(&me).into())
    })
}

/// The number of process sets, with that of all ranks; 0 before horovod_init().
#[unsafe(no_mangle)]
pub extern "C" fn horovod_number_of_process_sets() -> c_int {
    guard(|_| 0, || Ok(PROCESS.engine()?.engine.process_sets().len() as c_int))
}

/// Writes the numbers of all process sets.
///
/// # Safety
/// `ids` has room for horovod_number_of_process_sets() numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn horovod_process_set_ids(ids: *mut c_int) {
    guard(
        |_| (),
        || {
            let sets = PROCESS.engine()?.engine.process_sets();
            let numbers: Vec<c_int> = sets.iter().map(|(id, _)| *id as c_int).collect();
            // SAFETY: the header asks for the room.
            unsafe { write(&numbers, ids) }
        },
    );
}

/// Writes the ranks of a process set. Returns 0; or -1, -3 as above.
///
/// # Safety
/// `ranks` has room for horovod_process_set_size(id) numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn horovod_process_set_ranks(id: c_int, ranks: *mut c_int) -> c_int {
    answer(|| {
        let numbers: Vec<c_int> = members(id)?.0.iter().map(|rank| rank.0 as c_int).collect();
        // SAFETY: the header asks for the room.
        unsafe { write(&numbers, ranks) }?;
        Ok(0)
    })
}

/// The engine; to a forked child nothing is initialized.
fn begun() -> Result<Lease, Failure> {
    PROCESS.engine().map_err(|failure| Failure { status: Status::NotInitialized, ..failure })
}

/// Answers with Horovod's codes: to a forked child nothing is initialized, and every failure is a shutdown.
fn answer(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    code(|| {
        body().map_err(|failure| {
            let status = match failure.status {
                Status::Forked => Status::NotInitialized,
                Status::PeerLost | Status::Stalled | Status::Failed => Status::ShutDown,
                other => other,
            };
            Failure { status, ..failure }
        })
    })
}

fn may_change(session: &EngineRun) -> Result<(), Failure> {
    guard::may_wait()?;
    if session.dynamic {
        return Ok(());
    }
    Err(Failure::new(
        Status::NotDynamic,
        "process sets are fixed after init; set HOROVOD_DYNAMIC_PROCESS_SETS=1, or call phalanx_add_process_set()",
    ))
}

/// The ranks of a process set, and this rank.
fn members(id: c_int) -> Result<(Vec<Rank>, Rank), Failure> {
    let session = PROCESS.engine()?;
    let set = u32::try_from(id).map_err(|_| unknown_set(id))?;
    let found = session.engine.process_sets().into_iter().find(|(known, _)| *known == set);
    found.map(|(_, ranks)| (ranks, session.engine.rank())).ok_or_else(|| unknown_set(id))
}

/// # Safety
/// `to` is null or has room for all of them.
unsafe fn write(numbers: &[c_int], to: *mut c_int) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid("the pointer to the numbers is NULL"));
    }
    // SAFETY: not null, and the caller says that there is room.
    unsafe { to.copy_from_nonoverlapping(numbers.as_ptr(), numbers.len()) };
    Ok(())
}
