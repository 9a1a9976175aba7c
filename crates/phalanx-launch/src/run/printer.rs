//! The thread that owns the console and the log files. Threads that deliver output wait while the console blocks.
//!
//! - PRINT-1: no delivered output is lost, and at most [`WAITING`] pieces are queued.
//! - PRINT-2: a closed stdout ends the job but not the printer, which continues to drain the ranks' output.

use super::{News, files::OutputFiles, lines::Splitter, prefix::Prefixes, screen::Screen};
use crate::wire::OutputStream;
use phalanx_core::Rank;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Write},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

const WAITING: usize = 64;
/// How much of a failed rank's stderr is kept: the summary repeats the end of it, or a traceback.
const TAIL_LINES: usize = 100;

/// What is brought to the console.
#[derive(Debug)]
pub enum Piece {
    /// Output of a rank, or the end of a stream when there are no bytes.
    Output { rank: Rank, stream: OutputStream, bytes: Option<Vec<u8>> },
    /// The launcher's own words, for a terminal on which lines change; elsewhere they need not wait for the ranks'.
    Notice(String),
    /// The user pressed Enter.
    Typed,
}

/// The last lines each rank wrote to stderr.
pub type Tails = Vec<VecDeque<String>>;

/// How lines look.
#[derive(Debug)]
pub enum Look {
    /// As they come, byte by byte: only one rank speaks.
    Raw,
    /// Whole lines, nothing before them.
    Plain,
    Prefixed(Prefixes),
}

#[derive(Debug)]
pub struct Printer {
    pub look: Look,
    /// Whether stdout and stderr show colours.
    pub colour: [bool; 2],
    pub files: Option<OutputFiles>,
    pub n_ranks: u32,
    /// The processes whose output is shown.
    pub shows: Vec<bool>,
    /// The terminal, if lines may change on it, and which of stdout and stderr go there.
    pub screen: Option<Screen>,
    pub on_screen: [bool; 2],
    /// Ranks that may ask the user: their unfinished lines are shown, too.
    pub asks: Vec<bool>,
}

impl Printer {
    /// Starts the thread. It ends when nobody can bring output any more, and then gives the tails as news.
    pub fn start(self, news: SyncSender<News>) -> SyncSender<Piece> {
        let (bring, pieces) = sync_channel(WAITING);
        thread::spawn(move || {
            let tails = Printing::new(self, news.clone()).all(&pieces);
            let _ = news.send(News::Printed(tails));
        });
        bring
    }
}

impl Printer {
    /// Whether lines of this stream may change. A single rank has the terminal for itself.
    fn is_live(&self, stream: OutputStream) -> bool {
        self.screen.is_some() && self.on_screen[stream as usize] && !matches!(self.look, Look::Raw)
    }
}

struct Printing {
    printer: Printer,
    news: SyncSender<News>,
    splitters: Vec<[Splitter; 2]>,
    tails: Tails,
    closed: [bool; 2],
    files_failed: bool,
}

impl Printing {
    fn new(printer: Printer, news: SyncSender<News>) -> Printing {
        let n_ranks = printer.n_ranks as usize;
        let splitter = |stream| match printer.is_live(stream) {
            true => Splitter::overwriting(),
            false => Splitter::default(),
        };
        let splitters =
            (0..n_ranks).map(|_| [splitter(OutputStream::Stdout), splitter(OutputStream::Stderr)]).collect();
        Printing {
            printer,
            news,
            splitters,
            tails: vec![VecDeque::new(); n_ranks],
            closed: [false; 2],
            files_failed: false,
        }
    }

    fn all(mut self, pieces: &Receiver<Piece>) -> Tails {
        for piece in pieces {
            match piece {
                Piece::Output { rank, stream, bytes } => {
                    if let Some(bytes) = &bytes {
                        self.keep(rank, stream, bytes);
                    }
                    self.show(rank, stream, bytes.as_deref());
                }
                Piece::Notice(text) => self.tell(&text),
                Piece::Typed => self.typed(),
            }
        }
        // Streams whose host was lost never said that they ended.
        for rank in (0..self.printer.n_ranks).map(Rank) {
            self.show(rank, OutputStream::Stdout, None);
            self.show(rank, OutputStream::Stderr, None);
        }
        self.tails
    }

