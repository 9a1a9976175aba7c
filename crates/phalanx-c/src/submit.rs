//! Submissions. Each returns a handle, or a negative code.

use crate::{
    abi::{COptions, CTensor},
    failure::Failure,
    guard::{Completion, guard},
    pointers::{self, CallerTensor},
    process::PROCESS,
};
use phalanx_collective::engine::{EngineTensor, Request};
use phalanx_core::Rank;

/// A submission's body: reads the options, makes the request, submits it.
///
/// # Safety
/// `options` is null or points to some, whose name is null or a string.
unsafe fn submit(options: *const COptions, request: impl FnOnce() -> Result<Request, Failure>) -> i64 {
    guard(
        |failure| failure.code().into(),
        || {
            let session = PROCESS.engine()?;
            // SAFETY: the same is asked of our caller.
            let (options, name) = unsafe { pointers::options(options) }?;
            let request = pointers::apply(request()?, &options, name)?;
            let handle = session.engine.submit(request)?;
            Ok(PROCESS.handles.add(handle, Completion::new(options.callback, options.user)))
        },
    )
}

/// # Safety
/// The caller of the C function keeps the memory valid, and leaves it alone, until the operation is done.
unsafe fn lend(given: Vec<CallerTensor>) -> Vec<EngineTensor> {
    // SAFETY: the same is asked of our caller.
    given.into_iter().map(|given| unsafe { given.lend() }).collect()
}

/// # Safety
/// Both point to `n` tensors, or are null; as for `lend`.
unsafe fn allreduce(
    inputs: *const CTensor,
    outputs: *const CTensor,
    n: i32,
    grouped: bool,
) -> Result<Request, Failure> {
    // SAFETY: the caller says that `n` are there.
    let (inputs, outputs) = unsafe { (pointers::tensors(inputs, n)?, pointers::tensors(outputs, n)?) };
    let in_place = pointers::check_apart(&inputs, &outputs)?;
    let request = |mut tensors: Vec<EngineTensor>| match tensors.pop() {
        Some(tensor) if !grouped => Request::allreduce(tensor),
        last => Request::grouped_allreduce(tensors.into_iter().chain(last).collect()),
    };
    if in_place || outputs.is_empty() {
        // SAFETY: as asked of our caller; the tensors do not share memory.
        return Ok(request(unsafe { lend(outputs) }));
    }
    // SAFETY: as asked of our caller; no output shares memory with anything.
    let (inputs, outputs) = unsafe { (lend(inputs), lend(outputs)) };
    Ok(request(inputs).into(outputs)?)
}

/// Reduces a tensor in place.
///
/// # Safety
/// This holds for all submissions: until the handle is done, the memory of inputs and outputs stays valid and nobody touches it. Shapes, names,
/// splits and options may go as soon as the call has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_allreduce(tensor: *const CTensor, options: *const COptions) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || allreduce(tensor, tensor, 1, false)) }
}

/// Reduces a tensor into another of the same type and shape.
///
/// # Safety
/// As for phalanx_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_allreduce_into(
    input: *const CTensor,
    output: *const CTensor,
    options: *const COptions,
) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || allreduce(input, output, 1, false)) }
}

/// Reduces `n` tensors in place: all of them, or none.
///
/// # Safety
/// As for phalanx_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_grouped_allreduce(
    tensors: *const CTensor,
    n: i32,
    options: *const COptions,
) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || allreduce(tensors, tensors, n, true)) }
}

/// Reduces `n` tensors into others: all of them, or none.
///
/// # Safety
/// As for phalanx_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_grouped_allreduce_into(
    inputs: *const CTensor,
    outputs: *const CTensor,
    n: i32,
    options: *const COptions,
) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || allreduce(inputs, outputs, n, true)) }
}

/// Gathers every rank's rows, of which ranks may have different numbers. The output belongs to the handle.
///
/// # Safety
/// As for phalanx_allreduce(); the input is only read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_allgather(input: *const CTensor, options: *const COptions) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || Ok(Request::allgather(pointers::tensor(input)?.lend()))) }
}

/// Gives every rank the tensor of `root`, in place. `root` is a rank of the world, not of the process set.
///
/// # Safety
/// As for phalanx_allreduce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_broadcast(
    tensor: *const CTensor,
    root: i32,
    options: *const COptions,
) -> i64 {
    let request = || {
        let Ok(root) = u32::try_from(root) else {
            return Err(Failure::invalid(format!("root {root} is negative")));
        };
        // SAFETY: the header asks the same of the caller.
        Ok(Request::broadcast(unsafe { pointers::tensor(tensor)?.lend() }, Rank(root)))
    };
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, request) }
}

/// Sends rows to every rank: `splits[r]` of them to the r-th; if `splits` is NULL, equally many. The output belongs to the handle.
///
/// # Safety
/// As for phalanx_allreduce(); the input is only read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_alltoall(
    input: *const CTensor,
    splits: *const i64,
    n_splits: i32,
    options: *const COptions,
) -> i64 {
    let request = || {
        let splits = if splits.is_null() && n_splits == 0 {
            None
        } else {
            // SAFETY: the header says that `n_splits` are there.
            Some(pointers::counts(unsafe { pointers::slice(splits, n_splits, "the splits") }?, "the splits")?)
        };
        // SAFETY: the header asks the same of the caller.
        Ok(Request::alltoall(unsafe { pointers::tensor(input)?.lend() }, splits))
    };
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, request) }
}

/// Reduces the rows, by sum or average, and leaves each rank with its share of them. The output belongs to the handle.
///
/// # Safety
/// As for phalanx_allreduce(); the input is only read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_reducescatter(input: *const CTensor, options: *const COptions) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || Ok(Request::reducescatter(pointers::tensor(input)?.lend()))) }
}

/// Done when every rank of the process set has submitted it.
///
/// # Safety
/// `options` is NULL or points to some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_barrier(options: *const COptions) -> i64 {
    // SAFETY: the header asks the same of the caller.
    unsafe { submit(options, || Ok(Request::barrier())) }
}

/// Says that this rank has no more data: it takes part in the others' operations with zeros and empty tensors until all have joined.
/// phalanx_last_joined() then knows who was last. Of the options only the callback is looked at.
///
/// # Safety
/// `options` is NULL or points to some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_join(options: *const COptions) -> i64 {
    guard(
        |failure| failure.code().into(),
        || {
            let session = PROCESS.engine()?;
            // SAFETY: the header asks the same of the caller.
            let (options, _) = unsafe { pointers::options(options) }?;
            let handle = session.engine.join()?;
            Ok(PROCESS.handles.add(handle, Completion::new(options.callback, options.user)))
        },
    )
}
