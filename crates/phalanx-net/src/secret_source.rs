//! Where a rank finds the job's secret: an inherited descriptor, a variable, a file, or the user's own key.

use crate::{
    error::NetError,
    secret::{LEN, Secret},
};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Characters of a secret that somebody chose.
const LEAST: usize = 16;

/// A secret, and the file of the user's own key if it is that one.
pub struct FoundSecret {
    pub secret: Secret,
    pub key_file: Option<PathBuf>,
}

/// The secret of this process's job; the user's own key is made where there is none.
pub fn find() -> Result<FoundSecret, NetError> {
    if let Some(secret) = given()? {
        return Ok(FoundSecret { secret, key_file: None });
    }
    let home = var("HOME").map(PathBuf::from).filter(|home| home.is_dir()).ok_or_else(|| {
        let home = var("HOME").map_or("HOME is not set".into(), |home| format!("HOME={home} is no directory"));
        let why = format!(
            "the launcher did not provide one and {home}; set PHALANX_SECRET to the same random text on every rank"
        );
        NetError::Secret { why }
    })?;
    let path = home.join(".phalanx").join("secret");
    let secret =
        users_key(&path).map_err(|e| NetError::Secret { why: format!("{}: {e}", path.display()) })?;
    Ok(FoundSecret { secret, key_file: Some(path) })
}

/// The secret that the environment gives this process, or the user's own key, if there is one: where hosts have no common home, each would
/// make a key of its own.
pub fn existing() -> Result<Option<Secret>, NetError> {
    existing_by(&|name| std::env::var(name).ok())
}

