//! Where a rank finds the job's secret: an inherited descriptor, a variable, a file, or the user's own key.

use crate::{
    error::NetError,
    secret::{LEN, Secret},
};
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
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
    let home = var("HOME").ok_or_else(|| NetError::Secret {
        why: "the launcher did not provide one and HOME is not set; set PHALANX_SECRET to the same random text on every rank".into(),
    })?;
    let path = PathBuf::from(home).join(".phalanx").join("secret");
    let secret =
        users_key(&path).map_err(|e| NetError::Secret { why: format!("{}: {e}", path.display()) })?;
    Ok(FoundSecret { secret, key_file: Some(path) })
}

/// The secret that the environment gives this process, or the user's own key, if there is one: where hosts have no common home, each would
/// make a key of its own.
pub fn existing() -> Result<Option<Secret>, NetError> {
    if let Some(secret) = given()? {
        return Ok(Some(secret));
    }
    let Some(home) = var("HOME") else { return Ok(None) };
    let path = PathBuf::from(home).join(".phalanx").join("secret");
    let there = path.exists().then(|| users_key(&path)).transpose();
    there.map_err(|e| NetError::Secret { why: format!("{}: {e}", path.display()) })
}

/// The secret that the environment gives this process, which is the same for all ranks.
pub fn given() -> Result<Option<Secret>, NetError> {
    if let Some(fd) = var("PHALANX_SECRET_FD") {
        return inherited(&fd).map(Some);
    }
    if let Some(text) = var("PHALANX_SECRET") {
        return from_user("PHALANX_SECRET", &text).map(Some);
    }
    if let Some(path) = var("PHALANX_SECRET_FILE") {
        let read = fs::read_to_string(&path);
        let text = read.map_err(|e| NetError::Secret { why: format!("PHALANX_SECRET_FILE={path}: {e}") })?;
        return from_user(&format!("PHALANX_SECRET_FILE={path}"), &text).map(Some);
    }
    Ok(None)
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
        fs::create_dir_all(folder)?;
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
    fn a_users_key_is_made_once_and_guarded() {
        let folder = std::env::temp_dir().join(format!("phalanx-key-{}", std::process::id()));
        let path = folder.join("secret");
        let first = users_key(&path).unwrap();
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
