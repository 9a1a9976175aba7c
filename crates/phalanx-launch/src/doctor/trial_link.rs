//! Measures a link between two ranks: the round trip of a small message, and bytes a second. Every wait has a deadline.

use phalanx_net::Link;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, IoSlice},
    time::{Duration, Instant},
};

/// Begins a message: another one follows, or this is the last.
const MORE: u8 = 1;
const LAST: u8 = 0;
const SMALL: usize = 8;
/// Round trips that are not counted: the first ones find cold caches.
const N_WARM: usize = 10;
const N_ROUND_TRIPS: usize = 1000;
const PIECE: usize = 256 << 10;
/// At most this many pieces are on their way. It begins with one and grows with every answer, so that a slow network is not filled for minutes.
const MOST_ON_THE_WAY: usize = 64;

/// A link, and until when everything on it has to be over.
pub struct Stretch<'a> {
    pub link: &'a Link,
    pub deadline: Instant,
}

impl Stretch<'_> {
    /// Sends small messages for at most so long, and returns the median time until each came back, in microseconds.
    pub fn round_trip_us(&self, at_most: Duration) -> io::Result<f64> {
        let (mut times, start) = (Vec::new(), Instant::now());
        for n in 0.. {
            let is_last = n == N_WARM + N_ROUND_TRIPS || (n > N_WARM && start.elapsed() > at_most);
            let mut message = [if is_last { LAST } else { MORE }; SMALL];
            let began = Instant::now();
            self.send(&message)?;
            self.receive(&mut message)?;
            if n >= N_WARM {
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
            if is_last {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Sends back small messages, until the last one.
    pub fn echo(&self) -> io::Result<()> {
        let mut message = [MORE; SMALL];
        while message[0] == MORE {
            self.receive(&mut message)?;
            self.send(&message)?;
        }
        Ok(())
    }

    /// Sends pieces for so long and returns how many bytes a second the other side has taken.
    pub fn bytes_per_second(&self, for_long: Duration) -> io::Result<f64> {
        let mut piece = vec![MORE; PIECE];
        let (mut n_sent, mut n_taken, mut first): (usize, usize, Option<Instant>) = (0, 0, None);
        let start = Instant::now();
        loop {
            let is_last = start.elapsed() > for_long;
            piece[0] = if is_last { LAST } else { MORE };
            self.send(&piece)?;
            n_sent += 1;
            let most = if is_last { 0 } else { (1 + n_taken).min(MOST_ON_THE_WAY) - 1 };
            while n_sent - n_taken > most {
                self.receive(&mut [0])?;
                n_taken += 1;
                first.get_or_insert_with(Instant::now);
            }
            if is_last {
                break;
            }
        }
        // The first piece came before the network was warm; where there is no other, it is what there is.
        let (n, since) = match first {
            Some(first) if n_taken > 1 => (n_taken - 1, first),
            _ => (n_taken, start),
        };
        Ok((n * PIECE) as f64 / since.elapsed().as_secs_f64())
    }

    /// Takes pieces and answers each, until the last one.
    pub fn sink(&self) -> io::Result<()> {
        let mut piece = vec![MORE; PIECE];
        while piece[0] == MORE {
            self.receive(&mut piece)?;
            self.send(&[MORE])?;
        }
        Ok(())
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() || self.link.holds() {
            // An encrypted link takes nothing more before what it holds has left.
            let n = if self.link.flush()? && !bytes.is_empty() {
                self.link.send_some(&[IoSlice::new(bytes)])?
            } else {
                0
            };
            bytes = &bytes[n..];
            if n == 0 && (!bytes.is_empty() || self.link.holds()) {
                self.wait(PollFlags::OUT)?;
            }
        }
        Ok(())
    }

    fn receive(&self, into: &mut [u8]) -> io::Result<()> {
        let mut n = 0;
        while n < into.len() {
            match self.link.recv_some(&mut into[n..])? {
                0 => self.wait(PollFlags::IN)?,
                came => n += came,
            }
        }
        Ok(())
    }

    fn wait(&self, wanted: PollFlags) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut [PollFd::new(self.link, wanted)], Some(&limit)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
