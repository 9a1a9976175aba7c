//! A terminal on which every rank may have one changing line (a progress bar), below the finished lines.
//!
//! Pure: it takes what ranks write and returns the bytes for the terminal.
//! - SCREEN-1: a finished line stays above all changing lines; a changing line takes one row, however often it changes.

use phalanx_core::Rank;
use std::collections::BTreeMap;

/// What one line of a terminal holds, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScreenSize {
    pub columns: usize,
    pub rows: usize,
}

#[derive(Debug)]
pub struct Screen {
    size: ScreenSize,
    /// The lines that change, with what stands before them: one for each stream of a rank.
    live: BTreeMap<(Rank, usize), Vec<u8>>,
    /// How many of them the terminal shows now, above the cursor.
    n_drawn: usize,
}

impl Screen {
    pub fn new(size: ScreenSize) -> Screen {
        Screen { size, live: BTreeMap::new(), n_drawn: 0 }
    }

    /// Lines that stay, each with its end.
    pub fn print(&mut self, lines: &[u8], out: &mut Vec<u8>) {
        self.erase(out);
        out.extend_from_slice(&without_moves(lines));
        self.draw(out);
    }

    /// Lines of one stream that stay, and the one that may still change; an empty one is none.
    pub fn update(&mut self, of: (Rank, usize), lines: &[u8], line: &[u8], out: &mut Vec<u8>) {
        let line = without_moves(line);
        let is_new = match line.is_empty() {
            true => self.live.remove(&of).is_some(),
            false => self.live.insert(of, line.clone()).as_ref() != Some(&line),
        };
        if is_new || !lines.is_empty() {
            self.print(lines, out);
        }
    }

    /// The user pressed Enter: what is above the cursor stays there, and lines that still change are drawn anew below.
    pub fn typed(&mut self) {
        self.n_drawn = 0;
    }

    fn erase(&mut self, out: &mut Vec<u8>) {
        if self.n_drawn > 0 {
            // To the start of the first of them; then everything below goes.
            out.extend_from_slice(format!("\x1b[{}F\x1b[J", self.n_drawn).as_bytes());
            self.n_drawn = 0;
        }
    }

    fn draw(&mut self, out: &mut Vec<u8>) {
        if self.n_drawn > 0 {
            return;
        }
        // A line that is longer than the terminal would take two rows; more rows than it has would scroll away.
        let room = self.size.rows.saturating_sub(2).max(1);
        for line in self.live.values().take(room) {
            out.extend_from_slice(cut(line, self.size.columns.saturating_sub(1)));
            out.extend_from_slice(b"\x1b[0m\n");
            self.n_drawn += 1;
        }
    }
}

/// The bytes without sequences that move the cursor or erase: they are meant for a terminal of the rank's own.
fn without_moves(bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, more)) = rest.split_first() {
        let sequence = escape_len(rest);
        if sequence > 0 {
            if rest[sequence - 1] == b'm' {
                kept.extend_from_slice(&rest[..sequence]);
            }
            rest = &rest[sequence..];
        } else {
            kept.push(first);
            rest = more;
        }
    }
    kept
}

/// How long the control sequence (`ESC [ ... letter`) is that these bytes begin with; 0 if they do not.
fn escape_len(bytes: &[u8]) -> usize {
    if !bytes.starts_with(b"\x1b[") {
        return 0;
    }
    bytes[2..].iter().position(u8::is_ascii_alphabetic).map_or(bytes.len(), |at| at + 3)
}

