//! Which MPI library is this process's: the one it was told, the one it has, or the launcher's. Pure, but for reading what is mapped.

use crate::MpiError;

/// A launcher's variable, and its libraries, best first.
const LAUNCHERS: [(&str, &[&str]); 4] = [
    ("OMPI_COMM_WORLD_SIZE", &["libmpi.so.40", "libmpi.so"]),
    ("PMIX_RANK", &["libmpi.so.40", "libmpi.so"]),
    ("PMI_RANK", &["libmpich.so.12", "libmpi.so.12"]),
    ("PMI_FD", &["libmpich.so.12", "libmpi.so.12"]),
];

/// Names of libraries, to be tried in this order.
pub(crate) fn candidates(
    named: Option<&str>,
    maps: &str,
    is_set: impl Fn(&str) -> bool,
) -> Result<Vec<String>, MpiError> {
    if let Some(named) = named {
        return Ok(vec![named.into()]);
    }
    if let Some(loaded) = loaded(maps) {
        return Ok(vec![loaded.into()]);
    }
    let launcher = LAUNCHERS.iter().find(|(variable, _)| is_set(variable));
    launcher.map(|(_, names)| names.iter().map(ToString::to_string).collect()).ok_or(MpiError::NoLauncher)
}

/// What is mapped into this process.
pub(crate) fn maps() -> String {
    // Where it cannot be read, nothing is known to be loaded.
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default()
}

/// The MPI library among the mapped files: two in one process would not know of each other.
fn loaded(maps: &str) -> Option<&str> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_mpi = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libmpi.so") || name.starts_with("libmpich.so")
    };
    paths.filter(|path| !path.ends_with(" (deleted)")).find(is_mpi)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(named: Option<&str>, maps: &str, variables: &[&str]) -> Result<Vec<String>, MpiError> {
        candidates(named, maps, |name| variables.contains(&name))
    }

    #[test]
    fn the_named_library_comes_first_then_the_loaded_one_then_the_launchers() {
        let maps = "7f-80 r-xp 0 0 1 /opt/libmpi_cxx.so.40\n80-81 r-xp 0 0 1 /opt/mpi/libmpi.so.40.30.4\n82-83 rw-p 0 0 0 [heap]";
        assert_eq!(found(Some("x.so"), maps, &["PMI_RANK"]).unwrap(), ["x.so"]);
        assert_eq!(found(None, maps, &["PMI_RANK"]).unwrap(), ["/opt/mpi/libmpi.so.40.30.4"]);
        assert_eq!(found(None, "", &["PMI_RANK"]).unwrap(), ["libmpich.so.12", "libmpi.so.12"]);
        assert_eq!(
            found(None, "", &["PMIX_RANK", "OMPI_COMM_WORLD_SIZE"]).unwrap(),
            ["libmpi.so.40", "libmpi.so"]
        );
    }

    #[test]
    fn without_a_launcher_the_error_says_how_to_start() {
        assert_eq!(
            found(None, "", &[]).unwrap_err().to_string(),
            "no MPI started this process: start it with mpirun of Open MPI or mpiexec of MPICH, or name the library in PHALANX_MPI_LIB"
        );
    }
}
