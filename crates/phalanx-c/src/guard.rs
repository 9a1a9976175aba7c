//! The wrapper around every call and every callback: panics end here, and the last error of each thread is kept.

use crate::{
    abi::{Callback, Status},
    failure::Failure,
};
use std::{
    cell::{Cell, RefCell},
    ffi::{CString, c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// EDGE-1: runs a function's body. `refuse` makes its answer of a failure, whose text this thread keeps.
pub fn guard<T>(refuse: impl FnOnce(&Failure) -> T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    // What a panic leaves half done is locked data only, and every lock here takes poisoned data as it is.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let what = panic.downcast_ref::<&str>().map(ToString::to_string);
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned());
            Failure::new(
                Status::Internal,
                format!("libphalanx panicked: {}", what.as_deref().unwrap_or("no text")),
            )
        }
    };
    remember(&failure.text);
    refuse(&failure)
}

/// As most functions: the code is the answer.
pub fn code(body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    guard(Failure::code, body)
}

pub fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

fn remember(what: &str) {
    // A thread that ends has no more errors.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text(what));
}

/// Valid until the next failure on this thread.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

pub fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// EDGE-3.
pub fn may_wait() -> Result<(), Failure> {
    if in_callback() {
        return Err(Failure::new(
            Status::InCallback,
            "this function waits, and a callback must not wait: other threads wait for the thread that runs it",
        ));
    }
    Ok(())
}

/// A callback and what it is given. The caller promised that it may be called on any thread.
#[derive(Debug)]
pub struct Completion {
    callback: extern "C" fn(i64, i32, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the pointer is only handed to the callback, never followed here; phalanx.h says that callbacks run on any thread.
unsafe impl Send for Completion {}

impl Completion {
    pub fn new(callback: Callback, user: *mut c_void) -> Option<Completion> {
        callback.map(|callback| Completion { callback, user })
    }

    pub fn call(self, handle: i64, status: i32) {
        let before = IN_CALLBACK.try_with(|inside| inside.replace(true));
        (self.callback)(handle, status, self.user);
        let _ = IN_CALLBACK.try_with(|inside| inside.set(before.unwrap_or(false)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: no other failure happens on this thread before the copy is made.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_string()
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        assert_eq!(code(|| panic!("so {}", "what")), Status::Internal as i32, "EDGE-1");
        assert_eq!(last(), "libphalanx panicked: so what");
        assert_eq!(code(|| Err(Failure::invalid("a\0b"))), Status::Invalid as i32);
        assert_eq!(last(), "a\u{fffd}b");
        assert_eq!(code(|| Ok(3)), 3);
    }

    #[test]
    fn callbacks_must_not_wait() {
        extern "C" fn look(_: i64, _: i32, user: *mut c_void) {
            // SAFETY: the test below gives the address of a bool that it does not touch meanwhile.
            unsafe { *user.cast::<bool>() = may_wait().is_ok() };
        }
        let mut may = true;
        Completion::new(Some(look), (&raw mut may).cast()).unwrap().call(1, 0);
        assert!(!may, "EDGE-3");
        assert!(may_wait().is_ok());
    }
}
