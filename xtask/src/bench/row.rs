//! What was measured, from whatever format it came in, and its median over the rounds.

use std::collections::BTreeMap;

/// One part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// f32 allreduce over all sizes.
    Allreduce,
    /// The other collectives.
    Others,
    /// f16 and bf16 allreduce.
    Half,
}

impl What {
    /// As the peers' programs call it.
    pub fn name(self) -> &'static str {
        match self {
            What::Allreduce => "allreduce",
            What::Others => "others",
            What::Half => "half",
        }
    }
}

/// One line of a table: whose, how many ranks, what, which type, how much.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub who: String,
    pub np: u32,
    pub op: String,
    pub dtype: String,
    pub bytes: u64,
}

/// The medians of all rounds, in microseconds.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<Key, Vec<f64>>);

impl Samples {
    pub fn add(&mut self, key: Key, median_us: f64) {
        self.0.entry(key).or_default().push(median_us);
    }

    /// The median over the rounds.
    pub fn get(&self, who: &str, np: u32, op: &str, dtype: &str, bytes: u64) -> Option<f64> {
        let key = Key { who: who.into(), np, op: op.into(), dtype: dtype.into(), bytes };
        median(self.0.get(&key)?)
    }

    /// Takes the peers' rows: `peer np op dtype bytes median_us min_us algbw`, separated by tabs. Returns how many there were.
    pub fn add_tsv(&mut self, text: &str) -> usize {
        let rows = text.lines().filter_map(tsv);
        rows.map(|(key, us)| self.add(key, us)).count()
    }

    /// Takes the rows of `phalanx bench --json`; `who` is put before the kind of buffers.
    pub fn add_json(&mut self, who: &str, text: &str) -> usize {
        let rows = text.lines().filter_map(|line| json(who, line));
        rows.map(|(key, us)| self.add(key, us)).count()
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

fn tsv(line: &str) -> Option<(Key, f64)> {
    let words: Vec<&str> = line.split('\t').collect();
    let [who, np, op, dtype, bytes, median_us, ..] = words[..] else { return None };
    let key = Key {
        who: who.into(),
        np: np.parse().ok()?,
        op: op.into(),
        dtype: dtype.into(),
        bytes: bytes.parse().ok()?,
    };
    Some((key, median_us.parse().ok()?))
}

fn json(who: &str, line: &str) -> Option<(Key, f64)> {
    let row: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| row.get(name)?.as_str();
    let key = Key {
        who: format!("{who}-{}", text("buffers")?),
        np: u32::try_from(row.get("np")?.as_u64()?).ok()?,
        op: text("op")?.into(),
        dtype: text("dtype")?.into(),
        bytes: row.get("bytes")?.as_u64()?,
    };
    Some((key, row.get("median_us")?.as_f64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_peers_and_ours_become_medians() {
        let mut samples = Samples::default();
        let n =
            samples.add_tsv("openmpi\t2\tallreduce\tf32\t4\t0.84\t0.80\t0.0048\nnoise\n# comment\there\n");
        assert_eq!(n, 1);
        for us in ["3.0", "1.0", "2.0"] {
            let row = format!(
                r#"{{"op":"allreduce","dtype":"f32","bytes":4,"np":2,"buffers":"private","median_us":{us}}}"#
            );
            assert_eq!(samples.add_json("ours", &format!("{row}\nprogress ...\n")), 1);
        }
        assert_eq!(samples.get("openmpi", 2, "allreduce", "f32", 4), Some(0.84));
        assert_eq!(samples.get("ours-private", 2, "allreduce", "f32", 4), Some(2.0));
        assert_eq!(samples.get("ours-arena", 2, "allreduce", "f32", 4), None);
    }

    #[test]
    fn an_even_number_of_rounds_has_its_median_between_two() {
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
