//! The state and the results of a submission.

use crate::{
    abi::{CTensor, Status},
    failure::Failure,
    guard::{code, guard},
    process::PROCESS,
};
use std::{
    ffi::{c_char, c_void},
    ptr,
    time::{Duration, Instant},
};

/// Longer waits are as good as endless ones.
const MAX_WAIT_S: f64 = 1e9;

/// 1 if the operation is done, well or not; 0 if it is not; or a negative code. Once it is 1, the name may be used again.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_poll(handle: i64) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        Ok(PROCESS.handles.get(handle)?.poll().into())
    })
}

/// Waits until the operation is done, at most `timeout_s` seconds; as long as it takes, if that is negative. Returns how it ended: PHALANX_STATUS_OK
/// or its error; or PHALANX_STATUS_TIMEOUT.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_wait(handle: i64, timeout_s: f64) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        if timeout_s.is_nan() {
            return Err(Failure::invalid("the timeout is not a number"));
        }
        let wait = (timeout_s >= 0.0).then(|| Duration::from_secs_f64(timeout_s.min(MAX_WAIT_S)));
        let entry = PROCESS.handles.get(handle)?;
        let view = entry.wait(wait.map(|wait| Instant::now() + wait))?;
        match Status::ALL.into_iter().find(|s| *s as i32 == view.status) {
            Some(Status::Ok) | None => Ok(view.status),
            Some(status) => Err(Failure::new(status, view.error.to_string_lossy())),
        }
    })
}

/// The number of tensors that the operation gave back, or a negative code.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_output_count(handle: i64) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        let entry = PROCESS.handles.get(handle)?;
        Ok(entry.view()?.outputs.len() as i32)
    })
}

/// The tensor that the operation gave back, of a group the one at `index`: the caller's own, or a new one whose memory belongs to the handle. `output->shape`
/// belongs to the handle in any case. Both end with phalanx_release().
///
/// # Safety
/// `output` is NULL or has room for a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_output(handle: i64, index: i32, output: *mut CTensor) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        let entry = PROCESS.handles.get(handle)?;
        let view = entry.view()?;
        let found = usize::try_from(index).ok().and_then(|i| view.outputs.get(i)).ok_or_else(|| {
            Failure::invalid(format!("there is no output {index}: the operation has {}", view.outputs.len()))
        })?;
        if output.is_null() {
            return Err(Failure::invalid("the pointer to the output is NULL"));
        }
        let tensor = CTensor {
            data: ptr::with_exposed_provenance_mut::<c_void>(found.address),
            shape: found.shape.as_ptr(),
            ndim: found.shape.len() as i32,
            dtype: found.dtype,
        };
        // SAFETY: not null, and the header asks for room.
        unsafe { output.write(tensor) };
        Ok(Status::Ok as i32)
    })
}

/// Alltoall: the rows received from each rank. Writes at most `capacity` of them and returns how many there are, or a negative code.
///
/// # Safety
/// `rows` has room for `capacity` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_received_splits(handle: i64, rows: *mut i64, capacity: i32) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        let entry = PROCESS.handles.get(handle)?;
        let received = &entry.view()?.received;
        let capacity = usize::try_from(capacity)
            .map_err(|_| Failure::invalid(format!("a capacity of {capacity} is negative")))?;
        if rows.is_null() && capacity > 0 {
            return Err(Failure::invalid("the pointer to the received splits is NULL"));
        }
        let n = received.len().min(capacity);
        if n > 0 {
            // SAFETY: not null, and the header asks for room for `capacity`, of which `n` is no more.
            unsafe { rows.copy_from_nonoverlapping(received.as_ptr(), n) };
        }
        Ok(received.len() as i32)
    })
}

/// Join: the rank that joined last, or a negative code.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_last_joined(handle: i64) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        let entry = PROCESS.handles.get(handle)?;
        entry
            .view()?
            .last_joined
            .ok_or_else(|| Failure::invalid("this operation is not a join, or has failed"))
    })
}

/// What went wrong with an operation: "" if nothing did, or it is not done yet; NULL if there is no such handle. Valid until phalanx_release().
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_error(handle: i64) -> *const c_char {
    guard(
        |_| ptr::null(),
        || {
            PROCESS.check_owner()?;
            let entry = PROCESS.handles.get(handle)?;
            Ok(entry.view().map_or(c"".as_ptr(), |view| view.error.as_ptr()))
        },
    )
}

/// Forgets an operation and frees its outputs. Every handle is released once; one that is not done answers PHALANX_STATUS_PENDING and stays.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_release(handle: i64) -> i32 {
    code(|| {
        PROCESS.check_owner()?;
        PROCESS.handles.release(handle)?;
        Ok(Status::Ok as i32)
    })
}
