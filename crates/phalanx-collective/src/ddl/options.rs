//! DDL's option string: what is written there, and what is wrong with it.
//!
//! ```text
//! options := { "-mode" letter ":" shape | "-dump_iter" N | "-dev_sync" 0..2 | "-rebind_iter" N | "-dbg_level" 0..2 }
//! ```

use phalanx_core::{Tiers, Topology, Way, topology::TopologyError};
use std::{fmt, str::FromStr};

/// An option string, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DdlOptions {
    /// Without one: a single ring of all ranks.
    pub mode: Option<Mode>,
    /// Every N iterations rank 0 says where the time went; 0: never.
    pub dump_iter: u32,
    /// Whether a device is waited for before (1), or before and after (2) a call. Only devices of torch have something to wait for.
    pub dev_sync: u8,
    /// Every N iterations slow ranks are looked for; 0: never.
    pub rebind_iter: u32,
    pub dbg_level: u8,
}

/// How to reduce, and along which shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    pub letter: ModeLetter,
    pub tiers: Tiers,
}

/// DDL's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeLetter {
    /// The best way of each tier: the arena for all tiers inside a host, then direct where few ranks meet, else rings.
    B,
    /// The arena for all tiers inside a host, then rings.
    N,
    /// Rings over links, in every tier.
    R,
    /// Halving where a tier is a power of two, else a ring: our reading of "RCS".
    C,
    /// MPI's reduce_scatter and allgatherv.
    M,
    /// Tries the ways of each tier and keeps the best.
    P,
}

impl ModeLetter {
    pub const ALL: [ModeLetter; 6] =
        [ModeLetter::B, ModeLetter::N, ModeLetter::R, ModeLetter::C, ModeLetter::M, ModeLetter::P];

    pub const fn name(self) -> &'static str {
        match self {
            ModeLetter::B => "b",
            ModeLetter::N => "n",
            ModeLetter::R => "r",
            ModeLetter::C => "c",
            ModeLetter::M => "m",
            ModeLetter::P => "p",
        }
    }
}

impl Mode {
    /// One way a tier; none for letters that are more than ways.
    pub fn ways(&self, topology: &Topology) -> Option<Vec<Way>> {
        let tiers = self.tiers.dims().iter().enumerate();
        // The first tiers that together are the ranks of a host, if there are such.
        let sizes = self.tiers.dims().iter().scan(1u32, |size, n| {
            *size = size.saturating_mul(*n);
            Some(*size)
        });
        let each = topology.even();
        let n_inside =
            sizes.zip(1..).filter(|(size, _)| Some(*size) == each).map(|(_, n)| n).max().unwrap_or(0);
        let way = |(tier, &n): (usize, &u32)| match self.letter {
            ModeLetter::B | ModeLetter::N if tier < n_inside => Way::Arena,
            ModeLetter::B if n == 2 => Way::Direct,
            ModeLetter::C => Way::Halving,
            _ => Way::Ring,
        };
        (!matches!(self.letter, ModeLetter::M | ModeLetter::P)).then(|| tiers.map(way).collect())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.letter.name(), self.tiers)
    }
}

/// As it is written: what is not the default, in the order of the grammar.
impl fmt::Display for DdlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.as_ref().map(|mode| format!("-mode {mode}"));
        let numbers = [
            ("-dump_iter", self.dump_iter),
            ("-dev_sync", self.dev_sync.into()),
            ("-rebind_iter", self.rebind_iter),
            ("-dbg_level", self.dbg_level.into()),
        ];
        let numbers = numbers.iter().filter(|(_, n)| *n > 0).map(|(flag, n)| format!("{flag} {n}"));
        f.write_str(&mode.into_iter().chain(numbers).collect::<Vec<_>>().join(" "))
    }
}

