//! A worker's line to the office of its host: letters, their answers, and what is said when a rank that is needed is lost.

use crate::{
    error::PsError,
    greeting,
    letter::{LetterKind, RowLetter},
    mail::RowWire,
    placement::Placement,
    seats::{Seats, road},
    shard::Shard,
    spec::TableSpec,
    station::Station,
};
use phalanx_core::Rank;
use phalanx_net::{
    World,
    lost::{Cause, Doom, Lost},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Nothing is awaited this long without a look around.
const NAP: Duration = Duration::from_millis(20);

/// One rank's line; on a rank that only serves, its station alone.
#[derive(Debug)]
pub struct Line {
    pub world: Arc<World>,
    pub specs: Arc<[TableSpec]>,
    pub placement: Placement,
    pub seats: Seats,
    pub stream: u32,
    /// To the office, where that is another process's.
    pub wire: Option<RowWire>,
    pub station: Option<Station>,
    pub next_ticket: u64,
    /// Why nothing more can be asked.
    pub failed: Option<LineEnd>,
    /// After the end: how workers go on, as their goodbyes said.
    pub recut: Option<(u64, u32)>,
}

/// Why a line is of no use any more. The first reason stays.
#[derive(Clone, Debug)]
pub enum LineEnd {
    /// Something was refused, in these words. Everybody can still say goodbye.
    Refused(String),
    /// A rank that is needed is lost, or the world is over.
    Lost,
}

impl Line {
    /// Sends a letter and waits for its answer.
    pub fn ask(&mut self, letter: RowLetter) -> Result<RowLetter, PsError> {
        let mut answers = self.ask_all(vec![letter])?;
        Ok(answers.pop().expect("every letter has its answer"))
    }

    /// Sends letters, and waits until all of them are answered.
    pub fn ask_all(&mut self, mut letters: Vec<RowLetter>) -> Result<Vec<RowLetter>, PsError> {
        let first = self.next_ticket + 1;
        let mut asked = Vec::with_capacity(letters.len());
        for letter in &mut letters {
            self.next_ticket += 1;
            letter.ticket = self.next_ticket;
            asked.push((letter.kind, letter.table as usize, letter.step));
        }
        letters.into_iter().try_for_each(|letter| self.send(letter))?;
        let mut answers: Vec<Option<RowLetter>> = vec![None; asked.len()];
        let start = Instant::now();
        while let Some(at) = answers.iter().position(Option::is_none) {
            let (kind, table, step) = asked[at];
            match self.receive()? {
                Some(letter) if letter.kind == LetterKind::Refused => {
                    return Err(self.refused(letter.text()));
                }
                Some(letter) if letter.kind == LetterKind::Bye => return Err(self.lost()),
                Some(letter) => {
                    let slot = letter.ticket.checked_sub(first).map(|at| at as usize);
                    // The answer to a question that was given up has no slot.
                    if let Some(slot) = slot.and_then(|at| answers.get_mut(at)) {
                        *slot = Some(letter);
                    }
                }
                None if start.elapsed() > self.world.config().timeout => {
                    // A norm is that of the step that is asked for; rows are those after the step before.
                    let pushed = if kind == LetterKind::Norm { step } else { step.saturating_sub(1) };
                    let missing = format!("a worker has not pushed step {pushed}, or a server is slow");
                    let waited_s = start.elapsed().as_secs_f64();
                    return Err(PsError::Late {
                        table: self.specs[table].name.clone(),
                        step,
                        waited_s,
                        missing,
                    });
                }
                None => {}
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    pub fn send(&mut self, letter: RowLetter) -> Result<(), PsError> {
        match &self.failed {
            _ if !self.world.is_ours() => Err(PsError::Forked),
            Some(LineEnd::Refused(text)) => Err(PsError::Refused(text.clone())),
            Some(LineEnd::Lost) => Err(self.lost()),
            None => self.post(letter),
        }
    }

    fn post(&mut self, letter: RowLetter) -> Result<(), PsError> {
        if let Some(station) = &self.station {
            station.counter.post(letter);
            return Ok(());
        }
        let Some(wire) = &mut self.wire else { return Err(PsError::Closed) };
        wire.send(letter);
        let start = Instant::now();
        loop {
            let wire = self.wire.as_mut().expect("it was there above");
            if wire.flush().is_err() {
                return Err(self.lost());
            }
            if !wire.is_leaving() {
                return Ok(());
            }
            wait(wire, PollFlags::OUT);
            self.look_around()?;
            if start.elapsed() > self.world.config().timeout {
                return Err(self.lost());
            }
        }
    }

    /// The next letter, or none after a short wait.
    fn receive(&mut self) -> Result<Option<RowLetter>, PsError> {
        if let Some(station) = &self.station {
            let has_ended = station.has_ended();
            let came = station.counter.from.await_one(NAP);
            if came.is_none() {
                self.look_around()?;
                if has_ended {
                    return Err(self.lost());
                }
            }
            return Ok(came);
        }
        let Some(wire) = &mut self.wire else { return Err(PsError::Closed) };
        match wire.receive(&self.specs) {
            Ok(Some(letter)) => return Ok(Some(letter)),
            Ok(None) => wait(wire, PollFlags::IN),
            Err(_) => return Err(self.lost()),
        }
        self.look_around()?;
        Ok(None)
    }

    fn look_around(&mut self) -> Result<(), PsError> {
        let casualties = self.world.casualties();
        if !casualties.any() {
            return Ok(());
        }
        let needed = self.seats.servers().iter().chain(self.seats.offices().iter().map(|(rank, _)| rank));
        let is_lost = needed.clone().any(|rank| greeting::is_lost(&self.world, *rank));
        if casualties.doomed().is_some() || is_lost { Err(self.lost()) } else { Ok(()) }
    }

    fn refused(&mut self, text: String) -> PsError {
        match self.world.casualties().doomed() {
            Some(_) => self.lost(),
            None => {
                self.failed = Some(LineEnd::Refused(text.clone()));
                PsError::Refused(text)
            }
        }
    }

    /// Why this rank's tables cannot be used any more; tells the others.
    fn lost(&mut self) -> PsError {
        self.failed = Some(LineEnd::Lost);
        let casualties = self.world.casualties();
        if let Some(doom) = casualties.doomed() {
            return self.named(doom);
        }
        let office = self.seats.office_of(self.world.rank()).map(|o| self.seats.offices()[o as usize].0);
        let needed: Vec<Rank> = office.into_iter().chain(self.seats.servers().iter().copied()).collect();
        let verdict = needed.iter().find_map(|rank| {
            let cause = casualties.cause(*rank).filter(|_| *rank != self.world.rank())?;
            Some(Doom::Lost(Lost { rank: *rank, cause }))
        });
        let doom = verdict.or_else(|| {
            let cause = Cause::Disconnected;
            office.filter(|o| *o != self.world.rank()).map(|o| Doom::Lost(casualties.suspect(o, cause)))
        });
        match doom {
            Some(doom) => {
                let agreed = self.world.doom(doom);
                self.named(agreed)
            }
            None => PsError::Closed,
        }
    }

    fn named(&self, doom: Doom) -> PsError {
        let here = self.world.topology();
        let is_far = |rank: &&Rank| here.host_of(**rank) != here.host_of(self.world.rank());
        let gave_up = matches!(&doom, Doom::GaveUp { rank, .. } if *rank == self.world.rank());
        if gave_up
            && self.world.casualties().is_cut_off()
            && let Some(&rank) = self.seats.servers().iter().find(is_far)
            && let Some(server) = self.seats.server_at(rank)
        {
            let why =
                format!("this host, of rank {}, does not reach the launcher any more", self.world.rank());
            return PsError::ServerLost {
                rank,
                serves: Shard::serves(&self.specs, &self.placement, server),
                why,
            };
        }
        let server = doom.culprit().and_then(|rank| Some((rank, self.seats.server_at(rank)?)));
        match (server, &doom) {
            (Some((rank, server)), Doom::Lost(lost)) => PsError::ServerLost {
                rank,
                serves: Shard::serves(&self.specs, &self.placement, server),
                why: lost.cause.to_string(),
            },
            _ => doom.into(),
        }
    }

    /// Says goodbye, and waits for the end of the own station, at most that long.
    pub fn end(&mut self, at_most: Option<Duration>) -> Result<(), PsError> {
        self.end_with(RowLetter::new(LetterKind::Bye, 0, 0), at_most)
    }

    /// The same; the goodbye says with which step and how many partitions the tables are opened next.
    pub fn end_recut(&mut self, step: u64, partitions: u32, at_most: Duration) -> Result<(), PsError> {
        let number = f64::from(partitions);
        self.end_with(RowLetter { number, ..RowLetter::new(LetterKind::Bye, 0, step) }, Some(at_most))
    }

    fn end_with(&mut self, bye: RowLetter, at_most: Option<Duration>) -> Result<(), PsError> {
        if self.wire.is_none() && self.station.is_none() {
            return Ok(());
        }
        if !self.world.is_ours() {
            return Err(PsError::Forked);
        }
        let is_worker = self.world.is_worker(self.world.rank());
        // Where something was refused, the others still wait for the goodbye.
        let said = match self.failed {
            Some(LineEnd::Lost) => Ok(()),
            _ if is_worker => self.post(bye),
            _ => Ok(()),
        };
        let start = Instant::now();
        let until = at_most.map(|at_most| start + at_most);
        let ended = match self.station.take() {
            None => Ok(()),
            Some(mut station) => {
                let far = Instant::now() + Duration::from_secs(365 * 24 * 3600);
                let world = self.world.clone();
                let is_doomed = move || world.casualties().doomed().is_some();
                let has_ended = station.join_until(until.unwrap_or(far), is_doomed);
                self.recut = station.counter.recut();
                match has_ended {
                    true => self.world.casualties().doomed().map_or(Ok(()), |doom| Err(self.named(doom))),
                    false if self.world.casualties().doomed().is_some() => Err(self.lost()),
                    false => Err(PsError::Unclosed {
                        waited_s: start.elapsed().as_secs_f64(),
                        ranks: station.counter.awaited(),
                    }),
                }
            }
        };
        self.wire = None;
        self.world.close_links(self.stream);
        said.and(ended)
    }

    /// Ends without a goodbye and without a wait, because nobody closed the tables: the others learn that, not of an orderly end.
    pub fn abandon(&mut self) {
        let (wire, station) = (self.wire.take(), self.station.take());
        if wire.is_none() && station.is_none() {
            return;
        }
        if !self.world.is_ours() {
            // The thread and the connections are the parent's.
            std::mem::forget((wire, station));
            return;
        }
        if self.world.casualties().doomed().is_none() {
            let why = match &self.failed {
                _ if std::thread::panicking() => "the thread that owned its tables panicked".to_string(),
                Some(LineEnd::Refused(text)) => text.clone(),
                _ => "its tables were dropped and not closed".to_string(),
            };
            self.world.doom(Doom::GaveUp { rank: self.world.rank(), why });
        }
        self.world.close_links(self.stream);
    }
}

fn wait(wire: &RowWire, what: PollFlags) {
    let mut fds = [PollFd::new(&wire.link, what)];
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() }));
}

/// Connections of this rank: to its office, or between its station and those it writes to.
pub fn connect(world: &World, seats: &Seats, stream: u32) -> Result<BTreeMap<Rank, RowWire>, PsError> {
    let me = world.rank();
    let mut peers: Vec<Rank> = Vec::new();
    match (seats.office_at(me), seats.server_at(me)) {
        (None, None) => {
            let office = seats.office_of(me).expect("every worker is on a host");
            peers.push(seats.offices()[office as usize].0);
        }
        (office, server) => {
            if let Some(office) = office {
                peers.extend(seats.offices()[office as usize].1.iter().copied());
                peers.extend(seats.servers());
            }
            if server.is_some() {
                peers.extend(seats.offices().iter().map(|(rank, _)| *rank));
            }
        }
    }
    peers.sort_unstable();
    peers.dedup();
    let open = |peer: Rank| Ok((peer, RowWire::new(world.link(peer, stream)?, road(seats, me, peer))));
    peers.into_iter().filter(|peer| *peer != me).map(open).collect()
}
