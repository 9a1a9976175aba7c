//! From records to the events that viewers show. Each tensor is a "process" of its own there; process 0 is the engine.

use super::{
    super::spec::{Form, Kind, Name},
    What,
    file::Events,
    queue::Taken,
};
use phalanx_core::{Rank, trace::Event};
use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// Tensors known by number; if there are more, those that rest are forgotten and get new ones. Operations without a name are all different.
const MOST_TRACKS: usize = 1 << 16;
/// Tensors of a group that are described.
const MOST_FORMS: usize = 8;
/// Bytes of a name or of shapes, as they are written: an event has to fit into a page of the file.
const MOST_BYTES: usize = 1000;

#[derive(Debug)]
pub struct Story {
    tracks: BTreeMap<(u32, Name), Track>,
    n_tracks: u32,
    n_lost: u64,
    most_tracks: usize,
    events: Events,
}

/// A tensor and what is open of it.
#[derive(Debug)]
struct Track {
    pid: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Resting,
    Negotiating(Kind),
    Queued(Kind),
    Moving { kind: Kind, since_ns: u64 },
}

impl Story {
    pub fn new() -> Story {
        Story::with_most_tracks(MOST_TRACKS)
    }

    pub fn with_most_tracks(most_tracks: usize) -> Story {
        let tracks = BTreeMap::new();
        Story { tracks, n_tracks: 0, n_lost: 0, most_tracks, events: Events::default() }
    }

    /// Who tells, and when time began: now.
    pub fn head(&mut self, rank: Rank, n_ranks: u32) -> Events {
        let epoch_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let mut events = Events::default();
        let title = Event::title(0, format!("engine of rank {rank}"));
        events.add(&title.args([
            ("rank", rank.0.into()),
            ("size", n_ranks.into()),
            ("start_time_since_epoch_in_micros", epoch_us.into()),
        ]));
        events.add(&Event::order(0));
        events
    }

    pub fn tell(&mut self, taken: &Taken) -> &Events {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        for record in &taken.records {
            self.tell_one(&mut Teller { events: &mut events, at_ns: record.at_ns }, &record.what);
        }
        if taken.n_lost > 0 {
            self.n_lost += taken.n_lost;
            let (n, total) = (taken.n_lost, self.n_lost);
            let dropped = moment("DROPPED_EVENTS").args([("dropped", n.into()), ("total", total.into())]);
            Teller { events: &mut events, at_ns: taken.at_ns }.say(dropped);
        }
        self.events = events;
        &self.events
    }

    fn tell_one(&mut self, teller: &mut Teller<'_>, what: &What) {
        match what {
            What::Cycle => teller.say(moment("CYCLE_START")),
            What::Submitted { set, name, kind } => {
                let track = self.track(teller, *set, name);
                teller.close(track, same);
                teller.event(negotiate(*kind), 'B', track.pid);
                track.stage = Stage::Negotiating(*kind);
            }
            What::Refused { set, name } => {
                let track = self.track(teller, *set, name);
                teller.close(track, |end| end.args([("refused", "ranks disagree".into())]));
            }
            What::Agreed { set, agreed } => {
                let (track, kind) = (self.track(teller, *set, &agreed.name), agreed.spec.kind);
                teller.close(track, same);
                teller.event(upper(kind), 'B', track.pid);
                teller.event("QUEUE", 'B', track.pid);
                track.stage = Stage::Queued(kind);
            }
            What::Moving { set, agreed } => {
                let (track, kind) = (self.track(teller, *set, &agreed.name), agreed.spec.kind);
                if let Stage::Queued(_) = track.stage {
                    teller.event("QUEUE", 'E', track.pid);
                } else {
                    teller.close(track, same);
                    teller.event(upper(kind), 'B', track.pid);
                }
                track.stage = Stage::Moving { kind, since_ns: teller.at_ns };
            }
            What::Moved { set, agreed, plan, number } => {
                let track = self.track(teller, *set, &agreed.name);
                let Stage::Moving { kind, since_ns } = track.stage else { return };
                if moves(kind) && !plan.is_empty() {
                    let mut earlier = Teller { events: &mut *teller.events, at_ns: since_ns };
                    earlier.event(*plan, 'B', track.pid);
                    teller.event(*plan, 'E', track.pid);
                }
                teller.close(track, |end| {
                    describe(end, &agreed.spec.forms).args([("operation", (*number).into())])
                });
            }
        }
    }

