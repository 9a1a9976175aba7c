//! Words that a person must see even in a program that collects no traces.

use std::io::Write;

/// Warns through `tracing`, or on stderr where nobody listens to that.
pub fn warn(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        // A closed stderr is nobody to tell.
        let _ = writeln!(std::io::stderr(), "phalanx: {text}");
    }
}
