//! A JSON array in a file that is whole at any moment.
//!
//! A write can be ended by SIGKILL between two pages, so nothing that spans pages may be changed in place. The array's closing therefore stands ahead,
//! with blanks before it: events are written over blanks, each within one page. A file that is full is replaced by a longer copy, by renaming.

use rustix::{fs::FlockOperation, io::Errno};
use std::{
    ffi::OsString,
    fmt::{self, Write},
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const OPENING: &str = "[\n";
const COMMA: &str = ",\n";
const CLOSING: &str = "\n]\n";
/// The kernel copies this much at once.
const PAGE: u64 = 4096;
/// The first file. A longer one has half as much again, so that all copies together cost a few times the last one.
const FIRST: u64 = 16 * PAGE;

/// Some events as text, each a JSON object.
#[derive(Debug, Default)]
pub struct Events {
    text: String,
    ends: Vec<usize>,
}

impl Events {
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    pub fn add(&mut self, event: &impl fmt::Display) {
        let _ = write!(self.text, "{event}");
        self.ends.push(self.text.len());
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.text[begin..*end])
    }
}

#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
    /// Where the events end and the blanks begin.
    end: u64,
    /// With blanks and closing.
    len: u64,
    /// What is written at once.
    piece: String,
}

impl TraceFile {
    /// Begins a file with these events, of which there must be one. What was in it before is gone.
    pub fn create(path: &Path, head: &Events) -> io::Result<TraceFile> {
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other("it exists and is not a regular file"));
        }
        // A link stays one.
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let before = match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        before.as_ref().map_or(Ok(()), lock)?;
        let text = OPENING.to_string() + &head.iter().collect::<Vec<_>>().join(COMMA);
        let (end, len) = (text.len() as u64, FIRST.max((text.len() as u64 + PAGE).next_multiple_of(PAGE)));
        let file = replace(&path, before.as_ref(), end, len, |new| new.write_all_at(text.as_bytes(), 0))?;
        Ok(TraceFile { path, file, end, len, piece: String::new() })
    }

    /// TIME-1: each write is whole events over blanks, within a page.
    pub fn append(&mut self, events: &Events) -> io::Result<()> {
        let mut waiting = events.iter().peekable();
        while let Some(event) = waiting.peek() {
            let need = (COMMA.len() + event.len()) as u64;
            debug_assert!(need <= PAGE, "events are short: {need} bytes");
            if self.end % PAGE + need > PAGE {
                self.end = self.end.next_multiple_of(PAGE);
            }
            if self.end + need > self.room_ends() {
                self.resize((self.len / 2 * 3).max(self.end + need + PAGE).next_multiple_of(PAGE))?;
            }
            let room = (PAGE - self.end % PAGE).min(self.room_ends() - self.end) as usize;
            self.piece.clear();
            while let Some(event) = waiting.next_if(|e| self.piece.len() + COMMA.len() + e.len() <= room) {
                self.piece += COMMA;
                self.piece += event;
            }
            if let Err(error) = self.file.write_all_at(self.piece.as_bytes(), self.end) {
                // As it was before.
                let _ = self.file.write_all_at(&vec![b' '; self.piece.len()], self.end);
                return Err(error);
            }
            self.end += self.piece.len() as u64;
        }
        Ok(())
    }

    /// Takes the blanks away. Where that cannot be done, they do no harm.
    pub fn finish(mut self) {
        let _ = self.resize(self.end + CLOSING.len() as u64);
    }

    fn room_ends(&self) -> u64 {
        self.len - CLOSING.len() as u64
    }

    fn resize(&mut self, len: u64) -> io::Result<()> {
        let (old, end) = (&self.file, self.end);
        // Where a page had no room for the next event, the old file may end before the new event begins.
        let have = end.min(self.len - CLOSING.len() as u64);
        let copy = |new: &File| {
            (&mut &*old).rewind()?;
            io::copy(&mut (&mut &*old).take(have), &mut &*new).map(drop)
        };
        self.file = replace(&self.path, Some(old), have, len, copy)?;
        self.len = len;
        Ok(())
    }
}

/// Puts a new file in the place of an old one, at once: what `write` writes up to `end`, blanks, and the closing.
fn replace(
    path: &Path,
    old: Option<&File>,
    end: u64,
    len: u64,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<File> {
    // Always the same name: should a kill leave it behind, the next timeline uses it again.
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let beside = path.with_file_name(name);
    let new = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&beside)?;
    lock(&new)?;
    let fill = || {
        new.set_len(0)?;
        write(&new)?;
        let blanks = vec![b' '; 1 << 20];
        let (mut at, last) = (end, len - CLOSING.len() as u64);
        while at < last {
            let n = (last - at).min(blanks.len() as u64);
            new.write_all_at(&blanks[..n as usize], at)?;
            at += n;
        }
        new.write_all_at(CLOSING.as_bytes(), last)?;
        if let Some(old) = old {
            new.set_permissions(old.metadata()?.permissions())?;
        }
        fs::rename(&beside, path)
    };
    if let Err(error) = fill() {
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    Ok(new)
}

/// A lock is this process's, not its children's, and ends with it. File systems that know no locks do without.
fn lock(file: &File) -> io::Result<()> {
    match rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN | Errno::ACCESS) => Err(io::Error::other(
            "another process is writing a timeline to it; each rank needs a file of its own",
        )),
        _ => Ok(()),
    }
}
