//! Files that come into being whole: they are written aside, then linked or renamed, so nobody reads half of one. Their mode is 0600.
//!
//! The name aside is random and must be new: containers that share a directory have the same process numbers, and may have one host name.

use crate::secret::Secret;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// What `link` answers where there are no hard links.
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const EMLINK: i32 = rustix::io::Errno::MLINK.raw_os_error();
const ENOSYS: i32 = rustix::io::Errno::NOSYS.raw_os_error();
const EOPNOTSUPP: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();

/// Makes a file with this text where none is; `AlreadyExists` says that one is.
pub fn create(place: &Path, text: &str) -> io::Result<()> {
    write(place, text, put_where_nothing_is)
}

/// Makes a file with this text, whatever is there.
pub fn replace(place: &Path, text: &str) -> io::Result<()> {
    write(place, text, |aside, place| fs::rename(aside, place))
}

/// Writes the text aside, lets `put` bring it to its place, and leaves nothing aside.
fn write(place: &Path, text: &str, put: fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let aside = aside(place);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let done = written.and_then(|()| put(&aside, place));
    let _ = fs::remove_file(&aside);
    done
}

/// A name beside this one that no other process chooses.
fn aside(place: &Path) -> PathBuf {
    let random: String = Secret::random().expose()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    place.with_file_name(format!(".{name}.{random}"))
}

/// Fails where the name is taken. File systems without hard links (some network shares) have no such step: there two that come within moments of
/// each other may both succeed.
fn put_where_nothing_is(aside: &Path, place: &Path) -> io::Result<()> {
    match fs::hard_link(aside, place) {
        Err(e)
            if matches!(e.raw_os_error(), Some(EPERM | ENOSYS | EOPNOTSUPP | EMLINK)) && !place.exists() =>
        {
            fs::rename(aside, place)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_that_make_a_file_one_wins_and_nothing_is_left_aside() {
        let folder = std::env::temp_dir().join(format!("phalanx-whole-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let place = folder.join("key");
        // As in containers with one process number: only what is random tells them apart.
        let won: Vec<bool> = std::thread::scope(|scope| {
            let make = |i: usize| {
                let place = &place;
                scope.spawn(move || match create(place, &i.to_string().repeat(1000)) {
                    Ok(()) => true,
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
                    Err(e) => panic!("{e}"),
                })
            };
            let threads: Vec<_> = (0..8).map(make).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winner = won.iter().position(|won| *won).unwrap();
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        assert_eq!(fs::read_to_string(&place).unwrap(), winner.to_string().repeat(1000));
        replace(&place, "other").unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "other");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_two_names_aside_are_equal() {
        let place = Path::new("/keys/secret");
        let (a, b) = (aside(place), aside(place));
        assert_ne!(a, b);
        assert_eq!(a.parent(), place.parent());
    }
}
