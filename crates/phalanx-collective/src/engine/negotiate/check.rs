//! Validates messages of neighbours. Neighbours are authenticated, but may have bugs.
//!
//! - CHECK-1: no message makes a node panic or decide anything for ranks that do not exist: it is refused, and its sender is named.

use super::{
    Negotiator,
    message::{Announce, Announced, Merged, Message},
};
use crate::engine::spec::{Form, Spec};

/// Why a message is garbage.
pub type Nonsense = &'static str;

/// No dimension is longer, and no tensor larger, than this.
const HUGE: u128 = 1 << 56;

impl Negotiator {
    /// What can be said about a message before anything is done because of it.
    pub(super) fn check(&self, from: usize, message: &Message) -> Result<(), Nonsense> {
        let is_child = self.tree.children().contains(&from);
        match message {
            Message::Announce(_)
            | Message::Ready { .. }
            | Message::Final { .. }
            | Message::Waiting(_)
            | Message::Located(_)
                if !is_child =>
            {
                Err("a message for a parent, from a rank that is not a child")
            }
            Message::Respond { .. }
            | Message::Commit { .. }
            | Message::Freeze { .. }
            | Message::Stop { .. }
            | Message::Roll
            | Message::Report(_)
                if self.tree.parent() != Some(from) =>
            {
                Err("a message of a parent, from another rank")
            }
            // Of another generation: void, or checked when its time has come.
            Message::Announce(announce) if announce.generation == self.generation => {
                self.check_announce(from, announce)
            }
            Message::Respond { generation, .. }
                if *generation <= self.generation && self.replay.is_some() =>
            {
                Err("a decision while all ranks replay")
            }
            _ => Ok(()),
        }
    }

    fn check_announce(&self, from: usize, announce: &Announce) -> Result<(), Nonsense> {
        let below = |place: &u32| self.tree.branch(*place as usize) == Some(from) && self.exists(*place);
        if !announce.joined.iter().all(below) {
            return Err("a message about a rank that is not below the sender");
        }
        announce.submitted.iter().try_for_each(|part| match part {
            Announced::Known { table, id } => {
                self.table.resolve(*table, *id).map(|_| ()).ok_or("an unknown operation number")
            }
            Announced::Full(merged) => self.check_merged(merged),
        })
    }

    fn check_merged(&self, merged: &Merged) -> Result<(), Nonsense> {
        let places = merged.rows.iter().map(|(place, _)| place).chain(&merged.absent).chain([&merged.first]);
        if !places.into_iter().all(|place| self.exists(*place)) {
            return Err("a submission of a rank that does not exist");
        }
        if !is_possible(&merged.spec) || merged.rows.iter().any(|(_, row)| !fits(row, &merged.spec)) {
            return Err("a tensor that is too large for any memory");
        }
        Ok(())
    }

    pub(super) fn exists(&self, place: u32) -> bool {
        (place as usize) < self.tree.n
    }
}

/// Bytes of a tensor; dimensions of no length count as one, because rows are counted without them.
fn at_most(form: &Form) -> u128 {
    form.shape.iter().fold(form.dtype.size() as u128, |n, dim| n.saturating_mul(u128::from(*dim).max(1)))
}

fn is_possible(spec: &Spec) -> bool {
    spec.forms.iter().fold(0u128, |sum, form| sum.saturating_add(at_most(form))) < HUGE
}

fn fits(row: &[u64], spec: &Spec) -> bool {
    let rows = row.iter().fold(0u128, |sum, n| sum + u128::from(*n));
    let widest = spec.forms.iter().map(|f| at_most(f) / u128::from(f.n_rows()).max(1)).max().unwrap_or(1);
    rows.saturating_mul(widest) < HUGE
}
