//! What workers, offices and servers write to each other: a fixed header, then numbers of rows, then their values.
//!
//! - LETTER-1: nothing is allocated for a letter before its lengths were found to fit the table that it names.

use crate::{
    exact_sum::SUM_BYTES,
    spec::{RowReduction, TableSpec},
    values::{RowValues, Rows},
};

/// Bytes before the body.
pub const HEADER: usize = 56;
const MAGIC: [u8; 4] = *b"PXt1";
/// The most that words may take.
const TEXT_CAP: u64 = 1 << 20;

/// One letter.
#[derive(Clone, Debug)]
pub struct RowLetter {
    pub kind: LetterKind,
    /// 0 is the parameter, then come its states.
    pub part: u8,
    pub table: u32,
    /// Whose letter it is, where a server asks for that: a worker's rank, or an office's number.
    pub from: u32,
    pub step: u64,
    /// What an answer repeats.
    pub ticket: u64,
    /// A rate, a factor, an age, or with a goodbye the partitions that tables are opened with next.
    pub number: f64,
    pub rows: Rows,
}

/// What a letter wants or brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LetterKind {
    /// Which tables the sender has opened.
    Hello = 1,
    /// Rows are wanted as of a step.
    Pull = 2,
    /// The rows that were wanted.
    Pulled = 3,
    /// Gradients of a step.
    Push = 4,
    /// The same as `Pull`, with every bit: for files.
    Read = 5,
    HaveRead = 6,
    /// Rows are replaced.
    Write = 7,
    Written = 8,
    /// The squared norm of a table's gradient is wanted.
    Norm = 9,
    NormIs = 10,
    /// The gradients that waited are applied, times a factor.
    Release = 11,
    /// The sender wants nothing more.
    Bye = 12,
    /// Words: why something cannot be done.
    Refused = 13,
    /// An office's word: a worker has said goodbye, and never pushes this step of this table. `from` is its rank.
    Gone = 14,
    /// The steps that a table's rule counts are as many as `number` from now on.
    Age = 15,
}

impl LetterKind {
    const ALL: [LetterKind; 15] = [
        LetterKind::Hello,
        LetterKind::Pull,
        LetterKind::Pulled,
        LetterKind::Push,
        LetterKind::Read,
        LetterKind::HaveRead,
        LetterKind::Write,
        LetterKind::Written,
        LetterKind::Norm,
        LetterKind::NormIs,
        LetterKind::Release,
        LetterKind::Bye,
        LetterKind::Refused,
        LetterKind::Gone,
        LetterKind::Age,
    ];
}

/// Why bytes are no letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LetterError {
    #[error("these bytes are no letter about tables")]
    NotOurs,
    #[error("a letter about table number {0}, which there is not")]
    NoTable(u32),
    #[error("a letter with {n} rows and {bytes} bytes does not fit table {table:?}")]
    Length { table: String, n: u32, bytes: u64 },
}

/// What a header says of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLengths {
    pub ids: usize,
    pub touches: usize,
    pub bytes: usize,
}

/// Whether rows travel on a connection in the narrow type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// Between a worker and the office of its host.
    Own,
    /// Between an office and a server.
    Between,
}

impl RowLetter {
    pub fn new(kind: LetterKind, table: u32, step: u64) -> RowLetter {
        RowLetter { kind, part: 0, table, from: 0, step, ticket: 0, number: 0.0, rows: Rows::default() }
    }

