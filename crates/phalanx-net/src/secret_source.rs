//! Where a rank finds the job's secret: an inherited descriptor, a variable, a file, or the user's own key.

use crate::{
    error::NetError,
    secret::{LEN, Secret},
    whole_file,
};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
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
    // An empty one is passed over where another gives a secret.
    let value = |name: &str| var(name).filter(|value| !value.trim().is_empty());
    if let Some(fd) = value("PHALANX_SECRET_FD") {
        return inherited(&fd).map(Some);
    }
    if let Some(text) = value("PHALANX_SECRET") {
        return from_user("PHALANX_SECRET", &text).map(Some);
    }
    let Some(path) = value("PHALANX_SECRET_FILE") else {
        let names = ["PHALANX_SECRET_FD", "PHALANX_SECRET", "PHALANX_SECRET_FILE"];
        let Some(empty) = names.into_iter().find(|name| var(name).is_some()) else { return Ok(None) };
        let why = format!("{empty} is set and empty: give it a value, or unset it");
        return Err(NetError::Secret { why });
    };
    let from = format!("PHALANX_SECRET_FILE={path}");
    let failed = |e: io::Error| NetError::Secret { why: format!("{from}: {e}") };
    guard(Path::new(&path)).map_err(failed)?;
    from_user(&from, &fs::read_to_string(&path).map_err(failed)?).map(Some)
}

/// Nobody else can change the file; nobody else can read it, where this user could forbid that.
fn guard(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let kept = Kept {
        mode: found.mode(),
        is_mine: found.uid() == rustix::process::geteuid().as_raw(),
        is_in_run: fs::canonicalize(path)?.starts_with("/run"),
        is_on_read_only_mount: is_on_read_only_mount(path),
    };
    match objection(&kept) {
        Some(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        None => Ok(()),
    }
}

/// How a file with a secret is kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    mode: u32,
    is_mine: bool,
    is_in_run: bool,
    is_on_read_only_mount: bool,
}

/// Containers get secrets in /run, or on mounts that they cannot write, with any mode (Kubernetes: `defaultMode`): nobody who sees such a mount
/// can change the file or its mode. Who can where it is mounted from is not seen here.
fn objection(kept: &Kept) -> Option<&'static str> {
    if kept.is_on_read_only_mount {
        None
    } else if kept.mode & 0o022 != 0 {
        Some("other users can write it; run chmod 600 on it, or mount it read-only")
    } else if kept.mode & 0o044 != 0 && kept.is_mine && !kept.is_in_run {
        Some("other users can read it; run chmod 600 on it")
    } else {
        None
    }
}

fn is_on_read_only_mount(path: &Path) -> bool {
    statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY))
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
            if fs::metadata(path)?.mode() & 0o077 != 0 && !is_on_read_only_mount(path) {
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
    // Of several ranks that come first one wins.
    match whole_file::create(path, &text) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(Secret::from_text(&fs::read_to_string(path)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
    fn an_empty_secret_beside_a_good_one_is_passed_over() {
        let path = std::env::temp_dir().join(format!("phalanx-secret-beside-{}", std::process::id()));
        fs::write(&path, "correct horse battery staple").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let file = path.to_str().unwrap();
        let good = Secret::from_text("correct horse battery staple");
        for vars in [
            [("PHALANX_SECRET", ""), ("PHALANX_SECRET_FILE", file)],
            [("PHALANX_SECRET", "correct horse battery staple"), ("PHALANX_SECRET_FILE", "")],
            [("PHALANX_SECRET_FD", " "), ("PHALANX_SECRET_FILE", file)],
        ] {
            let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
            assert_eq!(given_by(&var).unwrap().as_ref(), Some(&good), "{vars:?}");
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_mount_that_cannot_be_written_keeps_a_secret_whatever_its_mode() {
        let here = Kept { mode: 0o777, is_mine: true, is_in_run: false, is_on_read_only_mount: false };
        assert!(objection(&here).unwrap().starts_with("other users can write it"));
        assert!(objection(&Kept { is_in_run: true, ..here }).is_some(), "others can change it there");
        for mode in [0o777, 0o644, 0o444, 0o400] {
            assert_eq!(objection(&Kept { mode, is_on_read_only_mount: true, ..here }), None, "{mode:o}");
        }
        assert!(objection(&Kept { mode: 0o644, ..here }).is_some());
        for kept in [Kept { is_in_run: true, ..here }, Kept { is_mine: false, ..here }] {
            assert_eq!(objection(&Kept { mode: 0o444, ..kept }), None, "it is not this user's to change");
        }
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
            assert!(error.contains(&format!("other users {why}; run chmod 600 on it")), "{mode:o}: {error}");
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
