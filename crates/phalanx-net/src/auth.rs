//! Mutual authentication: two processes of a job prove that they know its secret. No I/O: bytes in, bytes out.
//!
//! ```text
//! connector -> acceptor   magic, version, purpose, wish, build, nonce      (40 bytes)
//! connector <- acceptor   magic, version, wish, build, nonce, proof        (72 bytes)
//! connector -> acceptor   who I am, proof                                  (48 bytes)
//! ```
//! The build is a digest of what proofs are made of ([`crate::build_tag`]). No proof covers it: it only explains why one failed.
//! A wish says whether this side wants the rest of the connection encrypted. If one side does, TLS follows ([`crate::channel`]).
//! - AUTH-1: every message has a fixed length, so an unauthenticated peer can make this side hold at most 48 bytes.
//! - AUTH-2: proofs cover both fresh nonces, the direction, the purpose with the rank that is called, and both wishes; a recorded handshake
//!   cannot be replayed, a proof made by one side cannot be sent back to it, a call cannot be led to another rank, and nobody between the
//!   two can turn encryption off.

use crate::{
    build_tag,
    secret::{LEN, Secret},
};
use phalanx_core::{Epoch, Rank};

/// Bumped whenever anything on the wire changes its meaning.
pub const VERSION: u8 = 3;
const MAGIC: [u8; 4] = *b"PHLX";
const OPENING: usize = 8 + LEN;
const REPLY: usize = 8 + LEN + LEN;
const CLOSING: usize = 16 + LEN;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A rank's connection to the hub.
    Hub,
    /// A link to this rank, which accepts it.
    Link(Rank),
    /// A launcher's connection to the one of node 0.
    Launcher,
}

impl Purpose {
    /// What is sent of it.
    fn code(self) -> u8 {
        match self {
            Purpose::Hub => 1,
            Purpose::Link(_) => 2,
            Purpose::Launcher => 3,
        }
    }

    /// All of it, for proofs.
    pub(crate) fn bytes(self) -> [u8; 5] {
        let to = match self {
            Purpose::Hub | Purpose::Launcher => u32::MAX,
            Purpose::Link(rank) => rank.0,
        };
        let [a, b, c, d] = to.to_le_bytes();
        [self.code(), a, b, c, d]
    }

    fn with_wishes(self, connector: EncryptionWish, acceptor: EncryptionWish) -> [u8; 7] {
        let [code, a, b, c, d] = self.bytes();
        [code, a, b, c, d, connector as u8, acceptor as u8]
    }
}

/// What one side wants of the connection after the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EncryptionWish {
    /// Plain is enough: it stays inside the host.
    #[default]
    Plain = 0,
    /// Encrypted.
    Tls = 1,
    /// Plain, whatever the other side wants.
    Never = 2,
}

impl EncryptionWish {
    fn read(byte: u8) -> Option<EncryptionWish> {
        [EncryptionWish::Plain, EncryptionWish::Tls, EncryptionWish::Never]
            .into_iter()
            .find(|wish| *wish as u8 == byte)
    }

    /// Whether the two of them make it an encrypted connection; an error if they cannot agree.
    fn with(self, theirs: EncryptionWish) -> Result<bool, AuthError> {
        match (self, theirs) {
            (EncryptionWish::Never, EncryptionWish::Tls) => Err(AuthError::WantsEncryption),
            (EncryptionWish::Tls, EncryptionWish::Never) => Err(AuthError::RefusesEncryption),
            (ours, theirs) => Ok([ours, theirs].contains(&EncryptionWish::Tls)),
        }
    }
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub rank: Rank,
    pub epoch: Epoch,
    /// Distinguishes the links of one pair.
    pub stream: u32,
}

/// Why a handshake ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("the peer is not a phalanx process")]
    NotOurs,
    #[error(
        "the peer has handshake version {theirs}, this process {VERSION}: install the same phalanx on every host"
    )]
    Version { theirs: u8 },
    #[error(
        "authentication failed: the peer has a different job secret (another job, or PHALANX_SECRET differs between hosts)"
    )]
    WrongSecret,
    #[error(
        "the peer is another build of phalanx (handshake {VERSION}, build {theirs:04x}; this process {:04x}): install the same one for the \
         launcher and for all ranks, on every host; `phalanx --version` and `python -c 'import phalanx; print(phalanx.__file__)'` show which one runs",
        build_tag::TAG
    )]
    OtherBuild { theirs: u16 },
    #[error("the peer expects another kind of connection")]
    WrongPurpose,
    #[error(
        "the peer encrypts what leaves a host, and this process has PHALANX_ENCRYPT=never: set the same on every rank and on the launcher"
    )]
    WantsEncryption,
    #[error(
        "this connection leaves the host and must be encrypted, and the peer has PHALANX_ENCRYPT=never: set the same on every rank and on the launcher"
    )]
    RefusesEncryption,
    #[error(
        "the encrypted connection does not end at a process of this job: something between the two hosts answers in its place"
    )]
    InBetween,
}

