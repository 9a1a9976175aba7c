//! A rank that only serves: it opens the tables that rank 0 offers, until all workers have left.

use crate::{
    error::PsError,
    offer::{Offers, TablesOffer},
    tables::Tables,
};
use phalanx_net::{NetError, World, lost::Cause};
use std::{sync::Arc, time::Instant};

/// What a server has, and where it hears of more.
#[derive(Debug)]
pub struct Serving {
    world: Arc<World>,
    offers: Offers,
    opened: Vec<Tables>,
}

/// What a server has to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerCall {
    /// Rank 0 opens these: [`Serving::open`].
    Open(TablesOffer),
    /// All workers have left in order: [`Serving::end`].
    End,
}

impl Serving {
    pub fn new(world: Arc<World>) -> Result<Serving, PsError> {
        let offers = Offers::of(&world)?;
        Ok(Serving { world, offers, opened: Vec::new() })
    }

    /// Serves what is open. `None` when `until` has come.
    pub fn poll(&mut self, until: Instant) -> Result<Option<ServerCall>, PsError> {
        match self.world.serve_until_workers_left(Some(until), || true) {
            Ok(true) => return Ok(Some(ServerCall::End)),
            Ok(false) => {}
            // Workers that need no tables may be done before every server is ready.
            Err(NetError::PeerLost { cause: Cause::Left, .. }) if self.opened.is_empty() => {
                return Ok(Some(ServerCall::End));
            }
            Err(why) => return Err(why.into()),
        }
        for tables in &mut self.opened {
            tables.follow()?;
        }
        let offer = self.offers.next().map_err(PsError::Offer)?;
        Ok(offer.map(ServerCall::Open))
    }

    /// Opens what was offered, together with the workers.
    pub fn open(&mut self, offer: &TablesOffer) -> Result<(), PsError> {
        match Tables::open_as(&self.world, offer.specs(), offer.terms()) {
            Ok(tables) => self.opened.push(tables),
            // Rank 0 has asked for something impossible, and is told the same.
            Err(
                PsError::Spec { .. }
                | PsError::Twice(_)
                | PsError::Memory { .. }
                | PsError::Differs { .. }
                | PsError::Unopened(_),
            ) => {}
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Ends in order.
    pub fn end(self) -> Result<(), PsError> {
        self.opened.into_iter().try_for_each(Tables::serve)
    }

    /// Leaves everything as it is: the others learn of the end of this process, or know more than it does, and its tables must not speak for it.
    pub fn abandon(self) {
        std::mem::forget(self.opened);
    }
}
