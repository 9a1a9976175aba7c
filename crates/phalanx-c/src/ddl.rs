//! DDL's C functions: its names and arguments, with the codes of phalanx.h. All of them wait.

use crate::{
    abi::{COptions, CTensor, Status},
    failure::Failure,
    guard::{self, code},
    membership,
    pointers::{self, CallerTensor},
    process::{PROCESS, Wish},
};
use phalanx_collective::engine::{EngineTensor, Request};
use phalanx_core::Rank;
use std::ffi::{c_char, c_void};

/// Joins the world with the shape that the options name, as in "-mode n:4x3 -dump_iter 100", and starts the engine. NULL or an empty string:
/// DDL_OPTIONS of the environment; without a mode there is a single ring. Every rank gives the same. A second call is an error.
///
/// # Safety
/// `options` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_init(options: *const c_char) -> i32 {
    code(|| {
        if PROCESS.engine().is_ok() {
            return Err(Failure::invalid("DDL has already been initialized."));
        }
        // SAFETY: the header asks the same of the caller.
        let given = unsafe { pointers::string(options, "the option string") };
        let wish = |given: Option<String>| Wish {
            ranks: Vec::new(),
            process_sets: Vec::new(),
            ddl: Some(given.unwrap_or_default()),
        };
        PROCESS.init(given.map(wish))?;
        Ok(Status::Ok as i32)
    })
}

/// This rank's number.
#[unsafe(no_mangle)]
pub extern "C" fn ddl_rank() -> i32 {
    membership::phalanx_rank()
}

/// The number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ddl_size() -> i32 {
    membership::phalanx_size()
}

/// This rank's place among the ranks of its host, and the number of the device that belongs to it.
#[unsafe(no_mangle)]
pub extern "C" fn ddl_local_rank() -> i32 {
    membership::phalanx_local_rank()
}

/// Zeroed memory, aligned to `align` bytes, a power of two, or 0 for any type; ddl_free() gives it back.
///
/// # Safety
/// `memory` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_malloc(memory: *mut *mut c_void, align: usize, bytes: usize) -> i32 {
    code(|| {
        let align = if align == 0 { 64 } else { align };
        if memory.is_null() || !align.is_power_of_two() {
            let text = format!("ddl_malloc needs a place for the pointer and a power of two, not {align}");
            return Err(Failure::invalid(text));
        }
        let align = align.max(size_of::<*mut c_void>());
        let mut made = std::ptr::null_mut();
        // SAFETY: `made` takes a pointer; the alignment is a power of two and at least that of a pointer.
        let failed = unsafe { libc::posix_memalign(&raw mut made, align, bytes.max(1)) };
        if failed != 0 {
            return Err(Failure::new(Status::Failed, format!("there is no memory for {bytes} bytes")));
        }
        // SAFETY: the memory was just made with at least this size, and the caller says that `memory` takes a pointer.
        unsafe {
            std::ptr::write_bytes(made.cast::<u8>(), 0, bytes);
            *memory = made;
        }
        Ok(Status::Ok as i32)
    })
}

/// Gives memory of ddl_malloc() back; NULL is nothing.
///
/// # Safety
/// `memory` is NULL or comes from ddl_malloc(), and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_free(memory: *mut c_void) {
    // SAFETY: the header asks the same of the caller.
    unsafe { libc::free(memory) }
}

/// A vector as the caller described it.
///
/// # Safety
/// `buffer` holds `n` elements.
unsafe fn vector(buffer: *mut c_void, n: usize, dtype: i32) -> Result<CallerTensor, Failure> {
    let Ok(len) = i64::try_from(n) else {
        return Err(Failure::invalid(format!("{n} elements are more than any memory")));
    };
    let shape = [len];
    // SAFETY: the tensor and its shape live until the call returns.
    unsafe { pointers::tensor(&CTensor { data: buffer, shape: shape.as_ptr(), ndim: 1, dtype }) }
}

/// Submits and waits.
fn run(request: Request, op: i32) -> Result<i32, Failure> {
    guard::may_wait()?;
    let options = COptions { op, ..COptions::DEFAULT };
    let session = PROCESS.engine()?;
    session.engine.submit(pointers::apply(request, &options, None)?)?.wait()?;
    Ok(Status::Ok as i32)
}

/// Gives every rank the `n` elements of rank 0. `dtype` is a phalanx_dtype.
///
/// # Safety
/// `buffer` holds `n` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_bcast(buffer: *mut c_void, n: usize, dtype: i32) -> i32 {
    code(|| {
        // SAFETY: the header asks the same of the caller; this call returns when the operation is done.
        let tensor = unsafe { vector(buffer, n, dtype)?.lend() };
        run(Request::broadcast(tensor, Rank::ZERO), COptions::DEFAULT.op)
    })
}

/// Reduces `n` elements over all ranks, in place. `dtype` is a phalanx_dtype, `op` a phalanx_op. Ranks are matched in the order of their calls.
///
/// # Safety
/// `buffer` holds `n` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_allreduce(buffer: *mut c_void, n: usize, dtype: i32, op: i32) -> i32 {
    code(|| {
        // SAFETY: the header asks the same of the caller; this call returns when the operation is done.
        run(Request::allreduce(unsafe { vector(buffer, n, dtype)?.lend() }), op)
    })
}

/// As ddl_allreduce(), but MPI_Allreduce does it: for comparison, under mpirun of Open MPI or MPICH.
/// Elsewhere it fails on all ranks, and the engine goes on.
///
/// # Safety
/// `buffer` holds `n` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_allreduce_by_mpi(buffer: *mut c_void, n: usize, dtype: i32, op: i32) -> i32 {
    code(|| {
        // SAFETY: the header asks the same of the caller; this call returns when the operation is done.
        run(Request::allreduce(unsafe { vector(buffer, n, dtype)?.lend() }).by_mpi(), op)
    })
}

/// Reduces several vectors over all ranks, in place: all or none. `counts` has the elements of each.
///
/// # Safety
/// `buffers` and `counts` have `n_buffers` entries, and each buffer its elements; no two share memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddl_allreduce_n(
    buffers: *const *mut c_void,
    counts: *const usize,
    n_buffers: i32,
    dtype: i32,
    op: i32,
) -> i32 {
    code(|| {
        // SAFETY: the header asks the same of the caller.
        let (buffers, counts) = unsafe {
            (pointers::slice(buffers, n_buffers, "buffers")?, pointers::slice(counts, n_buffers, "counts")?)
        };
        let given = buffers
            .iter()
            .zip(counts)
            // SAFETY: the header asks the same of the caller.
            .map(|(buffer, n)| unsafe { vector(*buffer, *n, dtype) })
            .collect::<Result<Vec<CallerTensor>, Failure>>()?;
        pointers::check_apart(&given, &given)?;
        // SAFETY: the header asks the same of the caller; this call returns when the operation is done.
        let tensors: Vec<EngineTensor> = given.into_iter().map(|given| unsafe { given.lend() }).collect();
        run(Request::grouped_allreduce(tensors), op)
    })
}

/// Ends the engine, for all ranks, as phalanx_shutdown() does. ddl_init() may be called again.
#[unsafe(no_mangle)]
pub extern "C" fn ddl_finalize() -> i32 {
    membership::phalanx_shutdown()
}