/// What is wrong with an option string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("{flag:?} is not an option of DDL; known: -mode -dump_iter -dev_sync -rebind_iter -dbg_level")]
    UnknownFlag { flag: String },
    #[error("{flag} is given twice")]
    Twice { flag: String },
    #[error("{flag} needs a value: write {example}")]
    NoValue { flag: String, example: &'static str },
    #[error("{flag} {value:?} cannot be used: write {example}")]
    BadValue { flag: String, value: String, example: &'static str },
    #[error("-mode {value:?} has no shape: write a letter, a colon and a shape, as in -mode n:4x3")]
    NoShape { value: String },
    #[error(
        "-mode {value:?}: {letter:?} is not a mode; b best way of each tier, n arena and rings, r rings, c halving, m MPI, p explore"
    )]
    UnknownLetter { value: String, letter: String },
    #[error("-mode {value:?}: {why}")]
    BadShape { value: String, why: TopologyError },
}

impl FromStr for DdlOptions {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<DdlOptions, OptionsError> {
        DdlOptions::default().with(text)
    }
}

impl DdlOptions {
    /// Whether MPI does the allreduces.
    pub fn is_by_mpi(&self) -> bool {
        self.mode.as_ref().is_some_and(|mode| mode.letter == ModeLetter::M)
    }

    /// These, but for what the text says otherwise.
    pub fn with(self, text: &str) -> Result<DdlOptions, OptionsError> {
        let mut options = self;
        let mut seen = Vec::new();
        let mut words = text.split_whitespace();
        while let Some(flag) = words.next() {
            let Some(&(_, example)) = FLAGS.iter().find(|(name, _)| *name == flag) else {
                return Err(OptionsError::UnknownFlag { flag: flag.into() });
            };
            if seen.contains(&flag) {
                return Err(OptionsError::Twice { flag: flag.into() });
            }
            seen.push(flag);
            let value = words.next().filter(|word| !word.starts_with('-'));
            let value = value.ok_or(OptionsError::NoValue { flag: flag.into(), example })?;
            let number = |most: u32| {
                let bad = OptionsError::BadValue { flag: flag.into(), value: value.into(), example };
                value.parse::<u32>().ok().filter(|n| *n <= most).ok_or(bad)
            };
            match flag {
                "-mode" => options.mode = Some(mode(value)?),
                "-dump_iter" => options.dump_iter = number(u32::MAX)?,
                "-rebind_iter" => options.rebind_iter = number(u32::MAX)?,
                "-dev_sync" => options.dev_sync = number(2)? as u8,
                _ => options.dbg_level = number(2)? as u8,
            }
        }
        Ok(options)
    }
}

/// Each option and an example of it.
const FLAGS: [(&str, &str); 5] = [
    ("-mode", "-mode n:4x3"),
    ("-dump_iter", "-dump_iter 100"),
    ("-dev_sync", "-dev_sync 0, 1 or 2"),
    ("-rebind_iter", "-rebind_iter 100"),
    ("-dbg_level", "-dbg_level 0, 1 or 2"),
];

