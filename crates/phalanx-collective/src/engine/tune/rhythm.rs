//! Finds where a step of a program begins, from the names of operations.
//!
//! Programs begin with operations that run once: parameters are broadcast, ranks compare what they have. A step begins with the first name that
//! repeats. If that name stops repeating while another one repeats, the other one marks the beginning of steps from then on.

use crate::engine::spec::Name;
use std::collections::BTreeMap;

/// Another operation has come so often that the one with which steps began is gone. More than epochs of evaluation often have, and few enough to
/// be found soon.
pub const GONE: u32 = 64;
/// The most names that are kept; operations that do not come again are forgotten then.
const MOST_NAMES: usize = 100_000;

/// What an operation is to the rhythm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// A first step begins with it.
    First,
    /// The next step begins with it.
    Step,
    Within,
}

#[derive(Debug, Default)]
pub struct Rhythm {
    /// The operation with which steps begin.
    first: Option<Name>,
    /// How often every other one came since.
    others: BTreeMap<Name, u32>,
}

impl Rhythm {
    pub fn is_found(&self) -> bool {
        self.first.is_some()
    }

    pub fn hear(&mut self, name: &Name) -> Beat {
        if self.first.as_ref() == Some(name) {
            self.others.clear();
            return Beat::Step;
        }
        if self.others.len() >= MOST_NAMES {
            self.others.clear();
        }
        let n = self.others.entry(name.clone()).or_default();
        *n += 1;
        let enough = if self.first.is_some() { GONE } else { 2 };
        if *n < enough {
            return Beat::Within;
        }
        self.first = Some(name.clone());
        self.others.clear();
        Beat::First
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beats(names: &[&str]) -> Vec<Beat> {
        let mut rhythm = Rhythm::default();
        names.iter().map(|name| rhythm.hear(&(*name).into())).collect()
    }

    #[test]
    fn a_step_begins_with_the_first_name_that_comes_again() {
        use Beat::{First, Step, Within};
        let heard = beats(&["once", "a", "b", "a", "b", "a", "b", "other", "a"]);
        assert_eq!(heard, [Within, Within, Within, First, Within, Step, Within, Within, Step], "TUNE-3");
    }

    #[test]
    fn evaluation_in_between_changes_nothing_and_another_program_does() {
        let mut rhythm = Rhythm::default();
        let mut n_firsts = 0;
        let mut hear = |names: &[&str]| {
            let heard: Vec<Beat> = names.iter().map(|name| rhythm.hear(&(*name).into())).collect();
            n_firsts += heard.iter().filter(|b| **b == Beat::First).count();
            n_firsts
        };
        for _ in 0..20 {
            assert_eq!(hear(&["a"; 10]), 1);
            assert_eq!(hear(&["eval"; GONE as usize - 1]), 1, "it comes back");
        }
        assert_eq!(hear(&["x"; GONE as usize]), 2, "TUNE-3: it does not");
        assert_eq!(hear(&["x"; 10]), 2);
    }
}
