//! How ranks that only serve learn which tables to open: rank 0 offers them, on links of their own.
//!
//! A table of Python's has no first values of its own (ranks write them), so its description is all that a server needs: it runs no line of
//! the training script.

use crate::tables::{Described, spec};
use phalanx_core::Rank;
use phalanx_net::{Link, NetError, World, frame};
use phalanx_ps::{Consistency, PsError, TableSpec, TableTerms};
use pyo3::PyResult;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, IoSlice},
    sync::Arc,
    time::Instant,
};

/// The number of these links. Neither communicators nor tables are as many.
const STREAM: u32 = u32::MAX;
/// More bytes than the descriptions of any model's tables take.
const MOST: usize = 1 << 24;
/// Nothing is awaited this long without a look around.
const NAP_NS: i64 = 20_000_000;

/// The arguments of `Tables::open`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TablesOffer {
    pub tables: Vec<Described>,
    pub staleness: Option<i64>,
    /// Whether one of a host's ranks collects what all of them want and give.
    pub collects: bool,
}

impl TablesOffer {
    pub fn specs(&self) -> PyResult<Vec<TableSpec>> {
        self.tables.iter().cloned().map(spec).collect()
    }

    /// A staleness below 0 is no bound; `None` is none at all.
    pub fn terms(&self) -> TableTerms {
        let consistency = match self.staleness {
            None => Consistency::Sync,
            Some(k) => u64::try_from(k).map_or(Consistency::Async, Consistency::Bounded),
        };
        TableTerms { consistency, step: 0, collects: self.collects }
    }

    /// Tells every rank that only serves; rank 0 does.
    pub fn send(&self, world: &World) -> Result<(), PsError> {
        if world.rank() != Rank(0) {
            return Ok(());
        }
        let bytes = frame::encode(self).map_err(|why| PsError::Refused(why.to_string()))?;
        for server in world.servers() {
            let link = world.link(server, STREAM)?;
            send_all(world, &link, &bytes).map_err(|why| PsError::ServerLost {
                rank: server,
                serves: "no table yet".to_string(),
                why: why.to_string(),
            })?;
        }
        Ok(())
    }
}

fn send_all(world: &World, link: &Link, bytes: &[u8]) -> io::Result<()> {
    let until = Instant::now() + world.config().timeout;
    let mut done = 0;
    while done < bytes.len() || link.holds() {
        let is_free = !link.holds() || link.flush()?;
        let n =
            if is_free && done < bytes.len() { link.send_some(&[IoSlice::new(&bytes[done..])])? } else { 0 };
        done += n;
        if n == 0 {
            if world.casualties().cause(link.peer()).is_some() || Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::new(link, PollFlags::OUT)];
            // An interrupted wait is a short one.
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: NAP_NS }));
        }
    }
    Ok(())
}

/// What rank 0 offers, as a server sees it.
#[derive(Debug)]
pub struct Offers {
    /// `None` once rank 0 has left.
    link: Option<Arc<Link>>,
    decoder: frame::Decoder,
}

impl Offers {
    pub fn of(world: &World) -> Result<Offers, NetError> {
        let link = Some(world.link(Rank(0), STREAM)?);
        Ok(Offers { link, decoder: frame::Decoder::new(MOST) })
    }

    /// The next offer that has arrived.
    pub fn next(&mut self) -> Result<Option<TablesOffer>, frame::FrameError> {
        let mut bytes = [0; 1 << 12];
        while let Some(link) = &self.link {
            match link.recv_some(&mut bytes) {
                Ok(0) => break,
                Ok(n) => self.decoder.feed(&bytes[..n]),
                // It has left, or is lost, which those who wait for workers notice.
                Err(_) => self.link = None,
            }
        }
        self.decoder.take()
    }
}
