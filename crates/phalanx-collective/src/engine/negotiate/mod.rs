//! Agreement on what runs next, among the ranks of one process set. Pure: no lock, clock or socket.
//!
//! Submissions travel up a tree and are merged on the way; the root answers with a sequence of responses that every rank obeys in order.
//! - NEG-1: every rank of a set runs the same batches in the same order.
//! - NEG-2: an operation runs only after every rank has submitted it alike, or has joined.
//! - NEG-3: an operation that every rank has submitted runs, even if others are still missing.
//! - NEG-4: a disagreement is told to every rank that submitted the name, once all have; the name is free again afterwards.

pub mod agree;
mod check;
pub mod fuse;
mod merge;
pub mod message;
pub mod predict;
pub mod replay;
pub mod report;
mod root;
#[cfg(test)]
mod simulation;
mod stall;
pub mod table;
mod tree;
mod unison;

use super::{
    spec::{Name, Spec},
    whereabouts::Spot,
};
use agree::conflict;
use check::Nonsense;
use fuse::{Batch, FusionLimits};
use message::{
    Agreed, Announce, Announced, EngineEnd, Generation, Item, Merged, Message, OpFault, Response, Tuning,
};
use phalanx_core::Rank;
use replay::{Replay, View};
use report::StallReport;
use root::Root;
use stall::StallCheck;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use table::OperationTable;
use tree::Tree;
use unison::Unison;

/// What a node is told at its birth; equal on all ranks but for the place.
#[derive(Clone, Debug)]
pub struct NegotiatorSetup {
    pub me: usize,
    /// World ranks of the set, in order; for messages to people.
    pub members: Vec<Rank>,
    pub limits: FusionLimits,
    pub cache_capacity: usize,
    /// Whether readiness is seen on a board that all ranks share, rather than told along the tree.
    pub board: bool,
    pub replay: bool,
    /// Milliseconds of waiting after which users are told.
    pub stall_ms: Option<u64>,
    /// Milliseconds of waiting after which it fails.
    pub abort_ms: Option<u64>,
    /// Whether the program of this rank can be asked where it is; the only value that differs between ranks.
    pub says_where: bool,
}

/// What happens to a node.
#[derive(Debug)]
pub enum Input {
    Submit {
        name: Name,
        spec: Spec,
    },
    /// This rank submits nothing more until all have joined.
    Join,
    /// This rank wants everything to end.
    Leave,
    /// Everything shall end, because that rank wanted it elsewhere.
    End(Rank),
    Heard {
        from: usize,
        message: Message,
    },
    /// The board as just seen.
    Seen(View),
    /// The number of batches that have run here.
    Ran(u64),
    /// At the root: every rank shall use these values from some moment on.
    Tune(Tuning),
    /// Where this rank's program is, as was asked.
    Located(Spot),
    /// Announce what has gathered; look at the clock.
    Flush,
}

/// What a node wants done, in this order.
#[derive(Debug)]
pub enum Output {
    Send {
        to: usize,
        message: Message,
    },
    Run {
        batch: Batch,
        replayed: bool,
    },
    Fail {
        name: Name,
        fault: OpFault,
    },
    AllJoined {
        last: Rank,
    },
    Tune(Tuning),
    Over {
        rank: Rank,
        why: EngineEnd,
    },
    /// Show this on the board.
    Show {
        generation: Generation,
        count: u64,
        frozen: bool,
    },
    /// Ask this rank's program where it is; [`Input::Located`] is the answer.
    Locate,
    Report(StallReport),
}

/// What one rank itself has submitted.
#[derive(Debug)]
struct Mine {
    spec: Spec,
    since_us: u64,
    /// When it was submitted, in terms of what the program had seen by then.
    phase: u64,
}

/// A name's submissions here and below.
#[derive(Debug, Default)]
struct Entry {
    /// By neighbour below; this node itself under its own place.
    parts: BTreeMap<usize, Announced>,
}

