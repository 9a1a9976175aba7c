//! Reads lists in which Slurm names hosts (`n[0-1,05-07],m3`) and counts per host (`2(x2),1`). Pure.
//!
//! - LIST-1: a list is refused before it is expanded if it names more than [`MOST`] hosts: one line of text could fill the memory.
//! - LIST-2: a name consists of letters, digits, `.`, `-` and `_`, and does not begin with `-`: it becomes a word of a command.

use std::ops::RangeInclusive;

/// More hosts, or counts, than any list has (LIST-1).
pub const MOST: u64 = 1 << 16;

/// What is wrong with a list, and at which of its characters, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {fault}")]
pub struct ListError {
    pub at: usize,
    pub fault: ListFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListFault {
    #[error("a name is missing")]
    NoName,
    #[error("{0:?} is no part of a name")]
    BadCharacter(char),
    #[error("a name does not begin with -")]
    Dash,
    #[error("a bracket is not closed")]
    Open,
    #[error("a number is missing")]
    NoNumber,
    #[error("a number is too large")]
    LargeNumber,
    #[error("a range ends before it begins")]
    Backwards,
    #[error("a count is a number from 1, as in 2 or 2(x3)")]
    BadCount,
    #[error("it names more than {MOST} hosts")]
    TooMany,
}

/// Every host of a list, in its order. Of several brackets in one name the last one counts fastest.
pub fn hosts(list: &str) -> Result<Vec<String>, ListError> {
    let names = names(list)?;
    let mut total = 0;
    for name in &names {
        total += name.n_hosts();
        if total > MOST {
            return Err(ListError { at: name.at, fault: ListFault::TooMany });
        }
    }
    Ok(names.iter().flat_map(NamePattern::expand).collect())
}

/// The first host of a list.
pub fn first(list: &str) -> Result<String, ListError> {
    let names = names(list)?;
    // A list has a name, a bracket a number: the parser has seen to both.
    Ok(names[0].parts.iter().map(NamePart::first).collect())
}

/// Every count of a list such as `2(x2),1`, in its order.
pub fn counts(list: &str) -> Result<Vec<u32>, ListError> {
    let mut all = Vec::new();
    let mut at = 1;
    for entry in list.split(',') {
        let bad = ListError { at, fault: ListFault::BadCount };
        let (count, times) = match entry.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or(bad.clone())?),
            None => (entry, "1"),
        };
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u32>().ok().filter(|&n| digits && n > 0).ok_or(bad.clone())
        };
        let (count, times) = (number(count)?, number(times)?);
        if all.len() as u64 + u64::from(times) > MOST {
            return Err(ListError { at, fault: ListFault::TooMany });
        }
        all.extend(std::iter::repeat_n(count, times as usize));
        at += entry.chars().count() + 1;
    }
    Ok(all)
}

/// One name between commas, with brackets.
struct NamePattern {
    /// Where it begins in the list.
    at: usize,
    parts: Vec<NamePart>,
}

enum NamePart {
    Text(String),
    Numbers(Vec<Numbers>),
}

/// A number, or a range of them, each padded with zeros to the width.
struct Numbers {
    range: RangeInclusive<u64>,
    width: usize,
}

impl NamePattern {
    /// Saturates: no product of brackets is too large to be refused.
    fn n_hosts(&self) -> u64 {
        self.parts.iter().fold(1, |n, part| n.saturating_mul(part.n_choices()))
    }

    fn expand(&self) -> Vec<String> {
        let mut names = vec![String::new()];
        for part in &self.parts {
            names = match part {
                NamePart::Text(text) => names.into_iter().map(|name| name + text).collect(),
                NamePart::Numbers(numbers) => {
                    let each = |name: String| {
                        numbers.iter().flat_map(Numbers::texts).map(move |n| format!("{name}{n}"))
                    };
                    names.into_iter().flat_map(each).collect()
                }
            };
        }
        names
    }
}

