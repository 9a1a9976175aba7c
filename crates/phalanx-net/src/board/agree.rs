//! What ranks exchange on a private board: where the hub is, and a secret where none was given.
//!
//! ```text
//! every rank   NAME.rank      its public key, or that it was given a secret; rank 0 adds its addresses
//!              (all ranks have come)
//! rank 0       NAME.for.rank  the secret, sealed for this rank
//!              (all ranks have come)
//! ```
//! With a given secret the first half is all there is.

use super::{
    Meet, Party, Wait,
    announcement::{Announcement, Trust},
    encoding::{hex, unhex},
    held::Numbered,
    seal::KeyPair,
    wire::nonsense,
};
use crate::{
    discover::BoardAddress,
    error::{BoardError, NetError},
    hub::Hub,
    secret::Secret,
};
use phalanx_core::Rank;

/// What went wrong: on the board, or while the hub was opened.
#[derive(Debug)]
pub enum Disagreement {
    Board(BoardError),
    Other(NetError),
}

impl Disagreement {
    pub fn at(self, address: &BoardAddress) -> NetError {
        match self {
            Disagreement::Board(error) => NetError::Board { board: address.to_string(), error },
            Disagreement::Other(error) => error,
        }
    }
}

impl From<BoardError> for Disagreement {
    fn from(error: BoardError) -> Disagreement {
        Disagreement::Board(error)
    }
}

impl From<NetError> for Disagreement {
    fn from(error: NetError) -> Disagreement {
        Disagreement::Other(error)
    }
}

/// The secret of one meeting, made from one that the user gave.
pub fn of_meeting(given: &Secret, id: &[u8; 16]) -> Secret {
    given.derive(&[b"board ".as_slice(), id].concat())
}

/// Fresh and public.
pub fn fresh_id() -> [u8; 16] {
    let random = Secret::random();
    std::array::from_fn(|i| random.expose()[i])
}

/// `serve` opens the hub on rank 0, and nothing on other ranks.
pub fn on_private_board(
    Numbered { board, meeting }: Numbered<'_>,
    Party { rank: me, n_ranks }: Party,
    given: Option<Secret>,
    wait: Wait,
    serve: &dyn Fn(&Secret) -> Result<Option<Hub>, NetError>,
) -> Result<Meet, Disagreement> {
    let of = |rank: Rank| format!("phalanx.{meeting}.{rank}");
    let sealed_for = |rank: Rank| format!("phalanx.{meeting}.for.{rank}");
    let keys = KeyPair::random();
    let mine = if given.is_some() { Trust::Given } else { Trust::Exchange(keys.public) };

    if me == Rank::ZERO {
        let id = fresh_id();
        let secret = given.as_ref().map_or_else(Secret::random, |given| of_meeting(given, &id));
        let hub = serve(&secret)?;
        let addresses = hub.as_ref().map(|hub| hub.addresses().to_vec()).unwrap_or_default();
        let announced = Announcement { id, trust: mine, addresses };
        board.publish(&of(me), &announced.to_text(board.longest()), wait)?;
        board.settle(wait)?;
        if given.is_none() {
            for rank in (1..n_ranks).map(Rank) {
                let text = board.look(rank, &of(rank), wait)?;
                let sealed = match Trust::parse(&text).ok_or_else(|| nonsense(&text))? {
                    Trust::Given => return Err(BoardError::SecretOnSome { with: rank, without: me }.into()),
                    Trust::Exchange(public) => {
                        keys.seal(rank, &public, &secret).ok_or_else(|| nonsense(&text))?
                    }
                };
                board.publish(&sealed_for(rank), &hex(&sealed), wait)?;
            }
            board.settle(wait)?;
        }
        let addresses = announced.addresses.iter().map(ToString::to_string).collect();
        return Ok(Meet { addresses, secret, hub, post: None });
    }

    board.publish(&of(me), &mine.to_text(), wait)?;
    board.settle(wait)?;
    let text = board.look(Rank::ZERO, &of(Rank::ZERO), wait)?;
    let announced = Announcement::parse(&text).ok_or_else(|| nonsense(&text))?;
    let secret = match (&given, announced.trust) {
        (Some(given), Trust::Given) => of_meeting(given, &announced.id),
        (Some(_), Trust::Exchange(_)) => {
            return Err(BoardError::SecretOnSome { with: me, without: Rank::ZERO }.into());
        }
        (None, Trust::Given) => {
            return Err(BoardError::SecretOnSome { with: Rank::ZERO, without: me }.into());
        }
        (None, Trust::Exchange(zeros)) => {
            board.settle(wait)?;
            let text = board.look(Rank::ZERO, &sealed_for(me), wait)?;
            let opened = unhex(&text).and_then(|sealed| keys.open(me, &zeros, &sealed));
            opened.ok_or_else(|| nonsense(&text))?
        }
    };
    let addresses = announced.addresses.iter().map(ToString::to_string).collect();
    Ok(Meet { addresses, secret, hub: None, post: None })
}

#[cfg(test)]
mod tests;
