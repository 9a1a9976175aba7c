//! Reads another rank's private memory through the kernel, where the kernel permits that: one copy instead of two.
//!
//! - PEEK-1: a rank reads a peer's memory only between the two synchronisations of a call in which the peer lent it, and only if a test
//!   read at the start of the world has succeeded.

use std::io;

/// A word whose address and value others are told, to try reading it.
#[derive(Debug)]
pub struct Target(Box<u64>);

/// What a trial read must find.
const TRIAL: u64 = 0x7068_616c_616e_7821;

impl Target {
    pub fn new() -> Target {
        Target(Box::new(TRIAL))
    }

    pub fn address(&self) -> u64 {
        std::ptr::from_ref::<u64>(&self.0) as u64
    }
}

/// Whether the kernel lets this process read that one's memory.
pub fn permitted(pid: u32, address: u64) -> bool {
    let mut word = [0; 8];
    read(pid, address, word.as_mut_ptr(), word.len()).is_ok() && u64::from_ne_bytes(word) == TRIAL
}

/// Copies `len` bytes from an address of another process to an address of this one, which the caller may write.
pub(super) fn read(pid: u32, from: u64, to: *mut u8, len: usize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let local = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: len - done };
        let remote =
            libc::iovec { iov_base: (from as usize + done) as *mut libc::c_void, iov_len: len - done };
        // SAFETY: the kernel checks the remote range itself; the local one is `done..len` of a range that the caller may write.
        let n = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match n {
            1.. => done += n as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_read_itself_and_nobody_reads_nothing() {
        let target = Target::new();
        assert!(permitted(std::process::id(), target.address()), "PEEK-1");
        assert!(!permitted(std::process::id(), 8));
        assert!(!permitted(u32::MAX >> 1, target.address()));
    }
}