/// `about` is the purpose and the wishes of connector and acceptor.
fn proof_parts<'a>(
    side: &'a [u8],
    about: &'a [u8; 7],
    a: &'a [u8],
    b: &'a [u8],
    who: &'a [u8],
) -> [&'a [u8]; 5] {
    [side, about, a, b, who]
}

/// The side that accepted the connection.
#[derive(Debug)]
pub struct Acceptor {
    secret: Secret,
    purpose: Purpose,
    wish: EncryptionWish,
    nonce: [u8; LEN],
    /// The connector's nonce and wish, once it has opened.
    theirs: Option<([u8; LEN], EncryptionWish)>,
    /// What the connector says of its build: the lower half of the tag.
    build: u8,
    pending: Vec<u8>,
    seal: [u8; LEN],
}

impl Acceptor {
    pub fn new(secret: Secret, purpose: Purpose, nonce: [u8; LEN]) -> Acceptor {
        Acceptor {
            secret,
            purpose,
            wish: EncryptionWish::Plain,
            nonce,
            theirs: None,
            build: 0,
            pending: Vec::new(),
            seal: [0; LEN],
        }
    }

    /// With this wish instead of a plain connection.
    pub fn wishing(self, wish: EncryptionWish) -> Acceptor {
        Acceptor { wish, ..self }
    }

    /// Whether TLS follows, once the caller is proved.
    pub fn is_encrypted(&self) -> bool {
        self.theirs.is_some_and(|(_, theirs)| self.wish.with(theirs) == Ok(true))
    }

    /// A value of this handshake that both sides have once it is over.
    pub fn seal(&self) -> [u8; LEN] {
        self.seal
    }

    /// How many bytes it wants next; never read more from the connection before the handshake is over.
    pub fn wants(&self) -> usize {
        if self.theirs.is_none() { OPENING - self.pending.len() } else { CLOSING - self.pending.len() }
    }

    /// Takes bytes that arrived (at most [`wants`](Self::wants)), appends the answer to `out`, and says who called once that is proved.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<Caller>, AuthError> {
        assert!(bytes.len() <= self.wants(), "AUTH-1: the caller reads no more than is wanted");
        self.pending.extend_from_slice(bytes);
        if self.wants() > 0 {
            return Ok(None);
        }
        let message = std::mem::take(&mut self.pending);
        match self.theirs {
            None => self.answer(&message, out).map(|()| None),
            Some((theirs, wish)) => self.judge(&message, &theirs, wish).map(Some),
        }
    }

    fn answer(&mut self, opening: &[u8], out: &mut Vec<u8>) -> Result<(), AuthError> {
        if opening[..4] != MAGIC {
            return Err(AuthError::NotOurs);
        }
        out.extend_from_slice(&MAGIC);
        let [low, high] = build_tag::TAG.to_le_bytes();
        out.extend_from_slice(&[VERSION, self.wish as u8, low, high]);
        if opening[4] != VERSION {
            return Err(AuthError::Version { theirs: opening[4] });
        }
        if opening[5] != self.purpose.code() {
            return Err(AuthError::WrongPurpose);
        }
        let wish = EncryptionWish::read(opening[6]).ok_or(AuthError::NotOurs)?;
        self.wish.with(wish)?;
        let theirs: [u8; LEN] = opening[8..].try_into().expect("an opening ends with a nonce");
        let about = self.purpose.with_wishes(wish, self.wish);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.secret.prove(&proof_parts(
            b"acceptor",
            &about,
            &theirs,
            &self.nonce,
            &[],
        )));
        self.theirs = Some((theirs, wish));
        self.build = opening[7];
        Ok(())
    }

    fn judge(
        &mut self,
        closing: &[u8],
        theirs: &[u8; LEN],
        wish: EncryptionWish,
    ) -> Result<Caller, AuthError> {
        let (who, proof) = closing.split_at(16);
        let proof: &[u8; LEN] = proof.try_into().expect("a closing ends with a proof");
        let about = self.purpose.with_wishes(wish, self.wish);
        if !self.secret.verify(&proof_parts(b"connector", &about, theirs, &self.nonce, who), proof) {
            let is_same = self.build == build_tag::TAG.to_le_bytes()[0];
            let theirs = u16::from(self.build);
            return Err(if is_same { AuthError::WrongSecret } else { AuthError::OtherBuild { theirs } });
        }
        self.seal = *proof;
        let u32_at = |at: usize| u32::from_le_bytes([who[at], who[at + 1], who[at + 2], who[at + 3]]);
        let epoch = u64::from(u32_at(4)) | u64::from(u32_at(8)) << 32;
        Ok(Caller { rank: Rank(u32_at(0)), epoch: Epoch(epoch), stream: u32_at(12) })
    }
}