fn mode(value: &str) -> Result<Mode, OptionsError> {
    let Some((letter, shape)) = value.split_once(':') else {
        return Err(OptionsError::NoShape { value: value.into() });
    };
    let known = ModeLetter::ALL.into_iter().find(|l| l.name() == letter);
    let letter =
        known.ok_or_else(|| OptionsError::UnknownLetter { value: value.into(), letter: letter.into() })?;
    let tiers = shape.parse().map_err(|why| OptionsError::BadShape { value: value.into(), why })?;
    Ok(Mode { letter, tiers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_options_of_the_manual_are_read() {
        let options: DdlOptions = "-mode b:4x8x2 -dump_iter 100".parse().unwrap();
        let mode = options.mode.clone().unwrap();
        assert_eq!((mode.to_string().as_str(), options.dump_iter), ("b:4x8x2", 100));
        let all: DdlOptions = "-dbg_level 2 -rebind_iter 7 -dev_sync 1 -mode p:12".parse().unwrap();
        assert_eq!((all.dbg_level, all.rebind_iter, all.dev_sync), (2, 7, 1));
        assert_eq!("  ".parse(), Ok(DdlOptions::default()));
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(
            letter in 0usize..6,
            dims in proptest::collection::vec(1u32..9, 1..5),
            (dump_iter, rebind_iter) in (any::<u32>(), any::<u32>()),
            (dev_sync, dbg_level) in (0u8..3, 0u8..3),
        ) {
            let mode = Mode { letter: ModeLetter::ALL[letter], tiers: Tiers::new(&dims).unwrap() };
            let options = DdlOptions { mode: Some(mode), dump_iter, dev_sync, rebind_iter, dbg_level };
            prop_assert_eq!(options.to_string().parse::<DdlOptions>(), Ok(options));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(-mode|-dump_iter|-dbg_level|[bnrcmp]:|[0-9x]| |.){0,30}") {
            match text.parse::<DdlOptions>() {
                Ok(options) => prop_assert_eq!(options.to_string().parse::<DdlOptions>(), Ok(options)),
                Err(why) => prop_assert!(!why.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn every_letter_has_its_ways() {
        let ways = |text: &str, sizes: &[u32]| {
            let options: DdlOptions = format!("-mode {text}").parse().unwrap();
            options.mode.unwrap().ways(&Topology::of_sizes(sizes)).map(|ways| Way::show(&ways))
        };
        let hosts = &[4, 4, 4];
        assert_eq!(ways("n:4x3", hosts).as_deref(), Some("arena,ring"));
        assert_eq!(ways("n:2x2x3", hosts).as_deref(), Some("arena,arena,ring"));
        assert_eq!(ways("n:2x6", hosts).as_deref(), Some("ring,ring"), "half a host");
        assert_eq!(ways("n:4x3", &[12]).as_deref(), Some("arena,arena"), "one host");
        assert_eq!(ways("r:4x3", hosts).as_deref(), Some("ring,ring"));
        assert_eq!(ways("c:4x8x2", &[4; 16]).as_deref(), Some("halving,halving,halving"));
        assert_eq!(ways("b:2x2x3x2", &[4; 6]).as_deref(), Some("arena,arena,ring,direct"));
        assert_eq!(
            ways("b:2x2x2x3", &[8; 3]).as_deref(),
            Some("arena,arena,arena,ring"),
            "three tiers in a host"
        );
        assert_eq!(ways("b:2x4", &[5, 3]).as_deref(), Some("direct,ring"), "uneven hosts");
        assert_eq!([ways("m:4x3", hosts), ways("p:4x3", hosts)], [None, None]);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        for (text, says) in [
            (
                "-mode q:4x3",
                "-mode \"q:4x3\": \"q\" is not a mode; b best way of each tier, n arena and rings, r rings, c halving, m MPI, p explore",
            ),
            (
                "-mode 4x3",
                "-mode \"4x3\" has no shape: write a letter, a colon and a shape, as in -mode n:4x3",
            ),
            (
                "-mode n:4x",
                "-mode \"n:4x\": \"4x\" is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)",
            ),
            (
                "-mode n:0",
                "-mode \"n:0\": \"0\" is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)",
            ),
            (
                "-mode n:2x2x2x2x2",
                "-mode \"n:2x2x2x2x2\": \"2x2x2x2x2\" is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)",
            ),
            ("-mode", "-mode needs a value: write -mode n:4x3"),
            ("-mode -dump_iter 3", "-mode needs a value: write -mode n:4x3"),
            ("-dump_iter ten", "-dump_iter \"ten\" cannot be used: write -dump_iter 100"),
            ("-dev_sync 3", "-dev_sync \"3\" cannot be used: write -dev_sync 0, 1 or 2"),
            (
                "-dump 3",
                "\"-dump\" is not an option of DDL; known: -mode -dump_iter -dev_sync -rebind_iter -dbg_level",
            ),
            (
                "n:4x3",
                "\"n:4x3\" is not an option of DDL; known: -mode -dump_iter -dev_sync -rebind_iter -dbg_level",
            ),
            ("-mode n:4 -mode r:4", "-mode is given twice"),
        ] {
            assert_eq!(text.parse::<DdlOptions>().unwrap_err().to_string(), says, "{text}");
        }
    }
}
