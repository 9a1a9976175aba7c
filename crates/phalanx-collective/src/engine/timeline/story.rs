//! From records to the events that viewers show. Each tensor is a "process" of its own there; process 0 is the engine.

use super::{
    super::spec::{Form, Kind, Name},
    What,
    file::Events,
    queue::Taken,
};
use phalanx_core::Rank;
use std::{
    collections::BTreeMap,
    fmt::Write,
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
        let epoch_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros());
        let mut events = Events::default();
        events.add(|out| {
            let args = format!(
                r#""name":"engine of rank {rank}","rank":{rank},"size":{n_ranks},"start_time_since_epoch_in_micros":{epoch_us}"#
            );
            *out += &format!(r#"{{"name":"process_name","ph":"M","pid":0,"args":{{{args}}}}}"#);
        });
        events.add(|out| *out += &sort_index(0));
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
            let args = format!(r#","s":"p","args":{{"dropped":{n},"total":{total}}}"#);
            Teller { events: &mut events, at_ns: taken.at_ns }.event("DROPPED_EVENTS", 'i', 0, &args);
        }
        self.events = events;
        &self.events
    }

    fn tell_one(&mut self, teller: &mut Teller<'_>, what: &What) {
        match what {
            What::Cycle => teller.event("CYCLE_START", 'i', 0, r#","s":"p""#),
            What::Submitted { set, name, kind } => {
                let track = self.track(teller, *set, name);
                teller.close(track, "");
                teller.event(&negotiate(*kind), 'B', track.pid, "");
                track.stage = Stage::Negotiating(*kind);
            }
            What::Refused { set, name } => {
                let track = self.track(teller, *set, name);
                teller.close(track, r#","args":{"refused":"ranks disagree"}"#);
            }
            What::Agreed { set, agreed } => {
                let (track, kind) = (self.track(teller, *set, &agreed.name), agreed.spec.kind);
                teller.close(track, "");
                teller.event(&upper(kind), 'B', track.pid, "");
                teller.event("QUEUE", 'B', track.pid, "");
                track.stage = Stage::Queued(kind);
            }
            What::Moving { set, agreed } => {
                let (track, kind) = (self.track(teller, *set, &agreed.name), agreed.spec.kind);
                if let Stage::Queued(_) = track.stage {
                    teller.event("QUEUE", 'E', track.pid, "");
                } else {
                    teller.close(track, "");
                    teller.event(&upper(kind), 'B', track.pid, "");
                }
                track.stage = Stage::Moving { kind, since_ns: teller.at_ns };
            }
            What::Moved { set, agreed, plan, number } => {
                let track = self.track(teller, *set, &agreed.name);
                let Stage::Moving { kind, since_ns } = track.stage else { return };
                if moves(kind) && !plan.is_empty() {
                    let mut earlier = Teller { events: &mut *teller.events, at_ns: since_ns };
                    earlier.event(plan, 'B', track.pid, "");
                    teller.event(plan, 'E', track.pid, "");
                }
                let forms = describe(&agreed.spec.forms);
                teller.close(track, &format!(r#","args":{{{forms}"operation":{number}}}"#));
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
            let shown = escaped(name);
            let in_set = if set == 0 { String::new() } else { format!(" (process set {set})") };
            teller.events.add(|out| {
                *out += &format!(
                    r#"{{"name":"process_name","ph":"M","pid":{pid},"args":{{"name":"{shown}{in_set}"}}}}"#
                );
            });
            teller.events.add(|out| *out += &sort_index(pid));
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
    fn event(&mut self, name: &str, phase: char, pid: u32, rest: &str) {
        let (us, ns) = (self.at_ns / 1000, self.at_ns % 1000);
        self.events.add(|out| {
            let _ = write!(
                out,
                r#"{{"name":"{name}","ph":"{phase}","ts":{us}.{ns:03},"pid":{pid},"tid":{pid}{rest}}}"#
            );
        });
    }

    /// Ends whatever is open; records may be missing in between.
    fn close(&mut self, track: &mut Track, rest: &str) {
        match std::mem::replace(&mut track.stage, Stage::Resting) {
            Stage::Resting => {}
            Stage::Negotiating(kind) => self.event(&negotiate(kind), 'E', track.pid, rest),
            Stage::Queued(kind) => {
                self.event("QUEUE", 'E', track.pid, "");
                self.event(&upper(kind), 'E', track.pid, rest);
            }
            Stage::Moving { kind, .. } => self.event(&upper(kind), 'E', track.pid, rest),
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

fn sort_index(pid: u32) -> String {
    format!(r#"{{"name":"process_sort_index","ph":"M","pid":{pid},"args":{{"sort_index":{pid}}}}}"#)
}

/// Types and shapes, a group's with commas between them.
fn describe(forms: &[Form]) -> String {
    if forms.is_empty() {
        return String::new();
    }
    let shown = &forms[..forms.len().min(MOST_FORMS)];
    let mut shapes: Vec<String> = shown.iter().map(|f| format!("{:?}", f.shape)).collect();
    if forms.len() > shown.len() {
        shapes.push(format!("and {} more", forms.len() - shown.len()));
    }
    let mut dtypes: Vec<String> = forms.iter().map(|f| f.dtype.to_string()).collect();
    dtypes.dedup();
    dtypes.truncate(MOST_FORMS);
    format!(r#""dtype":"{}","shape":"{}","#, dtypes.join(", "), escaped(&shapes.join(", ")))
}

/// As it may stand in a JSON string; long texts end with how long they are.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if out.len() > MOST_BYTES {
            let _ = write!(out, "... ({} bytes)", text.len());
            break;
        }
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}
