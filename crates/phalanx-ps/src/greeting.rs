//! The first letters on every connection: both sides say which tables they have opened, and how.
//!
//! - GREETING-1: either every rank has the tables, or every rank is told what hinders one of them. Offices tell servers, servers tell all
//!   offices, and offices their workers, so nobody begins with tables that others do not have.

use crate::{
    error::PsError,
    letter::{LetterKind, RowLetter},
    mail::RowWire,
    placement::Placement,
    seats::Seats,
    spec::TableSpec,
    tables::TableTerms,
};
use phalanx_core::Rank;
use phalanx_net::{World, lost::Cause};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Nothing is awaited this long without a look around.
const NAP_NS: i64 = 20_000_000;

/// One line for each thing that must be equal on all ranks.
pub fn words(specs: &[TableSpec], placement: &Placement, terms: TableTerms) -> String {
    let TableTerms { consistency, step, collects, .. } = terms;
    let per = if collects { "host" } else { "worker" };
    let mut lines =
        vec![format!("consistency and first step\t{consistency:?}, {step}, an office for each {per}")];
    for (number, spec) in specs.iter().enumerate() {
        let TableSpec { name, height, width, dtype, rule, reduction, wire, partitions, spread, raw, .. } =
            spec;
        let layout = placement.layout(number);
        let servers: Vec<u32> = (0..layout.n_partitions()).map(|p| layout.server_of(p)).collect();
        lines.push(format!(
            "{}\t{height} x {width} {dtype}, {rule:?}, {reduction:?}, wire {wire:?}, {partitions} partitions ({spread:?}) on {servers:?}{}",
            name.replace(['\t', '\n'], " "),
            if *raw { ", raw rows" } else { "" }
        ));
    }
    lines.join("\n")
}

/// Exchanges greetings on every wire. The first difference is an error on both sides; that, and what hinders this rank (`fits`), is one
/// on all ranks. Nothing is compared before everything was said, so that a rank that leaves because of it has told its own.
pub fn exchange(
    world: &World,
    wires: &mut BTreeMap<Rank, RowWire>,
    seats: &Seats,
    specs: &[TableSpec],
    mine: &str,
    fits: Result<(), PsError>,
) -> Result<(), PsError> {
    let me = world.rank();
    let (is_office, is_server) =
        (|rank: Rank| seats.office_at(rank).is_some(), |rank: Rank| seats.server_at(rank).is_some());
    let among = |are_asked: bool, which: &dyn Fn(Rank) -> bool| -> Vec<Rank> {
        wires.keys().copied().filter(|&peer| are_asked && which(peer)).collect()
    };
    let everybody = among(true, &|_| true);
    let servers = among(is_office(me), &is_server);
    let offices = among(is_server(me), &is_office);
    let workers = among(is_office(me), &|peer| !is_office(peer) && !is_server(peer));
    let office = among(!is_office(me) && !is_server(me), &|_| true);
    let mut round = Round { world, wires, specs, start: Instant::now() };
    let letter_of = |verdict: &Option<(u64, String)>, else_: &str| match verdict {
        None => RowLetter::words(LetterKind::Hello, 0, else_),
        Some((rank, why)) => RowLetter::words(LetterKind::Refused, *rank, why),
    };
    // Of several ranks that something hinders, the first is the one that is named.
    let first_of = |verdict: Option<(u64, String)>, heard: &BTreeMap<Rank, RowLetter>| {
        let refused = heard.values().filter(|letter| letter.kind == LetterKind::Refused);
        verdict.into_iter().chain(refused.map(|letter| (letter.ticket, letter.text()))).min()
    };
    let hindered =
        |own: &Result<(), PsError>| own.as_ref().err().map(|why| (u64::from(me.0), why.to_string()));
    let said = round.swap(&everybody, || letter_of(&hindered(&fits), mine), &everybody)?;
    let mut greeted = said.iter().filter(|(_, letter)| letter.kind == LetterKind::Hello);
    let own =
        fits.and_then(|()| greeted.try_for_each(|(&peer, letter)| compare(me, mine, peer, &letter.text())));
    let mut verdict = first_of(hindered(&own), &said);
    for (to, from) in [(&servers, &offices), (&offices, &servers), (&workers, &office)] {
        let heard = round.swap(to, || letter_of(&verdict, ""), from)?;
        verdict = first_of(verdict, &heard);
    }
    own?;
    verdict.map_or(Ok(()), |(_, why)| Err(PsError::Unopened(why)))
}

/// Letters that go and come before tables are open.
struct Round<'a> {
    world: &'a World,
    wires: &'a mut BTreeMap<Rank, RowWire>,
    specs: &'a [TableSpec],
    start: Instant,
}

