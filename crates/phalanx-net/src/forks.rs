//! Sockets that forked children do not keep. A program may fork at any moment, as data loaders do, and a child that outlives its parent would
//! keep the parent's connections open: other ranks would notice the parent's death only by missing heartbeats.
//!
//! - FORK-1: a forked child never holds a connection or a listener of its parent's world, once that world has formed. The numbers stay
//!   taken, by a descriptor that is not connected, so that the child can drop the values it inherited.
//! - FORK-2: a number is removed from the list before its descriptor is closed, so a child never closes a descriptor that is not ours.

use std::{
    ops::{Deref, DerefMut},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::{
        Once,
        atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// Descriptors with higher numbers are not listed: no system of today allows more by default.
const MAX_FD: usize = 1 << 20;
const BITS: usize = u64::BITS as usize;

/// One bit for each listed number. Static, because the system calls a forked child's handler without an argument; pages that are never
/// touched take no memory. Everything is sequentially consistent: it is rare, and a fork takes what other threads have just written.
static LISTED: [AtomicU64; MAX_FD / BITS] = [const { AtomicU64::new(0) }; MAX_FD / BITS];
/// Words before this one may have bits.
static N_WORDS: AtomicUsize = AtomicUsize::new(0);
/// What a child gets instead.
static NOWHERE: AtomicI32 = AtomicI32::new(-1);

/// Something with a socket that no forked child keeps.
#[derive(Debug)]
pub struct Own<S: AsFd>(S);

impl<S: AsFd> Own<S> {
    pub fn new(socket: S) -> Own<S> {
        prepare();
        if let Some((word, bit)) = place(socket.as_fd().as_raw_fd()) {
            N_WORDS.fetch_max(word + 1, Ordering::SeqCst);
            LISTED[word].fetch_or(bit, Ordering::SeqCst);
        }
        Own(socket)
    }
}

impl<S: AsFd> Drop for Own<S> {
    fn drop(&mut self) {
        // FORK-2: the socket itself is dropped after this.
        if let Some((word, bit)) = place(self.0.as_fd().as_raw_fd()) {
            LISTED[word].fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

impl<S: AsFd> Deref for Own<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: AsFd> DerefMut for Own<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < MAX_FD)?;
    Some((fd / BITS, 1 << (fd % BITS)))
}

/// Makes the system call [`in_child`] after every fork from now on. Where it refuses, forked children keep what they inherit.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        use rustix::event::{EventfdFlags, eventfd};
        let Ok(nowhere) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else { return };
        let nowhere: OwnedFd = nowhere;
        NOWHERE.store(nowhere.as_raw_fd(), Ordering::SeqCst);
        // It is needed as long as the process lives.
        std::mem::forget(nowhere);
        // SAFETY: the handler only reads and writes atomics and calls `dup3`, which a child may do whatever its parent's threads held.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            tracing::debug!(refused, "forked children will keep this process's connections");
        }
    });
}

/// FORK-1. Runs in the child before anything else of it does.
extern "C" fn in_child() {
    let nowhere = NOWHERE.load(Ordering::SeqCst);
    for (i, word) in LISTED.iter().enumerate().take(N_WORDS.load(Ordering::SeqCst)) {
        let mut bits = word.swap(0, Ordering::SeqCst);
        while bits != 0 {
            let fd = (i * BITS) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: the number is a socket of ours, open in this child (FORK-2), and this is the child's only thread; what owns the
            // number goes on owning an open descriptor.
            unsafe { libc::dup3(nowhere, fd, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn is_listed(fd: RawFd) -> bool {
        let (word, bit) = place(fd).unwrap();
        LISTED[word].load(Ordering::SeqCst) & bit != 0
    }

    #[test]
    fn a_socket_is_listed_while_it_is_owned() {
        let (here, there) = UnixStream::pair().unwrap();
        let fd = here.as_raw_fd();
        // Borrowed, so that the number stays taken and no other test lists it.
        let own = Own::new(here.as_fd());
        assert!(is_listed(fd) && !is_listed(there.as_raw_fd()));
        drop(own);
        assert!(!is_listed(fd), "FORK-2");
        assert_eq!((place(-1), place(MAX_FD as RawFd)), (None, None));
    }
}
