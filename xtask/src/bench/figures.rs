//! What a benchmark has measured: a figure for each round.

use std::collections::BTreeMap;

/// What was measured of whom, in every round.
#[derive(Debug, Default)]
pub struct Figures(BTreeMap<(String, String), Vec<f64>>);

impl Figures {
    pub fn add(&mut self, what: &str, who: &str, value: f64) {
        self.0.entry((what.into(), who.into())).or_default().push(value);
    }

    /// Adds a number that a program printed.
    pub fn keep(&mut self, what: &str, who: &str, text: &str) -> Result<(), String> {
        let value = text.trim().parse().map_err(|_| format!("{text:?} is not a number"))?;
        self.add(what, who, value);
        Ok(())
    }

    /// All of it, one value a line, as `read` takes it.
    pub fn lines(&self) -> String {
        let line = |((what, who), values): (&(String, String), &Vec<f64>)| -> String {
            values.iter().map(|value| format!("{what}\t{who}\t{value}\n")).collect()
        };
        self.0.iter().map(line).collect()
    }

    /// Adds what another run kept.
    pub fn read(&mut self, lines: &str) -> Result<(), String> {
        for line in lines.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            let [what, who, value] = words[..] else { return Err(format!("{line:?} is not a figure")) };
            self.keep(what, who, value)?;
        }
        Ok(())
    }

    /// The median over the rounds.
    pub fn get(&self, what: &str, who: &str) -> Option<f64> {
        let mut all = self.0.get(&(what.into(), who.into()))?.clone();
        all.sort_by(f64::total_cmp);
        let n = all.len();
        Some((all[(n - 1) / 2] + all[n / 2]) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_kept_and_read_again() {
        let mut figures = Figures::default();
        for text in ["3", " 1\n", "2"] {
            figures.keep("time", "ours", text).unwrap();
        }
        assert_eq!((figures.get("time", "ours"), figures.get("time", "theirs")), (Some(2.0), None));
        assert!(figures.keep("time", "ours", "fast").is_err());
        let mut again = Figures::default();
        again.read(&figures.lines()).unwrap();
        again.add("time", "ours", 9.0);
        assert_eq!(again.get("time", "ours"), Some(2.5));
        assert!(again.read("time\tours").is_err());
    }
}
