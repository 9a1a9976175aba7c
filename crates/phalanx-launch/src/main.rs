//! The program `phalanx`; the code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::current_exe() {
        Ok(exe) => phalanx_launch::main(exe, std::env::args_os().skip(1).collect()),
        Err(error) => {
            eprintln!("phalanx: cannot find the path of this program: {error}");
            ExitCode::FAILURE
        }
    }
}
