//! Small rooms: a file of more than 500 lines of product code needs an entry here, which may only shrink.

use super::{Complaint, source::Kind, source::Source};

const LIMIT: usize = 500;

/// Files above the limit and how long they are. Never raise a number.
const LONG: &[(&str, usize)] = &[];

pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let lengths: Vec<(&str, usize)> = sources
        .iter()
        .filter(|s| s.kind == Kind::Product)
        .map(|s| (s.path.as_str(), s.n_product_lines))
        .collect();
    judge(&lengths, LONG)
}

fn judge(lengths: &[(&str, usize)], long: &[(&str, usize)]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for &(path, n) in lengths {
        let entry = long.iter().find(|(p, _)| *p == path).map(|(_, most)| *most);
        let what = match entry {
            None if n > LIMIT => {
                format!("{n} lines of product code; split it by idea (the limit is {LIMIT})")
            }
            Some(most) if n > most => format!("grew from {most} to {n} lines; long files may only shrink"),
            Some(_) if n <= LIMIT => "is short again: take it off the list in tidy/length.rs".into(),
            Some(most) if n < most => {
                format!("shrank from {most} to {n} lines: lower its entry in tidy/length.rs")
            }
            _ => continue,
        };
        found.push(Complaint::new(path, 0, what));
    }
    for (path, _) in long {
        if !lengths.iter().any(|(p, _)| p == path) {
            found.push(Complaint::new(path, 0, "is gone: take it off the list in tidy/length.rs"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_may_only_shrink() {
        let says = |n, long: &[(&str, usize)]| judge(&[("a.rs", n)], long).pop().map(|c| c.what);
        assert_eq!(says(500, &[]), None);
        assert!(says(501, &[]).unwrap().contains("split it"));
        assert_eq!(says(600, &[("a.rs", 600)]), None);
        assert!(says(601, &[("a.rs", 600)]).unwrap().contains("grew from 600 to 601"));
        assert!(says(599, &[("a.rs", 600)]).unwrap().contains("lower its entry"));
        assert!(says(400, &[("a.rs", 600)]).unwrap().contains("take it off"));
        assert!(judge(&[], &[("b.rs", 600)])[0].what.contains("gone"));
    }
}
