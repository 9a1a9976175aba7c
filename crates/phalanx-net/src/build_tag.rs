//! Which build this process has of what proofs are made of: two that differ here cannot prove their secret to each other.

/// A digest of the files that decide what a proof covers and how secrets are derived. A version by hand would be forgotten.
pub const TAG: u16 = {
    let mut digest = BEGIN;
    digest = add(digest, include_bytes!("auth.rs"));
    digest = add(digest, include_bytes!("secret.rs"));
    digest = add(digest, include_bytes!("channel.rs"));
    digest = add(digest, include_bytes!("board/agree.rs"));
    digest = add(digest, include_bytes!("board/shared.rs"));
    digest = add(digest, include_bytes!("world/place.rs"));
    digest = add(digest, include_bytes!("nodes.rs"));
    let folded = (digest ^ digest >> 32) as u32;
    let tag = (folded ^ folded >> 16) as u16;
    // Builds before there were tags say 0.
    if tag as u8 == 0 { tag | 1 } else { tag }
};

/// FNV-1a: not to keep forgers out, only to tell builds apart.
const BEGIN: u64 = 0xcbf2_9ce4_8422_2325;

const fn add(mut digest: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        digest = (digest ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_another_digest() {
        assert_ne!(add(BEGIN, b"proof of a"), add(BEGIN, b"proof of b"));
        assert_ne!(TAG.to_le_bytes()[0], 0);
    }
}