/// As much of a line as fits into the columns; colours take none. Characters count as one column each.
fn cut(line: &[u8], columns: usize) -> &[u8] {
    let (mut at, mut n) = (0, 0);
    while at < line.len() {
        let sequence = escape_len(&line[at..]);
        if sequence > 0 {
            at += sequence;
            continue;
        }
        let starts_character = line[at] & 0xc0 != 0x80;
        if starts_character && n == columns {
            break;
        }
        n += usize::from(starts_character);
        at += 1;
    }
    &line[..at]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal: rows of text and a cursor, as far as `Screen` uses them.
    #[derive(Default)]
    struct Terminal {
        rows: Vec<String>,
    }

    impl Terminal {
        /// Takes bytes; the cursor is always at the start of the row below the last one.
        fn take(&mut self, bytes: &[u8]) {
            let mut text = std::str::from_utf8(bytes).unwrap();
            while !text.is_empty() {
                if let Some(rest) = text.strip_prefix("\x1b[0m") {
                    text = rest;
                } else if let Some(rest) = text.strip_prefix("\x1b[") {
                    let (n, rest) = rest.split_once('F').unwrap();
                    text = rest.strip_prefix("\x1b[J").unwrap();
                    self.rows.truncate(self.rows.len() - n.parse::<usize>().unwrap());
                } else {
                    let (line, rest) = text.split_once('\n').unwrap();
                    self.rows.push(line.replace("\x1b[0m", ""));
                    text = rest;
                }
            }
        }
    }

    const OUT: usize = 0;

    fn shown(columns: usize, rows: usize, acts: impl FnOnce(&mut Screen, &mut Vec<u8>)) -> Vec<String> {
        let (mut screen, mut out, mut terminal) =
            (Screen::new(ScreenSize { columns, rows }), Vec::new(), Terminal::default());
        acts(&mut screen, &mut out);
        terminal.take(&out);
        terminal.rows
    }

    #[test]
    fn progress_bars_take_one_row_a_rank_below_what_stays() {
        let rows = shown(80, 24, |screen, out| {
            for percent in 0..100 {
                for rank in [1, 0] {
                    screen.update((Rank(rank), OUT), b"", format!("{rank} | {percent}%").as_bytes(), out);
                }
                if percent == 50 {
                    screen.print(b"0 | half\n1 | half\n", out);
                }
            }
        });
        assert_eq!(rows, ["0 | half", "1 | half", "0 | 99%", "1 | 99%"], "SCREEN-1");
    }

    #[test]
    fn a_bar_that_ended_stays_as_a_line_of_its_own() {
        let rows = shown(80, 24, |screen, out| {
            screen.update((Rank(0), OUT), b"", b"0 | 100%", out);
            screen.update((Rank(1), OUT), b"", b"1 | 10%", out);
            screen.update((Rank(0), OUT), b"0 | 100%\n", b"", out);
            screen.update((Rank(1), OUT), b"", b"1 | 20%", out);
        });
        assert_eq!(rows, ["0 | 100%", "1 | 20%"]);
    }

    #[test]
    fn long_bars_are_cut_and_more_bars_than_rows_are_left_out() {
        let rows = shown(8, 4, |screen, out| {
            for rank in 0..9 {
                screen.update((Rank(rank), OUT), b"", "█████████████".as_bytes(), out);
            }
        });
        assert_eq!(rows, ["███████"; 2]);
        assert_eq!(cut(b"\x1b[33m1 | \x1b[0mabc", 5), b"\x1b[33m1 | \x1b[0ma");
    }

    #[test]
    fn what_was_typed_stays_below_the_question() {
        let rows = shown(80, 24, |screen, out| {
            screen.update((Rank(0), OUT), b"", b"0 | name?", out);
            out.extend_from_slice(b"Ada\n");
            screen.typed();
            screen.update((Rank(0), OUT), b"0 | hello Ada\n", b"", out);
        });
        assert_eq!(rows, ["0 | name?", "Ada", "0 | hello Ada"]);
    }

    #[test]
    fn a_rank_cannot_move_the_cursor() {
        assert_eq!(without_moves(b"a\x1b[A\x1b[2Kb\x1b[31mc\x1b[0m"), b"ab\x1b[31mc\x1b[0m");
        assert_eq!(without_moves(b"cut off \x1b[12"), b"cut off ");
    }

    #[test]
    fn what_does_not_change_is_not_drawn_again() {
        let mut screen = Screen::new(ScreenSize { columns: 80, rows: 24 });
        let mut out = Vec::new();
        screen.update((Rank(0), OUT), b"", b"x", &mut out);
        out.clear();
        screen.update((Rank(0), OUT), b"", b"x", &mut out);
        assert!(out.is_empty());
    }
}