    fn keep(&mut self, rank: Rank, stream: OutputStream, bytes: &[u8]) {
        let Some(files) = &mut self.printer.files else { return };
        if let Err(error) = files.write(rank, stream, bytes)
            && !self.files_failed
        {
            self.files_failed = true;
            let _ = writeln!(io::stderr(), "phalanx: cannot write rank {rank}'s output file: {error}");
        }
    }

    fn tell(&mut self, text: &str) {
        let mut out = Vec::new();
        let is_live = self.printer.is_live(OutputStream::Stderr);
        match self.printer.screen.as_mut().filter(|_| is_live) {
            Some(screen) => screen.print(text.as_bytes(), &mut out),
            None => out.extend_from_slice(text.as_bytes()),
        }
        self.write(OutputStream::Stderr, &out);
    }

    /// What was asked has been answered: the question stays where it is.
    fn typed(&mut self) {
        let Some(screen) = &mut self.printer.screen else { return };
        screen.typed();
        let asking = self.splitters.iter_mut().zip(&self.printer.asks).filter(|(_, asks)| **asks);
        asking.flat_map(|(both, _)| both).filter(|s| s.changing().is_none()).for_each(Splitter::forget);
    }

    fn show(&mut self, rank: Rank, stream: OutputStream, bytes: Option<&[u8]>) {
        let i = stream as usize;
        let is_shown = self.printer.shows[rank.index()];
        let (look, colour) = (&self.printer.look, self.printer.colour[i]);
        let tail = &mut self.tails[rank.index()];
        let mut out = Vec::new();
        let emit = |line: &[u8]| {
            if stream == OutputStream::Stderr {
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(String::from_utf8_lossy(line).into_owned());
            }
            match look {
                Look::Raw => {}
                Look::Plain => {
                    out.extend_from_slice(line);
                    out.push(b'\n');
                }
                Look::Prefixed(prefixes) => prefixes.write_line(rank, line, colour, &mut out),
            }
        };
        let splitter = &mut self.splitters[rank.index()][i];
        match bytes {
            Some(bytes) => splitter.feed(bytes, emit),
            None => splitter.finish(emit),
        }
        if !is_shown {
            return;
        }
        match (look, bytes) {
            (Look::Raw, Some(bytes)) => self.write(stream, bytes),
            _ if self.printer.is_live(stream) => self.draw(rank, stream, &out),
            _ => self.write(stream, &out),
        }
    }

    /// Shows lines that ended, and the one that changes, or asks.
    fn draw(&mut self, rank: Rank, stream: OutputStream, lines: &[u8]) {
        let (i, mut line, mut out) = (stream as usize, Vec::new(), Vec::new());
        let splitter = &self.splitters[rank.index()][i];
        let asks = self.printer.asks[rank.index()];
        let unfinished = splitter.changing().or_else(|| asks.then(|| splitter.unfinished()));
        if let Some(text) = unfinished.filter(|text| !text.is_empty()) {
            match &self.printer.look {
                Look::Prefixed(prefixes) => {
                    prefixes.write_line(rank, text, self.printer.colour[i], &mut line);
                    line.pop();
                }
                Look::Plain | Look::Raw => line.extend_from_slice(text),
            }
        }
        if let Some(screen) = &mut self.printer.screen {
            screen.update((rank, i), lines, &line, &mut out);
        }
        self.write(stream, &out);
    }

    fn write(&mut self, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() || self.closed[stream as usize] {
            return;
        }
        let result = match stream {
            OutputStream::Stdout => write_now(&mut io::stdout().lock(), bytes),
            OutputStream::Stderr => write_now(&mut io::stderr().lock(), bytes),
        };
        if let Err(error) = result {
            self.closed[stream as usize] = true;
            match (stream, error.kind()) {
                (OutputStream::Stdout, ErrorKind::BrokenPipe) => {
                    let _ = self.news.send(News::OutputClosed);
                }
                (OutputStream::Stdout, _) => {
                    let _ = writeln!(io::stderr(), "phalanx: cannot write to stdout any more: {error}");
                    let _ = self.news.send(News::OutputClosed);
                }
                // Nobody is left to tell.
                (OutputStream::Stderr, _) => {}
            }
        }
    }
}

fn write_now(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