    pub fn words(kind: LetterKind, ticket: u64, text: &str) -> RowLetter {
        let text = &text.as_bytes()[..text.len().min(TEXT_CAP as usize)];
        let rows = Rows { values: RowValues::of(text), ..Rows::default() };
        RowLetter { ticket, rows, ..RowLetter::new(kind, 0, 0) }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.rows.values.bytes()).into_owned()
    }

    pub fn header(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[5] = self.part;
        bytes[8..12].copy_from_slice(&self.table.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.from.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.step.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_bits().to_le_bytes());
        bytes[40..44].copy_from_slice(&(self.rows.ids.len() as u32).to_le_bytes());
        bytes[44..48].copy_from_slice(&(self.rows.touches.len() as u32).to_le_bytes());
        bytes[48..].copy_from_slice(&(self.rows.values.len() as u64).to_le_bytes());
        bytes
    }

    /// The letter without its body, and how long that is.
    pub fn parse(
        header: &[u8; HEADER],
        specs: &[TableSpec],
        road: Road,
    ) -> Result<(RowLetter, BodyLengths), LetterError> {
        let four =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let eight = |at: usize| u64::from(four(at)) | u64::from(four(at + 4)) << 32;
        let kind = LetterKind::ALL.into_iter().find(|kind| *kind as u8 == header[4]);
        let Some(kind) = kind.filter(|_| header[..4] == MAGIC && header[6..8] == [0; 2]) else {
            return Err(LetterError::NotOurs);
        };
        let (table, n, touches, bytes) = (four(8), four(40), four(44), eight(48));
        let spec = specs.get(table as usize).ok_or(LetterError::NoTable(table))?;
        let dtype = match (road, kind) {
            (Road::Between, LetterKind::Pulled | LetterKind::Push) => spec.wire_dtype(),
            _ => spec.dtype,
        };
        let all = u64::from(n) * (spec.width * dtype.size()) as u64;
        let fits = match kind {
            LetterKind::Pull | LetterKind::Read => bytes == 0,
            // The numbers of rows are those that were asked for; the answer does not repeat them.
            LetterKind::Pulled | LetterKind::HaveRead => {
                n == 0 && bytes <= spec.height * (spec.width * dtype.size()) as u64
            }
            LetterKind::Push | LetterKind::Write => bytes == all,
            LetterKind::Written
            | LetterKind::Norm
            | LetterKind::Release
            | LetterKind::Bye
            | LetterKind::Gone
            | LetterKind::Age => n == 0 && bytes == 0,
            LetterKind::NormIs => n == 0 && bytes == SUM_BYTES as u64,
            LetterKind::Hello | LetterKind::Refused => n == 0 && bytes <= TEXT_CAP,
        };
        let has_touches = kind == LetterKind::Push && spec.reduction == RowReduction::ByTouch && !spec.raw;
        let is_part = usize::from(header[5]) <= spec.rule.n_states();
        if !fits || u64::from(n) > spec.height || touches != (if has_touches { n } else { 0 }) || !is_part {
            return Err(LetterError::Length { table: spec.name.clone(), n, bytes });
        }
        let letter = RowLetter {
            kind,
            part: header[5],
            table,
            from: four(12),
            step: eight(16),
            ticket: eight(24),
            number: f64::from_bits(eight(32)),
            rows: Rows::default(),
        };
        Ok((letter, BodyLengths { ids: n as usize, touches: touches as usize, bytes: bytes as usize }))
    }

    /// Whether what the body says can be used: numbers of rows exist, and rise unless they are raw.
    pub fn check(&self, specs: &[TableSpec]) -> Result<(), LetterError> {
        let spec = &specs[self.table as usize];
        let is_raw = spec.raw && matches!(self.kind, LetterKind::Pull | LetterKind::Push);
        let rises = is_raw || self.rows.ids.windows(2).all(|pair| pair[0] < pair[1]);
        let exists = self.rows.ids.iter().all(|&id| u64::from(id) < spec.height);
        if rises && exists {
            return Ok(());
        }
        let (n, bytes) = (self.rows.ids.len() as u32, self.rows.values.len() as u64);
        Err(LetterError::Length { table: spec.name.clone(), n, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use proptest::prelude::*;

    #[test]
    fn a_letter_arrives_as_it_was_sent() {
        let rows = Rows { ids: vec![1, 4], touches: vec![2, 1], values: RowValues::zeros(32) };
        let sent =
            RowLetter { from: 3, ticket: 9, number: 0.5, rows, ..RowLetter::new(LetterKind::Push, 0, 7) };
        let by_touch = TableSpec { reduction: RowReduction::ByTouch, ..spec("t") };
        let (got, body) = RowLetter::parse(&sent.header(), &[by_touch], Road::Own).unwrap();
        assert_eq!((got.kind, got.from, got.step, got.ticket, got.number), (LetterKind::Push, 3, 7, 9, 0.5));
        assert_eq!(body, BodyLengths { ids: 2, touches: 2, bytes: 32 });
        assert_eq!(sent.check(&[spec("t")]), Ok(()));
        let counted = RowLetter::parse(&sent.header(), &[spec("t")], Road::Own);
        assert!(counted.is_err(), "nobody asks for touches where rows are added up");
        let turned = RowLetter { rows: Rows { ids: vec![4, 1], ..sent.rows.clone() }, ..sent };
        assert!(turned.check(&[spec("t")]).is_err());
        let raw = [TableSpec { raw: true, ..spec("t") }];
        assert_eq!(turned.check(&raw), Ok(()), "raw rows come as they stand");
        let strange = RowLetter { rows: Rows { ids: vec![64, 1], ..turned.rows.clone() }, ..turned };
        assert!(strange.check(&raw).is_err(), "but they exist");
        assert_eq!(RowLetter::new(LetterKind::Pull, 0, 0).header().len(), HEADER);
    }

    #[test]
    fn lengths_that_do_not_fit_the_table_are_refused() {
        let specs = [spec("t")];
        let mut header = RowLetter::new(LetterKind::Push, 0, 0).header();
        header[48] = 1;
        let error = RowLetter::parse(&header, &specs, Road::Own).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a letter with 0 rows and 1 bytes does not fit table \"t\"",
            "LETTER-1"
        );
        let mut header = RowLetter::new(LetterKind::Pull, 1, 0).header();
        assert_eq!(RowLetter::parse(&header, &specs, Road::Own).unwrap_err(), LetterError::NoTable(1));
        header[0] = 0;
        assert_eq!(RowLetter::parse(&header, &specs, Road::Own).unwrap_err(), LetterError::NotOurs);
    }

    proptest! {
        #[test]
        fn garbage_never_asks_for_more_than_the_table_has(mut header: [u8; 32], tail: [u8; 24], kind in 0u8..16) {
            let mut bytes = [0; HEADER];
            header[..4].copy_from_slice(&MAGIC);
            header[4] = kind;
            header[6..8].fill(0);
            bytes[..32].copy_from_slice(&header);
            bytes[32..].copy_from_slice(&tail);
            let specs = [spec("a"), spec("b")];
            for road in [Road::Own, Road::Between] {
                if let Ok((letter, body)) = RowLetter::parse(&bytes, &specs, road) {
                    let most = specs[letter.table as usize].height as usize;
                    prop_assert!(body.ids <= most && body.touches <= most && body.bytes <= TEXT_CAP as usize, "LETTER-1");
                }
            }
        }
    }
}
