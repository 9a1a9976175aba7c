//! Messages that the user must see even if the program collects no traces.

use std::io::Write;

/// Warns through `tracing`, or on stderr where nobody listens to that, or only to worse.
pub fn warn(text: &str) {
    if tracing::enabled!(tracing::Level::WARN) {
        tracing::warn!("{text}");
    } else {
        // A closed stderr is nobody to tell.
        let _ = writeln!(std::io::stderr(), "phalanx: {text}");
    }
}