/// The same by these variables.
pub fn existing_by(var: &dyn Fn(&str) -> Option<String>) -> Result<Option<Secret>, NetError> {
    if let Some(secret) = given_by(var)? {
        return Ok(Some(secret));
    }
    let Some(home) = var("HOME").filter(|home| !home.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(home).join(".phalanx").join("secret");
    let there = path.exists().then(|| users_key(&path)).transpose();
    there.map_err(|e| NetError::Secret { why: format!("{}: {e}", path.display()) })
}

/// The secret that the environment gives this process, which is the same for all ranks.
pub fn given() -> Result<Option<Secret>, NetError> {
    given_by(&|name| std::env::var(name).ok())
}

fn given_by(var: &dyn Fn(&str) -> Option<String>) -> Result<Option<Secret>, NetError> {
    let names = ["PHALANX_SECRET_FD", "PHALANX_SECRET", "PHALANX_SECRET_FILE"];
    if let Some(name) = names.into_iter().find(|name| var(name).is_some_and(|value| value.trim().is_empty()))
    {
        let why = format!("{name} is set and empty: give it a value, or unset it");
        return Err(NetError::Secret { why });
    }
    if let Some(fd) = var("PHALANX_SECRET_FD") {
        return inherited(&fd).map(Some);
    }
    if let Some(text) = var("PHALANX_SECRET") {
        return from_user("PHALANX_SECRET", &text).map(Some);
    }
    let Some(path) = var("PHALANX_SECRET_FILE") else { return Ok(None) };
    let from = format!("PHALANX_SECRET_FILE={path}");
    let failed = |e: io::Error| NetError::Secret { why: format!("{from}: {e}") };
    guard(Path::new(&path)).map_err(failed)?;
    from_user(&from, &fs::read_to_string(&path).map_err(failed)?).map(Some)
}

/// Nobody else can change the file; nobody else can read it, where this user could forbid that. Containers get secrets in /run or on file
/// systems that they cannot write, readable for all who are inside.
fn guard(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let denied = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if found.mode() & 0o022 != 0 {
        return denied("other users can write it; run chmod 600 on it");
    }
    let is_mine = found.uid() == rustix::process::geteuid().as_raw();
    let is_in_run = fs::canonicalize(path)?.starts_with("/run");
    let is_mounted = || statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    if found.mode() & 0o044 != 0 && is_mine && !is_in_run && !is_mounted() {
        return denied("other users can read it; run chmod 600 on it");
    }
    Ok(())
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// A text that somebody chose. The handshake lets anybody who can connect try guesses at leisure, so it must be long.
fn from_user(from: &str, text: &str) -> Result<Secret, NetError> {
    if text.trim().len() < LEAST {
        let why = format!(
            "{from} has fewer than {LEAST} characters; use random ones: head -c 32 /dev/urandom | base64"
        );
        return Err(NetError::Secret { why });
    }
    Ok(Secret::from_text(text))
}

/// The launcher's descriptor. Read by path, so that the next process that inherits it can read it again.
fn inherited(fd: &str) -> Result<Secret, NetError> {
    let bad = |why: String| NetError::Secret { why: format!("PHALANX_SECRET_FD={fd}: {why}") };
    let number: u32 = fd.parse().map_err(|_| bad("not a descriptor".into()))?;
    let mut bytes = [0; LEN];
    let read = fs::File::open(format!("/proc/self/fd/{number}")).and_then(|mut f| f.read_exact(&mut bytes));
    read.map_err(|e| bad(format!("{e}; does a wrapper script close inherited descriptors?")))?;
    Ok(Secret::from_bytes(bytes))
}

/// A key that all jobs of this user share, made when it is first wanted.
fn users_key(path: &Path) -> io::Result<Secret> {
    match fs::read_to_string(path) {
        Ok(text) => {
            if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "other users can read it; run chmod 600 on it",
                ));
            }
            if text.trim().len() < LEAST {
                let why =
                    format!("it has fewer than {LEAST} characters; remove it, and a random one is made");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            return Ok(Secret::from_text(&text));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if let Some(folder) = path.parent() {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    let text: String = Secret::random().expose().iter().map(|b| format!("{b:02x}")).collect();
    // Written aside and linked, so that of several ranks that come first one wins and nobody reads half a key.
    let aside = path.with_extension(format!("new.{}", std::process::id()));
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)?
        .write_all(text.as_bytes())?;
    let linked = fs::hard_link(&aside, path);
    fs::remove_file(&aside)?;
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(Secret::from_text(&fs::read_to_string(path)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_can_be_guessed_are_refused() {
        assert!(
            from_user("PHALANX_SECRET", " hunter2 \n").unwrap_err().to_string().contains("PHALANX_SECRET")
        );
        assert!(from_user("PHALANX_SECRET", "correct horse battery staple").is_ok());
    }

    #[test]
    fn an_empty_secret_is_refused_and_not_ignored() {
        for name in ["PHALANX_SECRET", "PHALANX_SECRET_FILE", "PHALANX_SECRET_FD"] {
            let error = given_by(&|n| (n == name).then(|| " ".into())).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("{name} is set and empty: give it a value, or unset it")),
                "{error}"
            );
        }
        assert_eq!(given_by(&|_| None).unwrap(), None);
    }

    #[test]
    fn a_file_that_others_read_or_write_is_refused() {
        let path = std::env::temp_dir().join(format!("phalanx-secret-file-{}", std::process::id()));
        fs::write(&path, "correct horse battery staple").unwrap();
        let with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let given = given_by(&|n| (n == "PHALANX_SECRET_FILE").then(|| path.display().to_string()));
            given.map(|s| s.is_some()).map_err(|e| e.to_string())
        };
        assert_eq!(with(0o600), Ok(true));
        assert_eq!(with(0o400), Ok(true));
        for (mode, why) in [(0o644, "can read it"), (0o640, "can read it"), (0o620, "can write it")] {
            let error = with(mode).unwrap_err();
            assert!(error.ends_with(&format!("other users {why}; run chmod 600 on it")), "{mode:o}: {error}");
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_users_key_is_made_once_and_guarded() {
        let folder = std::env::temp_dir().join(format!("phalanx-key-{}", std::process::id()));
        let path = folder.join("secret");
        let first = users_key(&path).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let deep = folder.join("no-home").join(".phalanx").join("secret");
        assert!(users_key(&deep).is_err() && !folder.join("no-home").exists(), "no home is made");
        assert_eq!(users_key(&path).unwrap(), first);
        for short in ["", "x\n"] {
            fs::write(&path, short).unwrap();
            let error = users_key(&path).unwrap_err().to_string();
            assert_eq!(error, "it has fewer than 16 characters; remove it, and a random one is made");
        }
        fs::write(&path, "correct horse battery staple").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(users_key(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(folder).unwrap();
    }
}
