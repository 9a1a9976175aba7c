//! Splits a byte stream into lines, independent of how the stream arrives in pieces.
//!
//! - LINE-1: no byte is lost except line ends; at most [`LONGEST`] bytes are kept.
//! - LINE-2: `\r` ends a line too, so that progress bars appear; `\r\n` is one line end.
//! - LINE-3: where lines may change on a terminal, `\r` does not end a line: the text after it replaces the line.

/// Longer lines are cut, between characters where the text is UTF-8.
pub const LONGEST: usize = 64 << 10;

/// The unfinished line of one stream.
#[derive(Debug, Default)]
pub struct Splitter {
    pending: Vec<u8>,
    /// The last byte was a `\r` that ended a line: a `\n` right after it ends nothing.
    after_return: bool,
    /// Whether what follows a `\r` takes the place of what was before it (LINE-3).
    overwrites: bool,
    /// The unfinished line has changed, or is about to.
    is_changing: bool,
}

impl Splitter {
    /// For a terminal on which lines may change.
    pub fn overwriting() -> Splitter {
        Splitter { overwrites: true, ..Splitter::default() }
    }

    /// What the unfinished line is now, if it changes as a progress bar does.
    pub fn changing(&self) -> Option<&[u8]> {
        self.is_changing.then_some(&self.pending)
    }

    /// What the unfinished line is now.
    pub fn unfinished(&self) -> &[u8] {
        &self.pending
    }

    /// The unfinished line was shown and will not come again.
    pub fn forget(&mut self) {
        self.pending.clear();
    }

    /// Calls `emit` with each line that these bytes finish, without its end.
    pub fn feed(&mut self, bytes: &[u8], emit: impl FnMut(&[u8])) {
        match self.overwrites {
            true => self.overwrite(bytes, emit),
            false => self.split(bytes, emit),
        }
    }

    fn overwrite(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let text = &bytes[..end.unwrap_or(bytes.len())];
            if !text.is_empty() && std::mem::take(&mut self.after_return) {
                self.pending.clear();
            }
            self.append(text, &mut emit);
            let Some(end) = end else { return };
            self.after_return = bytes[end] == b'\r';
            // Until the line ends.
            self.is_changing = self.after_return;
            if !self.after_return {
                emit(&self.pending);
                self.pending.clear();
            }
            bytes = &bytes[end + 1..];
        }
    }

    fn split(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
            self.append(&bytes[..end.unwrap_or(bytes.len())], &mut emit);
            let Some(end) = end else { return };
            let is_return = bytes[end] == b'\r';
            // A return at the start of a line, as progress bars print it, says nothing.
            if !is_return || !self.pending.is_empty() {
                emit(&self.pending);
                self.pending.clear();
                self.after_return = is_return;
            }
            bytes = &bytes[end + 1..];
        }
    }

    /// The stream ended: what is left is a line.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8])) {
        if !self.pending.is_empty() {
            emit(&self.pending);
            self.pending.clear();
        }
    }

    fn append(&mut self, bytes: &[u8], emit: &mut impl FnMut(&[u8])) {
        self.pending.extend_from_slice(bytes);
        while self.pending.len() > LONGEST {
            let cut = character_boundary(&self.pending, LONGEST);
            emit(&self.pending[..cut]);
            self.pending.drain(..cut);
        }
    }
}

/// The last place up to `at` where no UTF-8 character is cut; `at` itself in other bytes.
fn character_boundary(bytes: &[u8], at: usize) -> usize {
    let is_inside = |i: usize| bytes[i] & 0xc0 == 0x80;
    (at.saturating_sub(3)..=at).rev().find(|&i| !is_inside(i)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &[u8], piece: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let mut splitter = Splitter::default();
        let mut emit = |line: &[u8]| lines.push(String::from_utf8_lossy(line).into_owned());
        text.chunks(piece).for_each(|bytes| splitter.feed(bytes, &mut emit));
        splitter.finish(&mut emit);
        lines
    }

    #[test]
    fn lines_are_the_same_however_the_stream_is_cut() {
        let text = b"one\n\ntwo\r\n\r10%\r20%\r\nthree\r\n\r\nlast";
        for piece in 1..text.len() {
            assert_eq!(
                split(text, piece),
                ["one", "", "two", "10%", "20%", "three", "", "last"],
                "LINE-2 {piece}"
            );
        }
        assert_eq!(split(b"", 1), Vec::<String>::new());
        assert_eq!(split(b"a\n", 1), ["a"]);
    }

    #[test]
    fn a_progress_bar_is_one_line_that_changes() {
        let text = b"start\n\r 10%\r 20%\r100%\ndone\r\n\r\rlast";
        for piece in 1..text.len() {
            let (mut lines, mut live) = (Vec::new(), Vec::new());
            let mut splitter = Splitter::overwriting();
            for bytes in text.chunks(piece) {
                splitter.feed(bytes, |line| lines.push(String::from_utf8_lossy(line).into_owned()));
                live.extend(splitter.changing().map(|l| String::from_utf8_lossy(l).into_owned()));
            }
            splitter.finish(|line| lines.push(String::from_utf8_lossy(line).into_owned()));
            assert_eq!(lines, ["start", "100%", "done", "last"], "LINE-3 {piece}");
            assert!(piece > 1 || live.contains(&" 20%".to_string()), "{live:?}");
        }
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let text = "ä".repeat(LONGEST);
        for piece in [777, 4096, LONGEST * 3] {
            let lines = split(format!("x{text}\n").as_bytes(), piece);
            assert_eq!(lines.concat(), format!("x{text}"), "LINE-1");
            assert!(lines.iter().all(|l| l.len() <= LONGEST && !l.contains('\u{fffd}')));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_cut_too() {
        let mut seen = 0;
        Splitter::default().feed(&[0x80; 3 * LONGEST], |line| seen += line.len());
        assert_eq!(seen, 2 * LONGEST);
    }
}
