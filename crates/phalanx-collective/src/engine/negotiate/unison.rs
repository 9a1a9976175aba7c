//! A node while it replays: how it announces its readiness, and how all nodes stop at the same batch.

use super::{
    Negotiator, Output,
    fuse::Batch,
    message::{Announce, Message},
    replay::{Replay, View},
    root::Root,
};
use std::collections::BTreeMap;

/// A rank that waits this long for the rest of a batch would rather negotiate.
const LATE_US: u64 = 50_000;
const LATEST_US: u64 = 5_000_000;

/// What is known of the readiness of others, where it is told along the tree.
#[derive(Debug, Default)]
pub struct Unison {
    /// Of each child: batches that all below are ready for, and whether that is final.
    below: BTreeMap<usize, (u64, bool)>,
    frozen_below: bool,
    told: Option<(u64, bool)>,
    told_final: bool,
    /// At the root: whether all were told to freeze.
    freezing: bool,
    /// How long one round of all batches takes.
    round_us: u64,
    round_began_us: u64,
}

impl Unison {
    pub fn late_us(&self) -> u64 {
        (self.round_us * 4).clamp(LATE_US, LATEST_US)
    }
}

impl Negotiator {
    pub(super) fn begin_replay(&mut self, now_us: u64, batches: Vec<Batch>, out: &mut Vec<Output>) {
        self.change_generation();
        self.entries.clear();
        self.joined.clear();
        if let Some(root) = &mut self.root {
            root.forget();
        }
        let below = self.tree.children().map(|c| (c, (0, false))).collect();
        self.unison = Unison { below, round_began_us: now_us, ..Unison::default() };
        self.replay = Some(Replay::new(self.generation, batches, now_us));
        let names: Vec<_> = self.mine.keys().cloned().collect();
        for name in names {
            // A rank that is alone may have ended it again already.
            if self.replay.is_some() {
                self.replay_own(now_us, &name, out);
            }
        }
        if self.i_joined || self.ending.is_some() {
            self.freeze(now_us, out);
        }
        self.tell_ready(now_us, out);
        self.hear_early(now_us, out);
    }

    fn change_generation(&mut self) {
        self.generation += 1;
        self.up = Announce { generation: self.generation, ..Announce::default() };
    }

    fn hear_early(&mut self, now_us: u64, out: &mut Vec<Output>) {
        for (from, message) in std::mem::take(&mut self.early) {
            self.hear(now_us, from, message, out);
        }
    }

    /// REPLAY-2: the end of it, at the same batch on every rank.
    fn end_replay(&mut self, now_us: u64, out: &mut Vec<Output>) {
        if let (Some(replay), Some(root)) = (self.replay.take(), &mut self.root) {
            root.learn(replay.committed / replay.n_batches() as u64);
        }
        self.change_generation();
        let names: Vec<_> = self.mine.keys().cloned().collect();
        names.into_iter().for_each(|name| self.announce_own(name));
        self.say_own(now_us, out);
        self.hear_early(now_us, out);
    }

    /// Takes a submission of this rank; one that is not as recorded ends the replay.
    pub(super) fn replay_own(&mut self, now_us: u64, name: &str, out: &mut Vec<Output>) {
        let spec = &self.mine[name].spec;
        let replay = self.replay.as_ref().expect("only while replaying");
        if replay.agreed(name).is_some_and(|known| self.is_as_agreed(spec, known)) {
            let replay = self.replay.as_mut().expect("only while replaying");
            replay.submit(name, now_us);
            if let Some(root) = &mut self.root {
                root.see_phase(self.mine[name].phase);
            }
            self.tell_ready(now_us, out);
        } else {
            self.freeze(now_us, out);
        }
    }

    pub(super) fn freeze(&mut self, now_us: u64, out: &mut Vec<Output>) {
        if let Some(replay) = self.replay.as_mut().filter(|r| !r.frozen) {
            replay.frozen = true;
            self.tell_ready(now_us, out);
        }
    }

    pub(super) fn give_up_if_late(&mut self, now_us: u64, out: &mut Vec<Output>) {
        let late_us = self.unison.late_us();
        let late = |r: &Replay| r.is_waiting() && now_us.saturating_sub(r.moved_at) > late_us;
        if self.replay.as_ref().is_some_and(late) {
            self.freeze(now_us, out);
        }
    }

    /// What the shared board shows.
    pub(super) fn see(&mut self, now_us: u64, view: View, out: &mut Vec<Output>) {
        if self.replay.is_none() || view.generation != self.generation {
            return;
        }
        if view.any_frozen {
            self.freeze(now_us, out);
        }
        self.commit(now_us, view.lowest, out);
        if view.all_frozen {
            self.end_replay(now_us, out);
        }
    }

