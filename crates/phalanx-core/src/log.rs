//! The value of `PHALANX_LOG`. `phalanx-net` decides where the log is written.
//!
//! - LOG-1: a word that is not a level, and a module that is not ours, is refused: no word is taken for a name that matches nothing.

use std::{fmt, str::FromStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

const LEVELS: [(&str, Level); 6] = [
    ("off", Level::Off),
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

/// How much each part says. The whole is called `phalanx`; parts are crates and modules, such as `phalanx_net::hub`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// The longest name that fits counts.
    pub parts: Vec<(String, Level)>,
}

/// What every part's name begins with.
const ALL: &str = "phalanx";

impl FromStr for LogFilter {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<LogFilter, &'static str> {
        let parts: Option<Vec<(String, Level)>> = text
            .split(',')
            .map(|word| {
                let (part, level) = word.trim().split_once('=').unwrap_or((ALL, word.trim()));
                let level = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(level.trim()))?.1;
                let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
                let part = part.trim();
                (part.starts_with(ALL) && part.chars().all(is_name)).then(|| (part.to_string(), level))
            })
            .collect();
        // LOG-1
        parts.map(|parts| LogFilter { parts }).ok_or(
            "write off, error, warn, info, debug or trace; modules may have their own level: info,phalanx_net=debug",
        )
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (part, level)) in self.parts.iter().enumerate() {
            let level = LEVELS.iter().find(|(_, l)| l == level).map_or("", |(name, _)| name);
            let comma = if i == 0 { "" } else { "," };
            match part == ALL {
                true => write!(f, "{comma}{level}")?,
                false => write!(f, "{comma}{part}={level}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_are_read_and_shown_again() {
        let filter: LogFilter = "Info, phalanx_net::hub=debug".parse().unwrap();
        let parts = [("phalanx".to_string(), Level::Info), ("phalanx_net::hub".to_string(), Level::Debug)];
        assert_eq!(filter.parts, parts);
        assert_eq!(filter.to_string(), "info,phalanx_net::hub=debug");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "loud", "5", "info,", "mio=debug", "phalanx_net", "phalanx_net=", "phalanx net=info"]
        {
            assert!(text.parse::<LogFilter>().is_err(), "LOG-1: {text:?}");
        }
    }
}
