//! A secret for one rank, on a board that others may read: X25519 between rank 0 and that rank, then encrypt-then-MAC with keys that are
//! derived from the exchange. No I/O.
//!
//! The pad is used once: every meeting draws new key pairs, and a pair of ranks exchanges one secret. The exchange is as good as the board
//! is at saying who wrote what: only the processes of a job write on a private board.

use crate::secret::{LEN, Secret};
use phalanx_core::Rank;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// Ciphertext and proof.
pub const SEALED: usize = 2 * LEN;

pub struct KeyPair {
    private: [u8; LEN],
    pub public: [u8; LEN],
}

impl KeyPair {
    pub fn random() -> KeyPair {
        KeyPair::from_private(*Secret::random().expose())
    }

    fn from_private(private: [u8; LEN]) -> KeyPair {
        KeyPair { private, public: x25519(private, X25519_BASEPOINT_BYTES) }
    }

    /// The secret for a rank with this public key; `None` if that is not a key (RFC 7748, 6.1).
    pub fn seal(&self, rank: Rank, theirs: &[u8; LEN], secret: &Secret) -> Option<[u8; SEALED]> {
        let key = self.key(rank, theirs, &self.public, theirs)?;
        let mut sealed = [0; SEALED];
        let (cipher, proof) = sealed.split_at_mut(LEN);
        cipher.copy_from_slice(&xor(secret.expose(), key.derive(PAD).expose()));
        proof.copy_from_slice(&key.prove(&[PROOF, cipher]));
        Some(sealed)
    }

    /// What rank 0, which has this public key, has sealed for this rank; `None` if it has not.
    pub fn open(&self, rank: Rank, zeros: &[u8; LEN], sealed: &[u8; SEALED]) -> Option<Secret> {
        let key = self.key(rank, zeros, zeros, &self.public)?;
        let (cipher, proof) = sealed.split_at(LEN);
        let (cipher, proof): (&[u8; LEN], &[u8; LEN]) = (cipher.try_into().ok()?, proof.try_into().ok()?);
        let is_ours = key.verify(&[PROOF, cipher], proof);
        is_ours.then(|| Secret::from_bytes(xor(cipher, key.derive(PAD).expose())))
    }

    /// What the exchange yields, bound to who takes part.
    fn key(&self, rank: Rank, theirs: &[u8; LEN], zeros: &[u8; LEN], ranks: &[u8; LEN]) -> Option<Secret> {
        let shared = x25519(self.private, *theirs);
        let label = [b"phalanx board".as_slice(), &rank.0.to_le_bytes(), zeros, ranks].concat();
        (shared != [0; LEN]).then(|| Secret::from_bytes(shared).derive(&label))
    }
}

const PAD: &[u8] = b"pad";
const PROOF: &[u8] = b"proof";

fn xor(a: &[u8; LEN], b: &[u8; LEN]) -> [u8; LEN] {
    std::array::from_fn(|i| a[i] ^ b[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rank_that_it_is_for_opens_it() {
        let (zero, one, other) = (KeyPair::random(), KeyPair::random(), KeyPair::random());
        let secret = Secret::random();
        let sealed = zero.seal(Rank(1), &one.public, &secret).unwrap();
        assert_eq!(one.open(Rank(1), &zero.public, &sealed), Some(secret.clone()));
        assert_eq!(other.open(Rank(1), &zero.public, &sealed), None);
        assert_eq!(one.open(Rank(2), &zero.public, &sealed), None, "another rank");
        assert_eq!(one.open(Rank(1), &other.public, &sealed), None, "another sender");
        let shows = |part: &[u8]| sealed.windows(part.len()).any(|w| w == part);
        assert!(!shows(secret.expose()), "RDZV-1");
        for i in 0..SEALED {
            let mut tampered = sealed;
            tampered[i] ^= 1;
            assert_eq!(one.open(Rank(1), &zero.public, &tampered), None, "byte {i}");
        }
    }

    #[test]
    fn a_point_of_small_order_is_not_a_key() {
        for weak in [[0; LEN], std::array::from_fn(|i| u8::from(i == 0))] {
            assert!(KeyPair::random().seal(Rank(1), &weak, &Secret::random()).is_none());
            assert!(KeyPair::random().open(Rank(1), &weak, &[0; SEALED]).is_none());
        }
    }

    #[test]
    fn the_exchange_is_that_of_rfc_7748() {
        // Section 5.2, after one iteration.
        let once = super::super::encoding::hex(&x25519(X25519_BASEPOINT_BYTES, X25519_BASEPOINT_BYTES));
        assert_eq!(once, "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079");
    }
}
