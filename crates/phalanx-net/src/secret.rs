//! The job's secret: 32 random bytes that only the ranks of a job know.
//!
//! - SECRET-1: it is never on a command line, in a log or in an error.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;

/// Length of a secret and of every proof made with it.
pub const LEN: usize = 32;

/// The job's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; LEN]);

impl Secret {
    /// A new secret from the system's random source.
    pub fn random() -> Secret {
        let mut bytes = [0; LEN];
        getrandom::fill(&mut bytes)
            .expect("the kernel's random source never fails once the machine has booted");
        Secret(bytes)
    }

    pub fn from_bytes(bytes: [u8; LEN]) -> Secret {
        Secret(bytes)
    }

    /// The bytes, to be handed to a rank through a pipe or descriptor.
    pub fn expose(&self) -> &[u8; LEN] {
        &self.0
    }

    /// A secret of this job from 64 hexadecimal digits, or, so that users may choose any text, from a hash of the text.
    pub fn from_text(text: &str) -> Secret {
        let text = text.trim();
        let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        let mut bytes = [0; LEN];
        let hex = text.len() == 2 * LEN
            && text.as_bytes().chunks(2).zip(&mut bytes).all(|(pair, byte)| {
                match (nibble(pair[0]), nibble(pair[1])) {
                    (Some(high), Some(low)) => {
                        *byte = high << 4 | low;
                        true
                    }
                    _ => false,
                }
            });
        if hex { Secret(bytes) } else { Secret([0; LEN]).derive(text.as_bytes()) }
    }

    /// Another secret that only holders of this one can compute.
    pub fn derive(&self, label: &[u8]) -> Secret {
        Secret(self.prove(&[b"phalanx derive", label]))
    }

    /// An HMAC-SHA256 over the parts, each preceded by its length so that no two lists of parts collide.
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; LEN] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Whether a proof is the one this secret gives; takes the same time for every wrong proof.
    pub fn verify(&self, parts: &[&[u8]], proof: &[u8; LEN]) -> bool {
        use subtle::ConstantTimeEq;
        self.prove(parts).ct_eq(proof).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_it() {
        assert_eq!(format!("{:?}", Secret::from_bytes([7; LEN])), "Secret(..)", "SECRET-1");
    }

    #[test]
    fn proofs_depend_on_every_part_and_its_bounds() {
        let secret = Secret::random();
        let proof = secret.prove(&[b"ab", b"c"]);
        assert!(secret.verify(&[b"ab", b"c"], &proof));
        assert!(!secret.verify(&[b"a", b"bc"], &proof));
        assert!(!Secret::random().verify(&[b"ab", b"c"], &proof));
    }

    #[test]
    fn text_is_hex_where_it_can_be() {
        assert_eq!(Secret::from_text(&"0f".repeat(LEN)), Secret::from_bytes([15; LEN]));
        assert_ne!(Secret::from_text("hunter2"), Secret::from_text("hunter3"));
    }
}