/// One rank's part in the agreement of one set.
#[derive(Debug)]
pub struct Negotiator {
    tree: Tree,
    setup: NegotiatorSetup,
    table: OperationTable,
    generation: Generation,
    mine: BTreeMap<Name, Mine>,
    entries: BTreeMap<Name, Entry>,
    /// Places here and below that have joined.
    joined: BTreeSet<usize>,
    i_joined: bool,
    /// Who wants everything to end, as far as this rank itself has been told.
    ending: Option<Rank>,
    /// To be announced to the parent.
    up: Announce,
    /// From neighbours that are a generation ahead.
    early: VecDeque<(usize, Message)>,
    root: Option<Root>,
    replay: Option<Replay>,
    unison: Unison,
    stall: StallCheck,
    over: bool,
    /// A neighbour's message that makes no sense (CHECK-1); nothing happens here after it.
    garbage: Option<(usize, Nonsense)>,
    last: Option<(Name, u64)>,
    phase: u64,
    /// Submissions of this rank that were announced by number, and in full.
    pub n_by_number: u64,
    pub n_in_full: u64,
}

impl Negotiator {
    pub fn new(setup: NegotiatorSetup) -> Negotiator {
        let tree = Tree { me: setup.me, n: setup.members.len() };
        Negotiator {
            tree,
            table: OperationTable::new(setup.cache_capacity),
            generation: 0,
            mine: BTreeMap::new(),
            entries: BTreeMap::new(),
            joined: BTreeSet::new(),
            i_joined: false,
            ending: None,
            up: Announce::default(),
            early: VecDeque::new(),
            root: (setup.me == 0).then(|| Root::new(setup.limits)),
            replay: None,
            unison: Unison::default(),
            stall: StallCheck::new(setup.stall_ms, setup.abort_ms),
            over: false,
            garbage: None,
            last: None,
            phase: 0,
            n_by_number: 0,
            n_in_full: 0,
            setup,
        }
    }

    /// The neighbours of this node: whom it sends to and hears from.
    pub fn neighbours(&self) -> impl Iterator<Item = usize> + use<> {
        self.tree.parent().into_iter().chain(self.tree.children())
    }

    /// Says how many answers the program has seen. What it submits before it sees another one cannot depend on any of those submitted with it,
    /// and may travel with them; what it submits afterwards may wait for them.
    pub fn set_phase(&mut self, n_seen: u64) {
        self.phase = n_seen;
    }

    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Who has said something that makes no sense, and what.
    pub fn garbage(&self) -> Option<(Rank, &'static str)> {
        self.garbage.map(|(place, what)| (self.rank_at(place), what))
    }

    /// When it wants to be flushed again although nothing happened; microseconds.
    pub fn next_look_us(&self, now_us: u64) -> Option<u64> {
        let oldest = self.mine.values().map(|m| m.since_us).min();
        let late =
            self.replay.as_ref().filter(|r| r.is_waiting()).map(|r| r.moved_at + self.unison.late_us());
        [late, self.stall.next_us(oldest, now_us)].into_iter().flatten().min()
    }

    pub fn step(&mut self, now_us: u64, input: Input, out: &mut Vec<Output>) {
        if self.over || self.garbage.is_some() {
            return;
        }
        match input {
            Input::Submit { name, spec } => self.submit(now_us, name, spec, out),
            Input::Join => {
                self.i_joined = true;
                self.say_own(now_us, out);
            }
            Input::Leave => self.end(now_us, self.rank_at(self.tree.me), out),
            Input::End(rank) => self.end(now_us, rank, out),
            Input::Heard { from, message } => self.hear(now_us, from, message, out),
            Input::Seen(view) => self.see(now_us, view, out),
            Input::Ran(n) => {
                if let Some(root) = &mut self.root {
                    root.running = root.running.saturating_sub(n);
                }
            }
            Input::Tune(tuning) => {
                if let Some(root) = &mut self.root {
                    root.tune = Some(tuning);
                    self.freeze(now_us, out);
                }
            }
            Input::Located(spot) => self.locate(vec![(self.tree.me as u32, spot)], out),
            Input::Flush => self.look(now_us, out),
        }
        self.respond(now_us, out);
    }

    fn end(&mut self, now_us: u64, rank: Rank, out: &mut Vec<Output>) {
        self.ending.get_or_insert(rank);
        self.say_own(now_us, out);
    }

