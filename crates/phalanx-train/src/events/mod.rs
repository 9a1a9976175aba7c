//! Event files: what TensorBoard shows of a training. One writer writes one new file.
//! - EVENT-1: TensorBoard reads every record of a file that was flushed or whose writer was dropped.
//! - EVENT-2: two writers never write to the same file, not even in the same second and folder.

mod histogram;
mod message;
mod record;

use message::{EventMessage, Shown, Summary, SummaryValue, What};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// What the first event of a file says, so that readers know the format.
const VERSION: &str = "brain.Event:2";
/// An event that comes later than this after the last flush is flushed with those before it: somebody may be watching.
const FLUSH_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("cannot create an event file in {}: {why}", dir.display())]
    Create { dir: PathBuf, why: io::Error },
    #[error("cannot write to the event file {}: {why}", path.display())]
    Write { path: PathBuf, why: io::Error },
    #[error(
        "the histogram `{tag}` has {n} values that are not finite: leave them out, or find out where they come from"
    )]
    NotFinite { tag: String, n: usize },
}

/// Writes events to a new file in a folder. Events are buffered; dropping the writer flushes them.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: BufWriter<File>,
    flushed: Instant,
}

impl EventWriter {
    /// Creates the folder if it is not there, and in it the file `events.out.tfevents.<seconds>.<host>.<process>.<number>`.
    pub fn create(dir: &Path) -> Result<EventWriter, EventError> {
        let failed = |why| EventError::Create { dir: dir.to_path_buf(), why };
        fs::create_dir_all(dir).map_err(failed)?;
        let now = since_1970();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (path, file) = create_new(dir, now.as_secs(), &host).map_err(failed)?;
        let mut writer = EventWriter { path, file: BufWriter::new(file), flushed: Instant::now() };
        let version = What::FileVersion(VERSION.into());
        let event = EventMessage { wall_time: now.as_secs_f64(), step: 0, what: Some(version) };
        writer.write(&event, Instant::now())?;
        // A full disk is reported here rather than in the middle of a training.
        writer.flush()?;
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One number at a step.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f32) -> Result<(), EventError> {
        self.scalars(step, &[(tag, value)])
    }

    /// Several numbers at a step, as one event.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f32)]) -> Result<(), EventError> {
        let value = |&(tag, value): &(&str, f32)| (tag.to_string(), Shown::Simple(value));
        self.show(step, values.iter().map(value))
    }

    /// How many values are of which size. Values that are not finite are refused.
    pub fn histogram(&mut self, step: u64, tag: &str, values: &[f32]) -> Result<(), EventError> {
        let n = values.iter().filter(|value| !value.is_finite()).count();
        if n > 0 {
            return Err(EventError::NotFinite { tag: tag.to_string(), n });
        }
        let shown = Shown::Histogram(histogram::histogram(values));
        self.show(step, [(tag.to_string(), shown)].into_iter())
    }

    /// Gives all events to the system, so that TensorBoard sees them.
    pub fn flush(&mut self) -> Result<(), EventError> {
        self.flushed = Instant::now();
        self.file.flush().map_err(|why| EventError::Write { path: self.path.clone(), why })
    }

    fn show(&mut self, step: u64, values: impl Iterator<Item = (String, Shown)>) -> Result<(), EventError> {
        let values = values.map(|(tag, shown)| SummaryValue { tag, shown: Some(shown) }).collect();
        let event = EventMessage {
            wall_time: since_1970().as_secs_f64(),
            // The format has signed steps; no training counts that far.
            step: i64::try_from(step).unwrap_or(i64::MAX),
            what: Some(What::Summary(Summary { values })),
        };
        self.write(&event, Instant::now())
    }

    fn write(&mut self, event: &EventMessage, now: Instant) -> Result<(), EventError> {
        let written = self.file.write_all(&record::record(event));
        written.map_err(|why| EventError::Write { path: self.path.clone(), why })?;
        match now.duration_since(self.flushed) >= FLUSH_EVERY {
            true => self.flush(),
            false => Ok(()),
        }
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        if let Err(why) = self.flush() {
            tracing::warn!("{why}; the last events are lost");
        }
    }
}

/// A file that was not there (EVENT-2). TensorBoard reads files in the order of their names: seconds have ten digits until 2286.
fn create_new(dir: &Path, seconds: u64, host: &str) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    let mut number = 0;
    loop {
        let path = dir.join(format!("events.out.tfevents.{seconds:010}.{host}.{process}.{number}"));
        match File::create_new(&path) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|file| (path, file)),
        }
    }
}

/// Zero on a machine whose clock is before 1970.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_long_after_the_last_flush_is_flushed() {
        let dir = std::env::temp_dir().join(format!("phalanx-events-due-{}", std::process::id()));
        let mut writer = EventWriter::create(&dir).expect("a folder for temporary files");
        let length = |writer: &EventWriter| fs::metadata(&writer.path).expect("it was created").len();
        let (begin, event) = (length(&writer), EventMessage { wall_time: 1.0, step: 1, what: None });
        let soon = writer.flushed + FLUSH_EVERY - Duration::from_millis(1);
        writer.write(&event, soon).expect("written");
        assert_eq!(length(&writer), begin);
        let late = writer.flushed + FLUSH_EVERY;
        writer.write(&event, late).expect("written");
        assert_eq!(length(&writer), begin + 2 * record::record(&event).len() as u64);
        drop(writer);
        fs::remove_dir_all(&dir).expect("it was ours");
    }
}
