//! Merges submissions of this node and of the nodes below it: the submissions under one name become one, which is passed on.

use super::{
    Entry, Negotiator,
    agree::conflict,
    message::{Announce, Announced, Merged},
};
use crate::engine::spec::Name;

impl Negotiator {
    pub(super) fn hear_announce(&mut self, from: usize, announce: Announce) {
        for place in announce.joined {
            self.hear_joined(place as usize);
        }
        if let Some(rank) = announce.leaving {
            self.hear_leaving(rank);
        }
        for part in announce.submitted {
            let name = match &part {
                Announced::Full(merged) => Some(merged.name.clone()),
                Announced::Known { table, id } => self.table.resolve(*table, *id).map(|a| a.name.clone()),
            };
            let name = name.expect("CHECK-1: it was resolved before");
            self.take(from, name, part);
        }
    }

    pub(super) fn take(&mut self, from: usize, name: Name, part: Announced) {
        self.entries.entry(name.clone()).or_default().parts.insert(from, part);
        self.settle(&name);
    }

    /// Passes a name on once every rank here and below has submitted it, or joined.
    pub(super) fn settle(&mut self, name: &Name) {
        let Some(entry) = self.entries.get(name) else { return };
        let me = self.tree.me;
        let n_joined = |child| self.joined.iter().filter(|&&p| self.tree.branch(p) == Some(child)).count();
        let here = entry.parts.contains_key(&me) || self.joined.contains(&me);
        let below = |c| entry.parts.contains_key(&c) || n_joined(c) == self.tree.weight(c);
        if !here || !self.tree.children().all(below) {
            return;
        }
        let entry = self.entries.remove(name).expect("it was there a moment ago");
        let whole = self.merge(entry);
        match &mut self.root {
            Some(root) => root.complete.push(whole),
            None => self.up.submitted.push(whole),
        }
    }

    fn merge(&self, entry: Entry) -> Announced {
        let all_known_alike = {
            let mut parts = entry.parts.values();
            let first = parts.next().expect("an entry begins with a part");
            matches!(first, Announced::Known { .. }) && parts.all(|p| p == first)
        };
        if all_known_alike && self.joined.is_empty() {
            return entry.parts.into_values().next().expect("an entry begins with a part");
        }
        // A rank that brought no part has joined.
        let silent = |p: usize| !entry.parts.contains_key(&self.tree.branch(p).unwrap_or(self.tree.me));
        let mut absent: Vec<u32> = self.joined.iter().filter(|p| silent(**p)).map(|&p| p as u32).collect();
        // Parts say who their first rank is; the lowest one speaks for all.
        let mut all: Vec<Merged> =
            entry.parts.into_iter().map(|(from, part)| self.expand(from, part)).collect();
        all.sort_by_key(|m| m.first);
        all.iter_mut().for_each(|m| absent.append(&mut m.absent));
        absent.sort_unstable();
        let rank_of = |m: &Merged| self.rank_at(m.first as usize);
        let merged = all.into_iter().reduce(|mut a, b| {
            let new = conflict((rank_of(&a), &a.spec), (rank_of(&b), &b.spec));
            a.conflict = [a.conflict, b.conflict, new].into_iter().flatten().min();
            a.rows.extend(b.rows);
            a
        });
        Announced::Full(Box::new(Merged { absent, ..merged.expect("an entry begins with a part") }))
    }

    /// TABLE-2. What waits here for others is kept in full: it may wait longer than numbers last.
    pub(super) fn renew_table(&mut self) {
        for (name, entry) in std::mem::take(&mut self.entries) {
            let in_full = |(from, part)| (from, Announced::Full(Box::new(self.expand(from, part))));
            let parts = entry.parts.into_iter().map(in_full).collect();
            self.entries.insert(name, Entry { parts });
        }
        self.table.renew();
    }

    /// In full what a neighbour said in short: what was agreed, with the rows of the places for which it speaks.
    fn expand(&self, from: usize, part: Announced) -> Merged {
        let (table, id) = match part {
            Announced::Full(merged) => return *merged,
            Announced::Known { table, id } => (table, id),
        };
        let agreed = self.table.resolve(table, id).expect("TABLE-2");
        let speaks_for =
            |p: usize| if from == self.tree.me { p == from } else { self.tree.branch(p) == Some(from) };
        let rows = agreed.rows.iter().enumerate().filter(|(p, r)| !r.is_empty() && speaks_for(*p));
        Merged {
            name: agreed.name.clone(),
            first: from as u32,
            spec: agreed.spec.clone(),
            conflict: None,
            rows: rows.map(|(p, r)| (p as u32, r.clone())).collect(),
            absent: Vec::new(),
        }
    }
}
