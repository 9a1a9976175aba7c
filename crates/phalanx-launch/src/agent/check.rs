//! Checks whether the ranks can start on this host. Every host does this before any rank starts.

use crate::wire::StartRefusal;
use rustix::fs::{Access, access};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Looks for the directory, then for the program as the kernel and `execvp` would.
pub fn check(cwd: &Path, program: &OsStr, path: Option<&OsStr>) -> Result<(), StartRefusal> {
    let no_directory = |why: String| StartRefusal::NoDirectory { path: cwd.display().to_string(), why };
    match fs::metadata(cwd) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(no_directory("it is not a directory".to_string())),
        Err(error) => return Err(no_directory(plain(&error))),
    }
    let name = program.to_string_lossy().into_owned();
    let mut last_refusal = StartRefusal::NotFound { program: name.clone() };
    for candidate in candidates(cwd, program, path) {
        match executable(&candidate) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                last_refusal = StartRefusal::NotExecutable { program: name.clone(), why: plain(&error) };
            }
        }
    }
    Err(last_refusal)
}

/// What a failed start means, once `check` had found the program.
pub fn explain(error: &io::Error, program: &OsStr, rank: phalanx_core::Rank) -> StartRefusal {
    let program = program.to_string_lossy().into_owned();
    match error.kind() {
        io::ErrorKind::NotFound => StartRefusal::NoInterpreter { program },
        io::ErrorKind::PermissionDenied => StartRefusal::NotExecutable { program, why: plain(error) },
        _ => StartRefusal::Spawn { rank, why: plain(error) },
    }
}

fn candidates(cwd: &Path, program: &OsStr, path: Option<&OsStr>) -> Vec<PathBuf> {
    if program.is_empty() {
        return Vec::new();
    }
    if program.as_bytes().contains(&b'/') {
        return vec![cwd.join(program)];
    }
    let default = OsString::from("/bin:/usr/bin");
    std::env::split_paths(path.unwrap_or(&default)).map(|dir| cwd.join(dir).join(program)).collect()
}

fn executable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    Ok(access(path, Access::EXEC_OK)?)
}

/// The reason in words, without Rust's "(os error 2)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_root(program: &str, path: &str) -> Result<(), StartRefusal> {
        check(Path::new("/"), OsStr::new(program), Some(OsStr::new(path)))
    }

    #[test]
    fn programs_are_found_like_a_shell_finds_them() {
        assert_eq!(at_root("sh", "/nowhere:/bin"), Ok(()));
        assert_eq!(at_root("bin/sh", ""), Ok(()));
        assert_eq!(at_root("sh", "/nowhere"), Err(StartRefusal::NotFound { program: "sh".to_string() }));
        assert_eq!(at_root("", "/bin"), Err(StartRefusal::NotFound { program: String::new() }));
    }

    #[test]
    fn what_cannot_be_executed_is_told_from_what_is_not_there() {
        assert!(
            matches!(at_root("etc", "/"), Err(StartRefusal::NotExecutable { why, .. }) if why == "it is a directory")
        );
        assert!(
            matches!(at_root("/etc/passwd", ""), Err(StartRefusal::NotExecutable { why, .. }) if why == "permission denied")
        );
    }

    #[test]
    fn a_missing_directory_is_named() {
        let refusal = check(Path::new("/no/such"), OsStr::new("sh"), None).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the working directory /no/such does not exist (no such file or directory)"
        );
    }
}
