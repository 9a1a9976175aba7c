//! Writes what `PHALANX_LOG` asks for to stderr.
//!
//! A program that collects traces itself keeps doing so: the first subscriber stays.

use phalanx_core::log::{Level, LogFilter};
use std::io::{self, IsTerminal};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::{Layer, SubscriberExt},
};

/// From now on this process says that much, unless somebody collects its traces already. Without a filter nothing is installed, and
/// what is not asked for costs one load.
pub fn start(filter: Option<&LogFilter>) {
    let Some(filter) = filter.filter(|f| f.parts.iter().any(|(_, level)| *level != Level::Off)) else {
        return;
    };
    let targets = filter.parts.iter().map(|(part, level)| (part.as_str(), of(*level)));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(Targets::new().with_targets(targets));
    // Fails if the program has a subscriber, which then stays.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
}

fn of(level: Level) -> LevelFilter {
    match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