    fn submit(&mut self, now_us: u64, name: Name, spec: Spec, out: &mut Vec<Output>) {
        self.mine.insert(name.clone(), Mine { spec, since_us: now_us, phase: self.phase });
        if self.replay.is_some() {
            self.replay_own(now_us, &name, out);
        } else {
            self.announce_own(name);
        }
    }

    /// Adds this rank's own submission to what is known here.
    fn announce_own(&mut self, name: Name) {
        let spec = &self.mine[&name].spec;
        let part = match self.table.find(&name) {
            Some((id, known)) if self.is_as_agreed(spec, known) => {
                Announced::Known { table: self.table.number, id }
            }
            _ => {
                let me = self.tree.me as u32;
                let row = spec.row();
                let rows = if row.is_empty() { Vec::new() } else { vec![(me, row)] };
                let (name, spec) = (name.clone(), spec.clone());
                Announced::Full(Box::new(Merged {
                    name,
                    first: me,
                    spec,
                    conflict: None,
                    rows,
                    absent: Vec::new(),
                }))
            }
        };
        match &part {
            Announced::Known { .. } => self.n_by_number += 1,
            Announced::Full(_) => self.n_in_full += 1,
        }
        self.take(self.tree.me, name, part);
    }

    fn is_as_agreed(&self, spec: &Spec, known: &Agreed) -> bool {
        let me = self.rank_at(self.tree.me);
        let row = known.rows.get(self.tree.me);
        conflict((me, spec), (me, &known.spec)).is_none()
            && (!spec.kind.is_uneven() || row.is_some_and(|r| *r == spec.row()))
    }

    fn rank_at(&self, place: usize) -> Rank {
        self.setup.members[place]
    }

    /// What this rank wants apart from operations; while replaying, it has to stop first.
    fn say_own(&mut self, now_us: u64, out: &mut Vec<Output>) {
        if self.replay.is_some() {
            return self.freeze(now_us, out);
        }
        if let Some(rank) = self.ending {
            self.hear_leaving(rank);
        }
        if self.i_joined {
            self.hear_joined(self.tree.me);
        }
    }

    fn hear_leaving(&mut self, rank: Rank) {
        match &mut self.root {
            Some(root) => root.leaving = root.leaving.or(Some(rank)),
            None => self.up.leaving = self.up.leaving.or(Some(rank)),
        }
    }

    fn hear_joined(&mut self, place: usize) {
        if !self.joined.insert(place) {
            return;
        }
        match &mut self.root {
            Some(root) => root.joins.push(place),
            None => self.up.joined.push(place as u32),
        }
        // Ranks that waited for this one may wait no longer.
        let names: Vec<Name> = self.entries.keys().cloned().collect();
        names.into_iter().for_each(|name| self.settle(&name));
    }

    fn hear(&mut self, now_us: u64, from: usize, message: Message, out: &mut Vec<Output>) {
        if let Err(what) = self.check(from, &message) {
            self.garbage = Some((from.min(self.tree.n - 1), what));
            return;
        }
        match message {
            Message::Announce(announce) => {
                if announce.generation > self.generation {
                    self.early.push_back((from, Message::Announce(announce)));
                } else if announce.generation == self.generation && self.replay.is_none() {
                    self.hear_announce(from, announce);
                }
            }
            Message::Respond { generation, responses } => {
                if generation > self.generation {
                    self.early.push_back((from, Message::Respond { generation, responses }));
                } else {
                    self.obey(now_us, responses, out);
                }
            }
            Message::Waiting(statuses) => self.stall.hear(now_us, statuses, self.tree, out),
            Message::Located(spots) => self.locate(spots, out),
            Message::Roll => self.call_roll(now_us, out),
            Message::Report(report) => self.tell(report, out),
            word => self.hear_replaying(now_us, from, word, out),
        }
    }

    fn look(&mut self, now_us: u64, out: &mut Vec<Output>) {
        self.give_up_if_late(now_us, out);
        let oldest = self.mine.values().map(|m| m.since_us).min();
        if self.stall.is_due(oldest, now_us) {
            self.call_roll_of_all(now_us, out);
        }
        let news = &self.up;
        let Some(parent) = self.tree.parent() else { return };
        if news.submitted.is_empty() && news.joined.is_empty() && news.leaving.is_none() {
            return;
        }
        let fresh = Announce { generation: self.generation, ..Announce::default() };
        let announce = std::mem::replace(&mut self.up, fresh);
        for piece in pieces(announce) {
            out.push(Output::Send { to: parent, message: Message::Announce(piece) });
        }
    }