/// The side that made the connection.
#[derive(Debug)]
pub struct Connector {
    secret: Secret,
    purpose: Purpose,
    wish: EncryptionWish,
    caller: Caller,
    nonce: [u8; LEN],
    pending: Vec<u8>,
    seal: [u8; LEN],
}

impl Connector {
    /// Starts a handshake for a plain connection; `out` gets the opening.
    pub fn new(
        secret: Secret,
        purpose: Purpose,
        caller: Caller,
        nonce: [u8; LEN],
        out: &mut Vec<u8>,
    ) -> Connector {
        Connector::wishing(EncryptionWish::Plain, secret, purpose, caller, nonce, out)
    }

    /// The same with this wish.
    pub fn wishing(
        wish: EncryptionWish,
        secret: Secret,
        purpose: Purpose,
        caller: Caller,
        nonce: [u8; LEN],
        out: &mut Vec<u8>,
    ) -> Connector {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, purpose.code(), wish as u8, build_tag::TAG.to_le_bytes()[0]]);
        out.extend_from_slice(&nonce);
        Connector { secret, purpose, wish, caller, nonce, pending: Vec::new(), seal: [0; LEN] }
    }

    /// A value of this handshake that both sides have once it is over.
    pub fn seal(&self) -> [u8; LEN] {
        self.seal
    }

    /// Whether TLS follows, once the acceptor is proved.
    pub fn is_encrypted(&self) -> bool {
        let theirs = self.pending.get(5).and_then(|&byte| EncryptionWish::read(byte));
        theirs.is_some_and(|theirs| self.wish.with(theirs) == Ok(true))
    }

    pub fn wants(&self) -> usize {
        REPLY - self.pending.len()
    }

    /// Takes bytes that arrived; true once the acceptor is proved and `out` has the closing.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, AuthError> {
        assert!(bytes.len() <= self.wants(), "AUTH-1: the caller reads no more than is wanted");
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= 4 && self.pending[..4] != MAGIC {
            return Err(AuthError::NotOurs);
        }
        if self.pending.len() >= 5 && self.pending[4] != VERSION {
            return Err(AuthError::Version { theirs: self.pending[4] });
        }
        if self.pending.len() < 6 {
            return Ok(false);
        }
        let wish = EncryptionWish::read(self.pending[5]).ok_or(AuthError::NotOurs)?;
        self.wish.with(wish)?;
        if self.wants() > 0 {
            return Ok(false);
        }
        let theirs = &self.pending[8..8 + LEN];
        let proof: &[u8; LEN] = self.pending[8 + LEN..].try_into().expect("a reply ends with a proof");
        let about = self.purpose.with_wishes(self.wish, wish);
        if !self.secret.verify(&proof_parts(b"acceptor", &about, &self.nonce, theirs, &[]), proof) {
            return Err(match u16::from_le_bytes([self.pending[6], self.pending[7]]) {
                build_tag::TAG => AuthError::WrongSecret,
                theirs => AuthError::OtherBuild { theirs },
            });
        }
        let mut who = [0; 16];
        who[..4].copy_from_slice(&self.caller.rank.0.to_le_bytes());
        who[4..12].copy_from_slice(&self.caller.epoch.0.to_le_bytes());
        who[12..].copy_from_slice(&self.caller.stream.to_le_bytes());
        out.extend_from_slice(&who);
        let proof = self.secret.prove(&proof_parts(b"connector", &about, &self.nonce, theirs, &who));
        out.extend_from_slice(&proof);
        self.seal = proof;
        Ok(true)
    }
}

