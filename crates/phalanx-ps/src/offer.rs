//! How ranks that only serve learn which tables to open: rank 0 offers them, on links of their own.
//!
//! First values are not offered: workers write them into tables that were offered. So a description is all that a server needs, and it runs no
//! line of the program that trains.

use crate::{
    error::PsError,
    spec::{RowReduction, Spread, TableRule, TableSpec},
    tables::{Consistency, TableTerms},
};
use phalanx_core::{DType, Rank};
use phalanx_net::{
    Link, NetError, World,
    frame::{self, FrameError},
    lost::Cause,
};
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

/// A table without its first values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OfferedTable {
    name: String,
    height: u64,
    width: usize,
    dtype: DType,
    rule: TableRule,
    reduction: RowReduction,
    wire: Option<DType>,
    partitions: u32,
    spread: Spread,
    raw: bool,
}

/// The arguments of `Tables::open_as`. Rows begin with zeros, and workers write them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TablesOffer {
    tables: Vec<OfferedTable>,
    consistency: Consistency,
    step: u64,
    collects: bool,
    most_bytes: Option<u64>,
}

impl TablesOffer {
    pub fn of(specs: &[TableSpec], terms: TableTerms) -> TablesOffer {
        let offered = |spec: &TableSpec| OfferedTable {
            name: spec.name.clone(),
            height: spec.height,
            width: spec.width,
            dtype: spec.dtype,
            rule: spec.rule,
            reduction: spec.reduction,
            wire: spec.wire,
            partitions: spec.partitions,
            spread: spec.spread,
            raw: spec.raw,
        };
        let TableTerms { consistency, step, collects, most_bytes } = terms;
        TablesOffer { tables: specs.iter().map(offered).collect(), consistency, step, collects, most_bytes }
    }

    pub fn specs(&self) -> Vec<TableSpec> {
        let spec = |table: &OfferedTable| TableSpec {
            name: table.name.clone(),
            height: table.height,
            width: table.width,
            dtype: table.dtype,
            first: Arc::new(|_, _| ()),
            rule: table.rule,
            reduction: table.reduction,
            wire: table.wire,
            partitions: table.partitions,
            spread: table.spread,
            raw: table.raw,
        };
        self.tables.iter().map(spec).collect()
    }

    pub fn terms(&self) -> TableTerms {
        let TablesOffer { consistency, step, collects, most_bytes, .. } = *self;
        TableTerms { consistency, step, collects, most_bytes }
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
pub(crate) struct Offers {
    /// `None` once rank 0 has left.
    link: Option<Arc<Link>>,
    decoder: frame::Decoder,
}

impl Offers {
    pub(crate) fn of(world: &World) -> Result<Offers, NetError> {
        let link = match world.link(Rank(0), STREAM) {
            Ok(link) => Some(link),
            // It needed no tables, and was done before this rank was ready to serve.
            Err(_) if world.casualties().cause(Rank(0)) == Some(Cause::Left) => None,
            Err(why) => return Err(why),
        };
        Ok(Offers { link, decoder: frame::Decoder::new(MOST) })
    }

    /// The next offer that has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<TablesOffer>, FrameError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        spec::{TableClip, TableUpdate},
        testing,
    };
    use phalanx_core::kernel::update::RmsProp;

    #[test]
    fn an_offer_arrives_as_the_table_that_was_described() {
        let rms = RmsProp { rho: 0.9, epsilon: 1e-6, mu: 0.5, under_root: true };
        let rule = TableRule {
            decay: 0.1,
            first_state: 0.25,
            clip: TableClip::Norm(2.0),
            ..TableRule::new(TableUpdate::RmsProp(rms))
        };
        let spec = TableSpec {
            rule,
            wire: Some(DType::BF16),
            raw: true,
            height: 12,
            width: 3,
            ..testing::spec("words")
        };
        let terms = TableTerms {
            consistency: Consistency::Bounded(3),
            step: 7,
            collects: false,
            most_bytes: Some(1 << 40),
        };
        let bytes = frame::encode(&TablesOffer::of(&[spec], terms)).unwrap();
        let mut decoder = frame::Decoder::new(MOST);
        decoder.feed(&bytes);
        let offer: TablesOffer = decoder.take().unwrap().unwrap();
        assert_eq!(offer.terms(), terms);
        let [back] = &offer.specs()[..] else { panic!("one table was offered") };
        assert_eq!((back.name.as_str(), back.height, back.width, back.raw), ("words", 12, 3, true));
        assert_eq!((back.rule, back.wire), (rule, Some(DType::BF16)));
        let mut row = [0xff; 12];
        (back.first)(0, &mut row);
        assert_eq!(row, [0xff; 12], "workers write first values");
    }
}
