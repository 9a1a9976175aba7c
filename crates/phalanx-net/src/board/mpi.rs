//! Whether an MPI library of this process is between `MPI_Init` and `MPI_Finalize`. It is asked itself, through `dlsym`; nothing is loaded.
//! One of the files with `unsafe`: it calls two functions of a library that others have loaded.

use libloading::os::unix::{Library, RTLD_LAZY};
use std::{collections::BTreeSet, ffi::c_int};

type Asks = unsafe extern "C" fn(*mut c_int) -> c_int;

/// True only if a library says so.
pub fn is_running() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    libraries(&maps).into_iter().any(|path| says_running(path).unwrap_or(false))
}

/// The MPI libraries among the mapped files.
fn libraries(maps: &str) -> BTreeSet<&str> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.filter(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libmpi"))).collect()
}

fn says_running(path: &str) -> Option<bool> {
    // SAFETY: `RTLD_NOLOAD` runs no initialisers: the library is in use already, or this fails.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
    let ask = |name: &[u8]| -> Option<bool> {
        // SAFETY: both functions of the MPI standard have this type, and may be called at any time, from any thread.
        let asks = unsafe { library.get::<Asks>(name) }.ok()?;
        let mut answer = 0;
        // SAFETY: as above; the pointer is valid for the call.
        let failed = unsafe { asks(&raw mut answer) };
        (failed == 0).then_some(answer != 0)
    };
    Some(ask(b"MPI_Initialized\0")? && !ask(b"MPI_Finalized\0")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_mpi_has_none_running() {
        assert!(!is_running());
        let maps = "7f-80 r-xp 0 0 1 /usr/lib/libmpich.so.12\n80-81 rw-p 0 0 0 [heap]\n81-82 r--p 0 0 1 /opt/libmpi.so.40 (deleted)\n82-83 r--p 0 0 1 /opt/libmpix/libc.so";
        assert_eq!(
            libraries(maps).into_iter().collect::<Vec<_>>(),
            ["/opt/libmpi.so.40 (deleted)", "/usr/lib/libmpich.so.12"]
        );
    }
}