    /// Does what the root decided, and passes it on.
    fn obey(&mut self, now_us: u64, responses: Vec<Response>, out: &mut Vec<Output>) {
        let (generation, before) = (self.generation, out.len());
        let message = Message::Respond { generation, responses };
        let sends: Vec<Output> =
            self.tree.children().map(|to| Output::Send { to, message: message.clone() }).collect();
        let Message::Respond { responses, .. } = message else { return };
        for response in responses {
            if let Err(what) = self.apply(now_us, response, out) {
                self.garbage = Some((self.tree.parent().unwrap_or(self.tree.me), what));
                return;
            }
        }
        // Others shall hear it before what follows from it, and not at all if it is garbage.
        out.splice(before..before, sends);
    }

    fn apply(&mut self, now_us: u64, response: Response, out: &mut Vec<Output>) -> Result<(), Nonsense> {
        match response {
            Response::Run(items) => {
                let batch: Batch =
                    items.into_iter().map(|item| self.agreed(item)).collect::<Result<_, _>>()?;
                self.run(now_us, batch, false, out)?;
            }
            Response::Fail { name, fault } => {
                if self.mine.remove(&name).is_some() {
                    out.push(Output::Fail { name, fault });
                }
            }
            Response::AllJoined { last } => {
                self.joined.clear();
                self.i_joined = false;
                out.push(Output::AllJoined { last: self.rank_of(last)? });
            }
            Response::Replay { batches } => {
                let get = |id: u32| self.table.get(id).cloned().ok_or("an unknown operation number");
                let batch = |ids: Vec<u32>| ids.into_iter().map(get).collect::<Result<Batch, _>>();
                let batches = batches.into_iter().map(batch).collect::<Result<Vec<Batch>, _>>()?;
                if batches.is_empty() || batches.iter().any(|b| b.is_empty()) {
                    return Err("an empty batch");
                }
                self.begin_replay(now_us, batches, out);
            }
            Response::NewTable => self.renew_table(),
            Response::Tune(tuning) => out.push(Output::Tune(tuning)),
            Response::Over { rank, why } => {
                self.over = true;
                out.push(Output::Over { rank, why });
            }
        }
        Ok(())
    }

    fn rank_of(&self, place: u32) -> Result<Rank, Nonsense> {
        self.setup.members.get(place as usize).copied().ok_or("a rank that does not exist")
    }

    fn agreed(&mut self, item: Item) -> Result<Arc<Agreed>, Nonsense> {
        match item {
            Item::Known(id) => self.table.get(id).cloned().ok_or("an unknown operation number"),
            Item::New { agreed, remember } => {
                let agreed: Arc<Agreed> = Arc::from(agreed);
                if let Some(id) = remember {
                    self.table.remember(id, agreed.clone());
                }
                Ok(agreed)
            }
        }
    }

    /// NEG-2, as far as this rank can tell.
    fn run(
        &mut self,
        now_us: u64,
        batch: Batch,
        replayed: bool,
        out: &mut Vec<Output>,
    ) -> Result<(), Nonsense> {
        let last = batch.last().ok_or("an empty batch")?;
        if !self.i_joined && !batch.iter().all(|agreed| self.mine.contains_key(&agreed.name)) {
            return Err("an operation to run that was not submitted here");
        }
        batch.iter().for_each(|agreed| drop(self.mine.remove(&agreed.name)));
        self.stall.ran(&batch);
        self.last = Some((last.name.clone(), now_us));
        out.push(Output::Run { batch, replayed });
        Ok(())
    }
}

/// Long news in several messages, so that each stays well below the cap on frames.
fn pieces(mut announce: Announce) -> Vec<Announce> {
    const MOST: usize = 512;
    let mut all = Vec::new();
    while announce.submitted.len() > MOST {
        let rest = announce.submitted.split_off(MOST);
        let next = Announce { generation: announce.generation, submitted: rest, ..Announce::default() };
        all.push(std::mem::replace(&mut announce, next));
    }
    all.push(announce);
    all
}