/// A nonce nobody has seen before.
pub fn fresh_nonce() -> [u8; LEN] {
    *Secret::random().expose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: Purpose = Purpose::Link(Rank(1));
    const CALLER: Caller = Caller { rank: Rank(3), epoch: Epoch(1 << 40), stream: 2 };

    /// The three messages of a conversation between holders of these secrets, or the first error.
    fn talk(acceptor: &Secret, connector: &Secret) -> Result<(Caller, [Vec<u8>; 3]), AuthError> {
        let (mut opening, mut reply, mut closing) = (Vec::new(), Vec::new(), Vec::new());
        let mut a = Acceptor::new(acceptor.clone(), LINK, fresh_nonce());
        let mut c = Connector::new(connector.clone(), LINK, CALLER, fresh_nonce(), &mut opening);
        assert_eq!(a.feed(&opening, &mut reply)?, None);
        assert!(c.feed(&reply, &mut closing)?);
        let caller = a.feed(&closing, &mut Vec::new())?.expect("the closing was whole");
        Ok((caller, [opening, reply, closing]))
    }

    #[test]
    fn holders_of_the_secret_meet() {
        let secret = Secret::random();
        assert_eq!(talk(&secret, &secret).unwrap().0, CALLER);
        assert_eq!(talk(&secret, &Secret::random()).unwrap_err(), AuthError::WrongSecret);
    }

    #[test]
    fn ten_thousand_forged_and_replayed_handshakes_are_refused() {
        let secret = Secret::random();
        let (_, [opening, _, closing]) = talk(&secret, &secret).unwrap();
        for seed in 0..10_000u32 {
            let mut acceptor = Acceptor::new(secret.clone(), LINK, fresh_nonce());
            acceptor.feed(&opening, &mut Vec::new()).unwrap();
            // Every third is the recorded closing itself, the others have one bit turned or random bytes.
            let mut forged = closing.clone();
            match seed % 3 {
                0 => {}
                1 => forged[seed as usize % CLOSING] ^= 1 << (seed % 8),
                _ => getrandom::fill(&mut forged).unwrap(),
            }
            assert_eq!(
                acceptor.feed(&forged, &mut Vec::new()),
                Err(AuthError::WrongSecret),
                "AUTH-2, seed {seed}"
            );
        }
    }

    /// What each side makes of the wishes of both.
    fn wished(c: EncryptionWish, a: EncryptionWish) -> Result<(bool, bool), AuthError> {
        let secret = Secret::random();
        let (mut opening, mut reply, mut closing) = (Vec::new(), Vec::new(), Vec::new());
        let mut acceptor = Acceptor::new(secret.clone(), LINK, fresh_nonce()).wishing(a);
        let mut connector = Connector::wishing(c, secret, LINK, CALLER, fresh_nonce(), &mut opening);
        let answered = acceptor.feed(&opening, &mut reply);
        // The connector learns it as well, from the first bytes.
        assert_eq!(connector.feed(&reply, &mut closing).is_ok(), answered.is_ok());
        answered?;
        acceptor.feed(&closing, &mut Vec::new())?.expect("the closing was whole");
        Ok((connector.is_encrypted(), acceptor.is_encrypted()))
    }

    #[test]
    fn one_side_that_wants_encryption_is_enough_and_one_that_refuses_it_is_told() {
        use EncryptionWish::{Never, Plain, Tls};
        for (c, a, encrypted) in [
            (Plain, Plain, false),
            (Plain, Never, false),
            (Never, Never, false),
            (Tls, Plain, true),
            (Plain, Tls, true),
            (Tls, Tls, true),
        ] {
            assert_eq!(wished(c, a), Ok((encrypted, encrypted)), "{c:?} {a:?}");
        }
        assert_eq!(wished(Tls, Never), Err(AuthError::WantsEncryption));
        assert_eq!(wished(Never, Tls), Err(AuthError::RefusesEncryption));
    }

    #[test]
    fn a_wish_that_was_changed_on_the_way_breaks_the_proof() {
        let secret = Secret::random();
        for (c, a) in [
            (EncryptionWish::Tls, EncryptionWish::Plain),
            (EncryptionWish::Plain, EncryptionWish::Tls),
            (EncryptionWish::Tls, EncryptionWish::Tls),
        ] {
            let mut opening = Vec::new();
            let mut connector =
                Connector::wishing(c, secret.clone(), LINK, CALLER, fresh_nonce(), &mut opening);
            let mut acceptor = Acceptor::new(secret.clone(), LINK, fresh_nonce()).wishing(a);
            let mut reply = Vec::new();
            opening[6] = EncryptionWish::Plain as u8;
            acceptor.feed(&opening, &mut reply).unwrap();
            reply[5] = EncryptionWish::Plain as u8;
            assert_eq!(
                connector.feed(&reply, &mut Vec::new()),
                Err(AuthError::WrongSecret),
                "AUTH-2: {c:?} {a:?}"
            );
        }
    }

    #[test]
    fn a_call_that_is_led_to_another_rank_is_refused_by_the_caller() {
        let secret = Secret::random();
        let (mut opening, mut reply) = (Vec::new(), Vec::new());
        let mut connector = Connector::new(secret.clone(), LINK, CALLER, fresh_nonce(), &mut opening);
        let mut other = Acceptor::new(secret, Purpose::Link(Rank(2)), fresh_nonce());
        other.feed(&opening, &mut reply).unwrap();
        assert_eq!(connector.feed(&reply, &mut Vec::new()), Err(AuthError::WrongSecret), "AUTH-2");
    }

    #[test]
    fn an_acceptors_proof_cannot_be_reflected() {
        let secret = Secret::random();
        let (_, [_, reply, _]) = talk(&secret, &secret).unwrap();
        let mut connector = Connector::new(secret, LINK, CALLER, fresh_nonce(), &mut Vec::new());
        assert_eq!(connector.feed(&reply, &mut Vec::new()), Err(AuthError::WrongSecret), "AUTH-2");
    }

    #[test]
    fn another_build_is_not_taken_for_another_secret() {
        let (secret, other) = (Secret::random(), Secret::random());
        let (mut opening, mut reply) = (Vec::new(), Vec::new());
        let mut connector = Connector::new(secret, LINK, CALLER, fresh_nonce(), &mut opening);
        let mut acceptor = Acceptor::new(other.clone(), LINK, fresh_nonce());
        opening[7] ^= 1;
        acceptor.feed(&opening, &mut reply).unwrap();
        let theirs = u16::from(opening[7]);
        assert_eq!(acceptor.feed(&[0; CLOSING], &mut Vec::new()), Err(AuthError::OtherBuild { theirs }));
        reply[7] ^= 1;
        let error = connector.feed(&reply, &mut Vec::new()).unwrap_err();
        assert_eq!(error, AuthError::OtherBuild { theirs: build_tag::TAG ^ 0x100 });
        let text = error.to_string();
        assert!(
            text.contains(&format!(
                "build {:04x}; this process {:04x}",
                build_tag::TAG ^ 0x100,
                build_tag::TAG
            )),
            "{text}"
        );
        // What only a stranger between the two has changed keeps nobody out.
        let (mut opening, mut reply, mut closing) = (Vec::new(), Vec::new(), Vec::new());
        let mut connector = Connector::new(other.clone(), LINK, CALLER, fresh_nonce(), &mut opening);
        let mut acceptor = Acceptor::new(other, LINK, fresh_nonce());
        opening[7] ^= 1;
        acceptor.feed(&opening, &mut reply).unwrap();
        assert_eq!(connector.feed(&reply, &mut closing), Ok(true));
        assert_eq!(acceptor.feed(&closing, &mut Vec::new()), Ok(Some(CALLER)));
    }

    #[test]
    fn another_version_and_another_purpose_are_named() {
        let secret = Secret::random();
        let mut opening = Vec::new();
        Connector::new(secret.clone(), Purpose::Hub, CALLER, fresh_nonce(), &mut opening);
        let acceptor = || Acceptor::new(secret.clone(), LINK, fresh_nonce());
        assert_eq!(acceptor().feed(&opening, &mut Vec::new()), Err(AuthError::WrongPurpose));
        opening[4] = 9;
        assert_eq!(acceptor().feed(&opening, &mut Vec::new()), Err(AuthError::Version { theirs: 9 }));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_bounded(bytes: Vec<u8>, step in 1usize..50) {
            let mut acceptor = Acceptor::new(Secret::random(), Purpose::Hub, fresh_nonce());
            for piece in bytes.chunks(step) {
                let piece = &piece[..piece.len().min(acceptor.wants())];
                match acceptor.feed(piece, &mut Vec::new()) {
                    Ok(caller) => prop_assert_eq!(caller, None),
                    Err(_) => break,
                }
                prop_assert!(acceptor.pending.len() <= CLOSING, "AUTH-1");
            }
        }
    }
}
