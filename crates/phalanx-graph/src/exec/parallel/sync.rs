//! What `ready` locks and counts with. A test puts others in their place that try all orders.

pub(super) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
