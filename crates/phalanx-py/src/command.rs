//! The `phalanx` command, for the console script that the wheel installs.

use phalanx_net::resources::{ResourceHost, parse};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{ffi::OsString, io::Write, path::PathBuf, process::ExitCode};

/// Runs the launcher with these arguments, as the program `exe`, and gives its exit code.
#[pyfunction]
pub fn run_command(py: Python<'_>, exe: PathBuf, args: Vec<OsString>) -> u8 {
    py.detach(|| {
        let code = phalanx_launch::main(exe, args);
        // Nothing else does it when Python ends the process; a reader that closed the output does not want the rest.
        let _ = std::io::stdout().flush();
        (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
    })
}

/// The hosts of a file of Parallax, in its order: how each is reached, how many ranks it takes, its devices.
#[pyfunction]
pub fn resources(text: &str, path: &str) -> PyResult<Vec<(String, u32, Vec<u32>)>> {
    let read = parse(text, path).map_err(|why| PyValueError::new_err(why.to_string()))?;
    let told = |host: ResourceHost| (host.destination(), host.n_ranks, host.devices);
    Ok(read.hosts.into_iter().map(told).collect())
}