    fn commit(&mut self, now_us: u64, count: u64, out: &mut Vec<Output>) {
        let replay = self.replay.as_mut().expect("only while replaying");
        let n = replay.n_batches() as u64;
        let before = replay.committed / n;
        let mut record_again = false;
        let batches: Vec<Batch> = replay.commit(count, now_us).collect();
        if replay.committed / n > before {
            let took = now_us.saturating_sub(self.unison.round_began_us);
            self.unison.round_us =
                if self.unison.round_us == 0 { took } else { (self.unison.round_us * 3 + took) / 4 };
            self.unison.round_began_us = now_us;
            record_again = self.root.as_mut().is_some_and(Root::end_round);
        }
        for batch in batches {
            if let Err(what) = self.run(now_us, batch, true, out) {
                // What is counted here was submitted here (REPLAY-1), unless the recording names something twice.
                self.garbage = Some((self.tree.parent().unwrap_or(self.tree.me), what));
                return;
            }
        }
        if record_again {
            self.freeze(now_us, out);
        }
    }

    /// Shows or tells this node's readiness, if it is news, and at the root draws the conclusions.
    fn tell_ready(&mut self, now_us: u64, out: &mut Vec<Output>) {
        let Some(replay) = &self.replay else { return };
        let (generation, own, frozen) = (replay.generation, replay.count, replay.frozen);
        if self.setup.board {
            if self.unison.told.replace((own, frozen)) != Some((own, frozen)) {
                out.push(Output::Show { generation, count: own, frozen });
            }
            return;
        }
        let count = self.unison.below.values().map(|b| b.0).fold(own, u64::min);
        let any_frozen = frozen || self.unison.frozen_below;
        let all_final = frozen && self.unison.below.values().all(|b| b.1);
        let news = self.unison.told.replace((count, any_frozen)) != Some((count, any_frozen));
        if let Some(to) = self.tree.parent() {
            if news && !self.unison.told_final {
                out.push(Output::Send {
                    to,
                    message: Message::Ready { generation, count, frozen: any_frozen },
                });
            }
            if all_final && !std::mem::replace(&mut self.unison.told_final, true) {
                out.push(Output::Send { to, message: Message::Final { generation, count } });
            }
            return;
        }
        if any_frozen && !std::mem::replace(&mut self.unison.freezing, true) {
            self.pass_down(&Message::Freeze { generation }, out);
            return self.freeze_now(now_us, out);
        }
        let committed = self.replay.as_ref().map_or(0, |r| r.committed);
        if all_final {
            self.pass_down(&Message::Stop { generation, count }, out);
            self.commit(now_us, count, out);
            self.end_replay(now_us, out);
        } else if count > committed {
            self.pass_down(&Message::Commit { generation, count }, out);
            self.commit(now_us, count, out);
        }
    }

    /// As `freeze`, but speaks even if it was frozen already.
    fn freeze_now(&mut self, now_us: u64, out: &mut Vec<Output>) {
        if let Some(replay) = &mut self.replay {
            replay.frozen = true;
        }
        self.tell_ready(now_us, out);
    }

    fn pass_down(&self, message: &Message, out: &mut Vec<Output>) {
        out.extend(self.tree.children().map(|to| Output::Send { to, message: message.clone() }));
    }

    /// Words about readiness from along the tree.
    pub(super) fn hear_replaying(&mut self, now_us: u64, from: usize, word: Message, out: &mut Vec<Output>) {
        let generation = match word {
            Message::Ready { generation, .. }
            | Message::Final { generation, .. }
            | Message::Commit { generation, .. }
            | Message::Freeze { generation }
            | Message::Stop { generation, .. } => generation,
            _ => return,
        };
        if generation > self.generation {
            return self.early.push_back((from, word));
        }
        if generation < self.generation || self.replay.is_none() {
            return;
        }
        match word {
            Message::Ready { count, frozen, .. } => {
                self.unison.below.insert(from, (count, false));
                self.unison.frozen_below |= frozen;
                self.tell_ready(now_us, out);
            }
            Message::Final { count, .. } => {
                self.unison.below.insert(from, (count, true));
                self.tell_ready(now_us, out);
            }
            Message::Commit { count, .. } => {
                self.pass_down(&word, out);
                self.commit(now_us, count, out);
            }
            Message::Freeze { .. } => {
                self.pass_down(&word, out);
                self.freeze_now(now_us, out);
            }
            Message::Stop { count, .. } => {
                self.pass_down(&word, out);
                self.commit(now_us, count, out);
                self.end_replay(now_us, out);
            }
            _ => {}
        }
    }
}
