//! The thread that owns the console and the log files. Whoever brings output waits while the console does.
//!
//! - PRINT-1: nothing brought is lost, and at most [`WAITING`] pieces are kept.
//! - PRINT-2: a closed stdout ends the job, never the printer: it goes on emptying what the ranks say.

use super::{News, files::Files, lines::Splitter, prefix::Prefixes};
use crate::wire::Stream;
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

/// Output of a rank, or the end of a stream when there are no bytes.
#[derive(Debug)]
pub struct Piece {
    pub rank: Rank,
    pub stream: Stream,
    pub bytes: Option<Vec<u8>>,
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
    pub files: Option<Files>,
    pub n_ranks: u32,
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
        let splitters = (0..n_ranks).map(|_| Default::default()).collect();
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
        for Piece { rank, stream, bytes } in pieces {
            match bytes {
                Some(bytes) => {
                    self.keep(rank, stream, &bytes);
                    self.show(rank, stream, Some(&bytes));
                }
                None => self.show(rank, stream, None),
            }
        }
        // Streams whose host was lost never said that they ended.
        for rank in (0..self.printer.n_ranks).map(Rank) {
            self.show(rank, Stream::Stdout, None);
            self.show(rank, Stream::Stderr, None);
        }
        self.tails
    }

    fn keep(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) {
        let Some(files) = &mut self.printer.files else { return };
        if let Err(error) = files.write(rank, stream, bytes)
            && !self.files_failed
        {
            self.files_failed = true;
            let _ = writeln!(io::stderr(), "phalanx: cannot write rank {rank}'s output file: {error}");
        }
    }

    fn show(&mut self, rank: Rank, stream: Stream, bytes: Option<&[u8]>) {
        let i = stream as usize;
        let (look, colour) = (&self.printer.look, self.printer.colour[i]);
        let tail = &mut self.tails[rank.index()];
        let mut out = Vec::new();
        let emit = |line: &[u8]| {
            if stream == Stream::Stderr {
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
        match (look, bytes) {
            (Look::Raw, Some(bytes)) => self.write(stream, bytes),
            _ => self.write(stream, &out),
        }
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() || self.closed[stream as usize] {
            return;
        }
        let result = match stream {
            Stream::Stdout => write_now(&mut io::stdout().lock(), bytes),
            Stream::Stderr => write_now(&mut io::stderr().lock(), bytes),
        };
        if let Err(error) = result {
            self.closed[stream as usize] = true;
            match (stream, error.kind()) {
                (Stream::Stdout, ErrorKind::BrokenPipe) => {
                    let _ = self.news.send(News::OutputClosed);
                }
                (Stream::Stdout, _) => {
                    let _ = writeln!(io::stderr(), "phalanx: cannot write to stdout any more: {error}");
                    let _ = self.news.send(News::OutputClosed);
                }
                // Nobody is left to tell.
                (Stream::Stderr, _) => {}
            }
        }
    }
}

fn write_now(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
