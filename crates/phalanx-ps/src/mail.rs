//! Letters on their way: over a link, or within a process.

use crate::{
    letter::{BodyLengths, HEADER, LetterError, Road, RowLetter},
    spec::TableSpec,
    values::RowValues,
};
use phalanx_net::Link;
use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// One system call moves at most this much, so that connections take turns.
const PIECE: usize = 1 << 20;

/// Why a connection carries nothing more.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    #[error(transparent)]
    Unreadable(#[from] LetterError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A link with letters that have come in part and letters that have left in part.
#[derive(Debug)]
pub struct RowWire {
    pub link: Arc<Link>,
    road: Road,
    arriving: Arriving,
    leaving: VecDeque<Leaving>,
    pub bytes_out: u64,
    pub bytes_in: u64,
}

#[derive(Debug)]
enum Arriving {
    Header { bytes: [u8; HEADER], have: usize },
    Body { letter: Box<RowLetter>, have: usize, total: usize },
}

#[derive(Debug)]
struct Leaving {
    header: [u8; HEADER],
    letter: RowLetter,
    done: usize,
}

impl RowWire {
    pub fn new(link: Arc<Link>, road: Road) -> RowWire {
        RowWire {
            link,
            road,
            arriving: Arriving::NOTHING,
            leaving: VecDeque::new(),
            bytes_out: 0,
            bytes_in: 0,
        }
    }

    pub fn send(&mut self, letter: RowLetter) {
        self.leaving.push_back(Leaving { header: letter.header(), letter, done: 0 });
    }

    /// Whether something waits to leave.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty() || self.link.holds()
    }

    /// Sends what goes now.
    pub fn flush(&mut self) -> io::Result<()> {
        loop {
            if self.link.holds() && !self.link.flush()? {
                return Ok(());
            }
            let Some(next) = self.leaving.front_mut() else { return Ok(()) };
            let n = self.link.send_some(&next.parts())?;
            if n == 0 {
                return Ok(());
            }
            next.done += n;
            self.bytes_out += n as u64;
            if next.done == next.total() {
                self.leaving.pop_front();
            }
        }
    }

    /// The next whole letter, if it has arrived.
    pub fn receive(&mut self, specs: &[TableSpec]) -> Result<Option<RowLetter>, MailError> {
        let (link, bytes_in) = (&self.link, &mut self.bytes_in);
        self.arriving.next(specs, self.road, |room| {
            let n = link.recv_some(room)?;
            *bytes_in += n as u64;
            Ok(n)
        })
    }
}

impl Arriving {
    const NOTHING: Arriving = Arriving::Header { bytes: [0; HEADER], have: 0 };

    /// The next whole letter; `None` as soon as `read`, which fills what it is given as far as it can, has nothing.
    fn next(
        &mut self,
        specs: &[TableSpec],
        road: Road,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<Option<RowLetter>, MailError> {
        loop {
            match self {
                Arriving::Header { bytes, have } => {
                    let n = read(&mut bytes[*have..])?;
                    if n == 0 {
                        return Ok(None);
                    }
                    *have += n;
                    if *have == HEADER {
                        let (mut letter, body) = RowLetter::parse(bytes, specs, road)?;
                        make_room(&mut letter, body);
                        let total = body.ids * 4 + body.touches * 4 + body.bytes;
                        *self = Arriving::Body { letter: Box::new(letter), have: 0, total };
                    }
                }
                Arriving::Body { letter, have, total } if *have < *total => {
                    let n = read(room(letter, *have))?;
                    if n == 0 {
                        return Ok(None);
                    }
                    *have += n;
                }
                Arriving::Body { .. } => {
                    let Arriving::Body { letter, .. } = std::mem::replace(self, Arriving::NOTHING) else {
                        unreachable!("it was a body above");
                    };
                    letter.check(specs)?;
                    return Ok(Some(*letter));
                }
            }
        }
    }
}

/// The letters that bytes are, until they are none any more; `piece` is how many come at once.
pub fn letters_in(mut bytes: &[u8], piece: usize, specs: &[TableSpec], road: Road) -> Vec<RowLetter> {
    let (mut arriving, mut all) = (Arriving::NOTHING, Vec::new());
    let mut read = |room: &mut [u8]| {
        let n = room.len().min(bytes.len()).min(piece.max(1));
        room[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        Ok(n)
    };
    while let Ok(Some(letter)) = arriving.next(specs, road, &mut read) {
        all.push(letter);
    }
    all
}

fn make_room(letter: &mut RowLetter, body: BodyLengths) {
    letter.rows.ids = vec![0; body.ids];
    letter.rows.touches = vec![0; body.touches];
    letter.rows.values = RowValues::zeros(body.bytes);
}

/// Where the byte number `have` of the body goes, to the end of its part.
fn room(letter: &mut RowLetter, have: usize) -> &mut [u8] {
    let rows = &mut letter.rows;
    let (ids, touches) = (rows.ids.len() * 4, rows.touches.len() * 4);
    let whole: &mut [u8] = if have < ids {
        &mut bytemuck::cast_slice_mut(&mut rows.ids)[have..]
    } else if have < ids + touches {
        &mut bytemuck::cast_slice_mut(&mut rows.touches)[have - ids..]
    } else {
        &mut rows.values.bytes_mut()[have - ids - touches..]
    };
    let n = whole.len().min(PIECE);
    &mut whole[..n]
}

impl Leaving {
    fn total(&self) -> usize {
        let rows = &self.letter.rows;
        HEADER + rows.ids.len() * 4 + rows.touches.len() * 4 + rows.values.len()
    }

    /// What has not left, at most a piece of it.
    fn parts(&self) -> [IoSlice<'_>; 4] {
        let rows = &self.letter.rows;
        let all: [&[u8]; 4] = [
            &self.header,
            bytemuck::cast_slice(&rows.ids),
            bytemuck::cast_slice(&rows.touches),
            rows.values.bytes(),
        ];
        let (mut skip, mut left) = (self.done, PIECE);
        all.map(|part| {
            let from = skip.min(part.len());
            skip -= from;
            let n = (part.len() - from).min(left);
            left -= n;
            IoSlice::new(&part[from..from + n])
        })
    }
}

/// Letters within a process, from one thread to another.
#[derive(Debug, Default)]
pub struct Pouch {
    /// A lock because two threads share it; held only to add or to take a letter.
    letters: Mutex<VecDeque<RowLetter>>,
    news: Condvar,
}

impl Pouch {
    pub fn put(&self, letter: RowLetter) {
        self.lock().push_back(letter);
        self.news.notify_one();
    }

    pub fn take(&self) -> Option<RowLetter> {
        self.lock().pop_front()
    }

    /// The same, after a wait of at most so long.
    pub fn await_one(&self, at_most: Duration) -> Option<RowLetter> {
        let waited = self.news.wait_timeout_while(self.lock(), at_most, |letters| letters.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RowLetter>> {
        // A panic elsewhere must not hide the letters that came before it.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
