//! The locks, atomics and waits that `bell` uses. A test replaces them by ones that try every order of execution.

pub(super) use phalanx_net::arena::Arena;
pub(super) use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU32, Ordering, fence},
};
