//! The mark of a training that has ended: a file with the time of its end.

use crate::{
    CheckpointError,
    durable::{PathContext, replace_file, sync_dir},
    layout::DONE,
};
use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Says that training has ended; followers end once they have seen all. A training that begins removes the mark.
pub fn mark_done(dir: impl AsRef<Path>) -> Result<(), CheckpointError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = format!("ended {}.{:09}\n", now.as_secs(), now.subsec_nanos());
    replace_file(dir.as_ref(), DONE, u64::MAX, text.as_bytes())
}

/// Removes the mark: a training goes on here. One rank does this, once all of them have begun.
pub fn unmark_done(dir: impl AsRef<Path>) -> Result<(), CheckpointError> {
    let done = dir.as_ref().join(DONE);
    match fs::remove_file(&done) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.said("remove", &done).and_then(|()| sync_dir(dir.as_ref())),
    }
}

/// When the training of this directory ended, if it has.
pub fn ended(dir: &Path) -> Option<SystemTime> {
    let path = dir.join(DONE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(_) => return written(&path),
    };
    // Anybody may make the mark, for example with `touch`: the clock of the file system says when.
    time(&text).or_else(|| written(&path))
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

fn time(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.strip_prefix("ended ")?.strip_suffix('\n')?.split_once('.')?;
    let nanos = (fraction.len() == 9).then(|| fraction.parse().ok()).flatten()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_back_and_other_text_is_none() {
        let at = UNIX_EPOCH + Duration::new(1_700_000_000, 5);
        assert_eq!(time("ended 1700000000.000000005\n"), Some(at));
        for other in
            ["", "ended 1700000000.5\n", "ended 1700000000.000000005", "ended x.000000005\n", "1.2\n"]
        {
            assert_eq!(time(other), None, "{other:?}");
        }
        assert_eq!(time(&format!("ended {}.000000005\n", u64::MAX)), None);
    }
}
