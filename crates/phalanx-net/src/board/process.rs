//! What a board takes from this process and leaves for its end: the socket that the launcher handed down, and a word when the process ends.
//! One of the files with `unsafe`: the number of an inherited descriptor, and `atexit`.

use crate::error::BoardError;
use socket2::Socket;
use std::{
    io,
    os::{
        fd::{BorrowedFd, RawFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    sync::Once,
};

/// A descriptor of our own for the socket with this number. The number stays with the library that may use it, too.
pub fn inherited_socket(fd: RawFd) -> Result<Socket, BoardError> {
    let failed = |error| BoardError::NotInherited { fd, error };
    if fd < 0 {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    let is_socket = std::fs::metadata(path(fd)).map_err(failed)?.file_type().is_socket();
    if !is_socket {
        return Err(failed(io::Error::other(
            "not a socket; MPI_Finalize has closed it, or a wrapper script",
        )));
    }
    // SAFETY: the borrow ends with this statement, which only duplicates the number; one that is not open gives an error.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    copy.map(Socket::from).map_err(failed)
}

/// Whether the number still belongs to this socket: a library that closed it has said goodbye itself.
pub fn still_has(fd: RawFd, socket: &Socket) -> bool {
    let ours = rustix::fs::fstat(socket).map(|stat| (stat.st_dev, stat.st_ino));
    let there = std::fs::metadata(path(fd)).map(|stat| (stat.dev(), stat.ino()));
    matches!((ours, there), (Ok(a), Ok(b)) if a == b)
}

fn path(fd: RawFd) -> String {
    format!("/proc/self/fd/{fd}")
}

/// Makes the system call this when the process ends by `exit` or by returning from `main`.
pub fn at_exit(farewell: extern "C" fn()) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is not unloaded before the process ends, or is called when it is.
        let refused = unsafe { libc::atexit(farewell) };
        if refused != 0 {
            tracing::debug!(refused, "the launcher will not be told that this process ends in order");
        }
    });
}