impl Round<'_> {
    /// Sends a letter to some, and gives the next one of others.
    fn swap(
        &mut self,
        to: &[Rank],
        letter: impl Fn() -> RowLetter,
        from: &[Rank],
    ) -> Result<BTreeMap<Rank, RowLetter>, PsError> {
        let until = self.start + self.world.config().timeout;
        for peer in to {
            self.wires.get_mut(peer).expect("peers have wires").send(letter());
        }
        let mut said: BTreeMap<Rank, RowLetter> = BTreeMap::new();
        let mut silent: BTreeSet<Rank> = from.iter().copied().collect();
        while !silent.is_empty() || self.wires.values().any(RowWire::is_leaving) {
            for (&peer, wire) in self.wires.iter_mut() {
                let lost = |why: String| PsError::ServerLost {
                    rank: peer,
                    serves: "tables that were being opened".into(),
                    why,
                };
                wire.flush().map_err(|e| lost(e.to_string()))?;
                if !silent.contains(&peer) {
                    continue;
                }
                if let Some(letter) = wire.receive(self.specs).map_err(|e| lost(e.to_string()))? {
                    said.insert(peer, letter);
                    silent.remove(&peer);
                }
            }
            let verdict = silent.iter().find_map(|peer| self.world.casualties().verdict(*peer));
            if let Some(doom) = verdict {
                return Err(doom.into());
            }
            if Instant::now() >= until {
                let missing = silent.iter().map(|r| format!("rank {r} has not opened them"));
                let missing = missing.collect::<Vec<_>>().join(", ");
                let waited_s = self.start.elapsed().as_secs_f64();
                return Err(PsError::Late { table: self.specs[0].name.clone(), step: 0, waited_s, missing });
            }
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            for (peer, wire) in self.wires.iter() {
                let mut wanted = PollFlags::empty();
                wanted.set(PollFlags::IN, silent.contains(peer));
                wanted.set(PollFlags::OUT, wire.is_leaving());
                if !wanted.is_empty() {
                    fds.push(PollFd::new(&wire.link, wanted));
                }
            }
            if !fds.is_empty() {
                // An interrupted wait is a short one.
                let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: NAP_NS }));
            }
        }
        Ok(said)
    }
}

fn compare(rank: Rank, mine: &str, other: Rank, theirs: &str) -> Result<(), PsError> {
    if mine == theirs {
        return Ok(());
    }
    let (mut a, mut b) = (mine.lines(), theirs.lines());
    loop {
        let (mine, theirs) = (a.next(), b.next());
        if mine != theirs || mine.is_none() {
            let cut = |line: Option<&str>| {
                let (name, what) = line.unwrap_or("\tabsent").split_once('\t').unwrap_or(("", "absent"));
                (name.to_string(), what.to_string())
            };
            let ((a_name, mine), (b_name, theirs)) = (cut(mine), cut(theirs));
            let table = if a_name.is_empty() { b_name.clone() } else { a_name.clone() };
            let named = |name: &str, what: String| match name == table || name.is_empty() {
                true => what,
                false => format!("{name:?}"),
            };
            let (mine, theirs) = (named(&a_name, mine), named(&b_name, theirs));
            return Err(PsError::Differs { table, rank, mine, other, theirs });
        }
    }
}

/// Whether a rank is lost for those who need it.
pub fn is_lost(world: &World, rank: Rank) -> bool {
    world.casualties().cause(rank).is_some_and(|cause| cause != Cause::Left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;

    fn of(specs: &[TableSpec]) -> String {
        words(specs, &Placement::greedy(specs, 2), TableTerms::default())
    }

    #[test]
    fn the_first_difference_is_named_with_both_sides() {
        let compare = |a: &[TableSpec], b: &[TableSpec]| compare(Rank(0), &of(a), Rank(3), &of(b));
        let wide = TableSpec { width: 5, ..spec("a") };
        assert!(compare(&[spec("a")], &[spec("a")]).is_ok());
        let error = compare(&[spec("a")], &[wide]).unwrap_err().to_string();
        assert!(error.starts_with("table \"a\" is 64 x 4 f32, "), "{error}");
        assert!(error.contains(" on rank 0 and 64 x 5 f32, "), "{error}");
        let error = compare(&[spec("a")], &[spec("a"), spec("b")]).unwrap_err().to_string();
        assert!(error.starts_with("table \"b\" is absent on rank 0 and 64 x 4"), "{error}");
        let error = compare(&[spec("b"), spec("a")], &[spec("a"), spec("b")]).unwrap_err().to_string();
        assert!(error.contains("and \"a\" on rank 3"), "{error}");
    }
}
