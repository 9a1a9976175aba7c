//! The locks and atomics that `ready` uses. A test replaces them by ones that try every order of execution.

pub(super) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
