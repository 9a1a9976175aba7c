//! What `bell` locks, counts and waits with. A test puts others in their place that try all orders.

pub(super) use phalanx_net::arena::Arena;
pub(super) use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU32, Ordering, fence},
};
