//! The job's secret as a file descriptor: a memfd, filled and sealed before a rank inherits it.

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::{fcntl_dupfd_cloexec, pwrite},
};
use std::{io, os::fd::OwnedFd};

/// Above the numbers that scripts like to use themselves (`exec 3>log`, a shell's own 10 and up).
const LOWEST: i32 = 64;

/// A new descriptor for each rank: two that came from one `memfd_create` would share their read position.
pub fn create(secret: &[u8]) -> io::Result<OwnedFd> {
    let memory = memfd_create("phalanx-secret", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    if pwrite(&memory, secret, 0)? != secret.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(fcntl_dupfd_cloexec(&memory, LOWEST)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read, os::fd::AsRawFd};

    #[test]
    fn the_secret_can_be_read_once_from_its_start_and_never_changed() {
        let fd = create(&[9; 32]).unwrap();
        assert!(fd.as_raw_fd() >= LOWEST);
        assert!(pwrite(&fd, b"x", 0).is_err());
        let mut bytes = Vec::new();
        File::from(fd).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [9; 32]);
    }
}
