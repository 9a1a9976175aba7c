//! Where a rank's program is, asked of it while others wait.
//!
//! - WHERE-1: the program is asked on a thread of its own, for which nothing of the engine waits: a callback that does not return costs a line in
//!   a report. That thread may take locks that the engine's other threads must not, such as Python's.
//! - WHERE-2: a rank's answer is limited before it is used: few frames and names, none of them long, no control characters.

use super::{negotiate::Input, shared::Shared, spec::Name};
use crate::engine::EngineError;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

/// The innermost frame and a few of those that called it.
const MOST_FRAMES: usize = 4;
/// Names of operations that are told of one rank.
pub const MOST_NAMES: usize = 3;
const LONGEST: usize = 160;
/// One question of each of a few sets; more would be about the same moment.
const QUESTIONS: usize = 8;

/// One place in a program's source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} in {}", self.file, self.line, self.function)
    }
}

/// How to ask this rank's program where it is: a function that may wait, called from a thread of its own (WHERE-1). It gives frames, innermost first.
#[derive(Clone)]
pub struct Whereabouts(Arc<dyn Fn() -> Vec<Frame> + Send + Sync>);

impl Whereabouts {
    pub fn new(ask: impl Fn() -> Vec<Frame> + Send + Sync + 'static) -> Whereabouts {
        Whereabouts(Arc::new(ask))
    }
}

impl fmt::Debug for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Whereabouts(..)")
    }
}

impl PartialEq for Whereabouts {
    fn eq(&self, other: &Whereabouts) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What a rank answers when it is asked where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// What it waits for in other process sets, by their numbers.
    pub elsewhere: Vec<(u32, Name)>,
}

impl Spot {
    /// WHERE-2.
    pub fn plain(mut self) -> Spot {
        self.frames.truncate(MOST_FRAMES);
        for frame in &mut self.frames {
            frame.file = end_of(&frame.file);
            frame.function = end_of(&frame.function);
        }
        self.elsewhere.truncate(MOST_NAMES);
        self.elsewhere.iter_mut().for_each(|(_, name)| *name = end_of(name).into());
        self
    }
}

/// The end of a text, which tells most of a path, on one line.
fn end_of(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let n = text.chars().count();
    let kept = text.chars().skip(n.saturating_sub(LONGEST)).map(plain);
    if n > LONGEST { "...".chars().chain(kept).collect() } else { kept.collect() }
}

/// Asks on a thread of its own; that thread ends with this.
#[derive(Debug)]
pub(crate) struct Asker {
    questions: SyncSender<u32>,
}

impl Asker {
    pub fn start(whereabouts: Whereabouts, shared: &Arc<Shared>) -> Result<Asker, EngineError> {
        let (questions, asked) = sync_channel(QUESTIONS);
        let weak = Arc::downgrade(shared);
        // Nobody joins it: it may be inside the callback for as long as that likes (WHERE-1).
        drop(shared.spawn("phalanx-where".into(), move || answer_all(&whereabouts, &weak, &asked))?);
        Ok(Asker { questions })
    }

    /// Asks on behalf of a set. One question too many is left out: those before it are not answered either.
    pub fn ask(&self, set: u32) {
        let _ = self.questions.try_send(set);
    }
}

fn answer_all(whereabouts: &Whereabouts, shared: &Weak<Shared>, asked: &Receiver<u32>) {
    for id in asked {
        // A callback that panics says nothing.
        let Ok(frames) = catch_unwind(AssertUnwindSafe(|| (whereabouts.0)())) else { continue };
        let Some(shared) = shared.upgrade() else { return };
        let sets = shared.own_sets();
        let waits = |set: &super::set::Set| set.state().node.waiting_for().map(|name| (set.id, name));
        let elsewhere = sets.iter().filter(|set| set.id != id).filter_map(|set| waits(set)).collect();
        if let Some(set) = sets.iter().find(|set| set.id == id) {
            set.drive(&shared, Input::Located(Spot { frames, elsewhere }.plain()));
            shared.wake_control();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_says_of_itself_is_made_short_and_plain() {
        let frame =
            Frame { file: format!("{}/ends.py", "d".repeat(5000)), line: 7, function: "f\x1b[2J\n".into() };
        let spot = Spot { frames: vec![frame; 50], elsewhere: vec![(1, "n\r".into()); 50] }.plain();
        assert_eq!((spot.frames.len(), spot.elsewhere.len()), (MOST_FRAMES, MOST_NAMES), "WHERE-2");
        assert_eq!(spot.frames[0].file.chars().count(), LONGEST + 3);
        let text = spot.frames[0].to_string();
        assert!(text.starts_with("...d") && text.ends_with("/ends.py:7 in f\u{fffd}[2J\u{fffd}"), "{text}");
        assert_eq!(&*spot.elsewhere[0].1, "n\u{fffd}");
    }
}
