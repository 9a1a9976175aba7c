//! Texts as numbers of words.

use super::packed::{Unreadable, unpacked};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

/// A text as numbers of its most frequent words, the most frequent being 1; all others are 0.
pub fn words(file: &Path, n_words: usize) -> Result<Vec<i64>, Unreadable> {
    let text = String::from_utf8_lossy(&unpacked(file)?).to_lowercase();
    Ok(numbered(&text, n_words))
}

fn numbered(text: &str, n_words: usize) -> Vec<i64> {
    let words = || text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|w| !w.is_empty());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    words().for_each(|w| *counts.entry(w).or_default() += 1);
    let mut order: Vec<(&str, usize)> = counts.into_iter().collect();
    order.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    let numbers: HashMap<&str, i64> =
        order.iter().take(n_words.saturating_sub(1)).zip(1..).map(|(&(w, _), i)| (w, i)).collect();
    words().map(|w| numbers.get(w).copied().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_words_have_small_numbers() {
        assert_eq!(numbered("the cat, the dog's the cat", 3), [1, 2, 1, 0, 1, 2]);
    }

    #[test]
    fn the_text_of_the_project_is_there() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/kjv.txt.gz");
        let numbers = words(&file, 100).expect("a text");
        assert!(numbers.len() > 100_000 && numbers.iter().all(|n| (0..100).contains(n)));
        assert!(words(Path::new("none"), 3).is_err());
    }
}
