//! The `phalanx` command, for the console script that the wheel installs.

use pyo3::prelude::*;
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
