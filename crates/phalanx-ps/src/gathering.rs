//! Rows that an office has asked for, and the workers that wait for them.

use crate::values::RowValues;
use phalanx_core::Rank;
use std::collections::{BTreeSet, HashMap};

/// Rows that came or are on their way.
#[derive(Debug, Default)]
pub struct Gathering {
    /// Only looked up, never walked.
    pub slots: HashMap<u32, u32>,
    pub values: RowValues,
    /// The letter that brings each slot; 0 once it is there.
    pub bringer: Vec<u64>,
    pub waits: Vec<Wait>,
}

/// A worker that waits for rows.
#[derive(Debug)]
pub struct Wait {
    pub worker: Rank,
    pub ticket: u64,
    pub slots: Vec<u32>,
    /// The letters that are still out.
    pub missing: BTreeSet<u64>,
}

impl Gathering {
    /// A letter brought these slots.
    pub fn bring(&mut self, ticket: u64, slots: &[u32], values: &RowValues, row_bytes: usize) {
        for (&slot, row) in slots.iter().zip(values.bytes().chunks_exact(row_bytes)) {
            let at = slot as usize * row_bytes;
            self.values.bytes_mut()[at..at + row_bytes].copy_from_slice(row);
            self.bringer[slot as usize] = 0;
        }
        for wait in &mut self.waits {
            wait.missing.remove(&ticket);
        }
    }

    /// Takes the waits for which all rows are there, with their rows.
    pub fn take_ready(&mut self, row_bytes: usize) -> Vec<(Wait, RowValues)> {
        let ready: Vec<Wait> = self.waits.extract_if(.., |wait| wait.missing.is_empty()).collect();
        let rows = |wait: Wait| {
            let mut values = RowValues::zeros(wait.slots.len() * row_bytes);
            for (to, &slot) in values.bytes_mut().chunks_exact_mut(row_bytes).zip(&wait.slots) {
                let at = slot as usize * row_bytes;
                to.copy_from_slice(&self.values.bytes()[at..at + row_bytes]);
            }
            (wait, values)
        };
        ready.into_iter().map(rows).collect()
    }
}