impl NamePart {
    fn n_choices(&self) -> u64 {
        match self {
            NamePart::Text(_) => 1,
            NamePart::Numbers(all) => all
                .iter()
                .map(|n| (n.range.end() - n.range.start()).saturating_add(1))
                .fold(0, u64::saturating_add),
        }
    }

    fn first(&self) -> String {
        match self {
            NamePart::Text(text) => text.clone(),
            NamePart::Numbers(all) => all.first().and_then(|n| n.texts().next()).unwrap_or_default(),
        }
    }
}

impl Numbers {
    fn texts(&self) -> impl Iterator<Item = String> {
        let width = self.width;
        self.range.clone().map(move |n| format!("{n:0width$}"))
    }
}

fn names(list: &str) -> Result<Vec<NamePattern>, ListError> {
    let mut reader = Reader { rest: list.chars().collect(), next: 0 };
    let mut names = Vec::new();
    loop {
        names.push(reader.name()?);
        match reader.peek() {
            // The reader of a name stops only there.
            Some(_comma) => reader.next += 1,
            None => return Ok(names),
        }
    }
}

struct Reader {
    rest: Vec<char>,
    next: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.next).copied()
    }

    fn fail<T>(&self, fault: ListFault) -> Result<T, ListError> {
        Err(ListError { at: self.next + 1, fault })
    }

    fn name(&mut self) -> Result<NamePattern, ListError> {
        let at = self.next + 1;
        let mut parts = Vec::new();
        let mut text = String::new();
        while let Some(c) = self.peek().filter(|c| *c != ',') {
            match c {
                '[' => {
                    if !text.is_empty() {
                        parts.push(NamePart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(NamePart::Numbers(self.bracket()?));
                }
                '-' if text.is_empty() && parts.is_empty() => return self.fail(ListFault::Dash),
                c if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') => {
                    text.push(c);
                    self.next += 1;
                }
                c => return self.fail(ListFault::BadCharacter(c)),
            }
        }
        if !text.is_empty() {
            parts.push(NamePart::Text(text));
        }
        match parts.is_empty() {
            true => self.fail(ListFault::NoName),
            false => Ok(NamePattern { at, parts }),
        }
    }

    /// From `[` to `]`.
    fn bracket(&mut self) -> Result<Vec<Numbers>, ListError> {
        let open = self.next + 1;
        self.next += 1;
        let mut all = Vec::new();
        loop {
            let at = self.next + 1;
            let (low, width) = self.number()?;
            let high = match self.peek() {
                Some('-') => {
                    self.next += 1;
                    self.number()?.0
                }
                _ => low,
            };
            if high < low {
                return Err(ListError { at, fault: ListFault::Backwards });
            }
            all.push(Numbers { range: low..=high, width });
            match self.peek() {
                Some(',') => self.next += 1,
                Some(']') => {
                    self.next += 1;
                    return Ok(all);
                }
                Some(c) => return self.fail(ListFault::BadCharacter(c)),
                None => return Err(ListError { at: open, fault: ListFault::Open }),
            }
        }
    }

    /// A number and with how many digits it is written.
    fn number(&mut self) -> Result<(u64, usize), ListError> {
        let digits: String = self.rest[self.next..].iter().take_while(|c| c.is_ascii_digit()).collect();
        match digits.parse::<u64>() {
            // Padded to its width; nobody pads to more than this.
            Ok(number) if digits.len() <= 18 => {
                self.next += digits.len();
                Ok((number, if digits.starts_with('0') { digits.len() } else { 1 }))
            }
            _ if digits.is_empty() => self.fail(ListFault::NoNumber),
            _ => self.fail(ListFault::LargeNumber),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(error: Result<impl Sized, ListError>) -> (usize, ListFault) {
        error.map(|_| ()).map_err(|e| (e.at, e.fault)).unwrap_err()
    }

    #[test]
    fn lists_name_hosts_in_their_order() {
        for (list, want) in [
            ("n[0-1,05-07]", "n0 n1 n05 n06 n07"),
            ("a1,b[2-3]x", "a1 b2x b3x"),
            ("r[1-2]n[08-10]", "r1n08 r1n09 r1n10 r2n08 r2n09 r2n10"),
            ("[3-4],m", "3 4 m"),
            ("n[9-11]", "n9 n10 n11"),
            ("n[000-1]-ib.x_y", "n000-ib.x_y n001-ib.x_y"),
            ("solo", "solo"),
        ] {
            assert_eq!(hosts(list).unwrap().join(" "), want, "{list}");
            assert_eq!(first(list).unwrap(), want.split(' ').next().unwrap(), "{list}");
        }
    }

    #[test]
    fn a_wrong_list_is_refused_where_it_is_wrong() {
        use ListFault::*;
        for (list, at, why) in [
            ("", 1, NoName),
            ("a,", 3, NoName),
            ("a,,b", 3, NoName),
            ("n[0-", 5, NoNumber),
            ("n[", 3, NoNumber),
            ("n[]", 3, NoNumber),
            ("n[1", 2, Open),
            ("n[1,a]", 5, NoNumber),
            ("n[1a]", 4, BadCharacter('a')),
            ("n[[1]]", 3, NoNumber),
            ("n1]", 3, BadCharacter(']')),
            ("n[3-1]", 3, Backwards),
            ("n[1-2-3]", 6, BadCharacter('-')),
            ("-oProxyCommand=x", 1, Dash),
            ("a b", 2, BadCharacter(' ')),
            ("a;b", 2, BadCharacter(';')),
            ("é", 1, BadCharacter('é')),
            ("n[99999999999999999999]", 3, LargeNumber),
            ("n[0000000000000000000000001]", 3, LargeNumber),
        ] {
            assert_eq!(fault(hosts(list)), (at, why), "LIST-2: {list:?}");
            assert!(first(list).is_err(), "{list:?}");
        }
        assert_eq!(hosts("n[3-1]").unwrap_err().to_string(), "at character 3: a range ends before it begins");
    }

    #[test]
    fn a_list_of_too_many_hosts_is_refused_before_it_is_expanded() {
        assert_eq!(hosts("n[1-65536]").unwrap().len(), 65536);
        assert_eq!(fault(hosts("m,n[1-65536]")), (3, ListFault::TooMany), "LIST-1");
        let huge = "a[0-999999999999999999]".to_string();
        assert_eq!(fault(hosts(&huge)), (1, ListFault::TooMany), "LIST-1");
        assert_eq!(
            fault(hosts(&huge.repeat(9))),
            (1, ListFault::TooMany),
            "LIST-1: the product is larger still"
        );
        assert_eq!(first(&huge).unwrap(), "a0", "the first host is known without the others");
    }

    #[test]
    fn counts_are_repeated() {
        assert_eq!(counts("2(x2),1").unwrap(), [2, 2, 1]);
        assert_eq!(counts("16").unwrap(), [16]);
        for (list, at) in
            [("", 1), ("2,", 3), ("2,x", 3), ("2(x0)", 1), ("1,2(x2", 3), ("0", 1), ("+1", 1), ("2(3)", 1)]
        {
            assert_eq!(fault(counts(list)), (at, ListFault::BadCount), "{list:?}");
        }
        assert_eq!(fault(counts("1,1(x65536)")), (3, ListFault::TooMany), "LIST-1");
        assert_eq!(fault(counts("1(x4294967295)")), (1, ListFault::TooMany), "LIST-1");
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd(text in "[n0-9,(x)\\[\\]-]{0,40}") {
            for list in [hosts(&text), first(&text).map(|name| vec![name])] {
                match list {
                    Ok(names) => {
                        assert!(!names.is_empty() && names.len() as u64 <= MOST, "LIST-1");
                        let good = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
                        assert!(names.iter().all(|n| !n.starts_with('-') && n.chars().all(good)), "LIST-2");
                    }
                    Err(error) => assert!((1..=text.chars().count() + 1).contains(&error.at), "{text:?} {error}"),
                }
            }
            if let Ok(all) = counts(&text) {
                assert!(!all.is_empty() && all.iter().all(|n| *n > 0));
            }
        }
    }
}