    fn track(&mut self, teller: &mut Teller<'_>, set: u32, name: &Name) -> &mut Track {
        if self.tracks.len() >= self.most_tracks && !self.tracks.contains_key(&(set, name.clone())) {
            self.tracks.retain(|_, track| track.stage != Stage::Resting);
        }
        let n_tracks = &mut self.n_tracks;
        self.tracks.entry((set, name.clone())).or_insert_with(|| {
            *n_tracks += 1;
            let pid = *n_tracks;
            let mut shown = shortened(name);
            if set != 0 {
                shown += &format!(" (process set {set})");
            }
            teller.events.add(&Event::title(u64::from(pid), shown));
            teller.events.add(&Event::order(u64::from(pid)));
            Track { pid, stage: Stage::Resting }
        })
    }
}

/// Says what happened at one time.
struct Teller<'a> {
    events: &'a mut Events,
    at_ns: u64,
}

impl Teller<'_> {
    fn event(&mut self, name: impl Into<String>, phase: char, pid: u32) {
        self.say(Event::new(name, phase, u64::from(pid)));
    }

    fn say(&mut self, event: Event) {
        let pid = event.pid;
        self.events.add(&event.at_ns(self.at_ns).on_thread(pid));
    }

    /// Ends whatever is open; records may be missing in between.
    fn close(&mut self, track: &mut Track, explain: impl FnOnce(Event) -> Event) {
        let end = |name: String| Event::new(name, 'E', u64::from(track.pid));
        match std::mem::replace(&mut track.stage, Stage::Resting) {
            Stage::Resting => {}
            Stage::Negotiating(kind) => self.say(explain(end(negotiate(kind)))),
            Stage::Queued(kind) => {
                self.event("QUEUE", 'E', track.pid);
                self.say(explain(end(upper(kind))));
            }
            Stage::Moving { kind, .. } => self.say(explain(end(upper(kind)))),
        }
    }
}

/// Whether it runs a plan; the others are done once they are agreed upon.
fn moves(kind: Kind) -> bool {
    !matches!(kind, Kind::Barrier | Kind::AddSet | Kind::RemoveSet)
}

fn upper(kind: Kind) -> String {
    kind.name().to_ascii_uppercase()
}

fn negotiate(kind: Kind) -> String {
    format!("NEGOTIATE_{}", upper(kind))
}

/// A moment of the engine.
fn moment(name: &str) -> Event {
    Event::new(name, 'i', 0).with("s", "p")
}

fn same(event: Event) -> Event {
    event
}

/// Adds types and shapes, a group's with commas between them.
fn describe(event: Event, forms: &[Form]) -> Event {
    if forms.is_empty() {
        return event;
    }
    let shown = &forms[..forms.len().min(MOST_FORMS)];
    let mut shapes: Vec<String> = shown.iter().map(|f| format!("{:?}", f.shape)).collect();
    if forms.len() > shown.len() {
        shapes.push(format!("and {} more", forms.len() - shown.len()));
    }
    let mut dtypes: Vec<String> = forms.iter().map(|f| f.dtype.to_string()).collect();
    dtypes.dedup();
    dtypes.truncate(MOST_FORMS);
    event.args([("dtype", dtypes.join(", ").into()), ("shape", shortened(&shapes.join(", ")).into())])
}

/// Long texts end with how long they are.
fn shortened(text: &str) -> String {
    let mut n_written = 0;
    // As JSON has them.
    let bytes = |c: char| match c {
        '"' | '\\' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    };
    let fits = |c: &char| {
        n_written += bytes(*c);
        n_written <= MOST_BYTES
    };
    let short: String = text.chars().take_while(fits).collect();
    if short.len() == text.len() { short } else { format!("{short}... ({} bytes)", text.len()) }
}
