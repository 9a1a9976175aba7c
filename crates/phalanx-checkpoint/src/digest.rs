//! The blake3 digest of a file whose pieces are hashed in any order, on any thread.
//!
//! - DIGEST-1: the digest is blake3's of the whole file, the one that `b3sum` prints.

use blake3::{
    Hasher,
    hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root},
};

/// Bytes of a piece; only the last one may be shorter. A power of two, as blake3's tree demands; it fits into a core's
/// second-level cache together with the memory that it is copied to.
pub const PIECE: usize = 256 << 10;

pub fn n_pieces(bytes: u64) -> u64 {
    bytes.div_ceil(PIECE as u64).max(1)
}

/// The value of one piece of a file of `total` bytes.
pub fn piece(total: u64, index: u64, bytes: &[u8]) -> ChainingValue {
    if n_pieces(total) == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    Hasher::new().set_input_offset(index * PIECE as u64).update(bytes).finalize_non_root()
}

/// The digest of a file from the values of all its pieces.
pub fn join(values: &[ChainingValue]) -> String {
    let hash = match values {
        [one] => blake3::Hash::from_bytes(*one),
        _ => {
            let (left, right) = halves(values);
            merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    };
    hash.to_hex().to_string()
}

fn subtree(values: &[ChainingValue]) -> ChainingValue {
    if let [one] = values {
        return *one;
    }
    let (left, right) = halves(values);
    merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

/// The left subtree is the largest power of two that leaves something for the right one.
fn halves(values: &[ChainingValue]) -> (&[ChainingValue], &[ChainingValue]) {
    values.split_at(values.len().next_power_of_two() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DIGEST-1.
    #[test]
    fn pieces_join_to_the_digest_of_the_whole() {
        let bytes: Vec<u8> = (0..7 * PIECE + 5).map(|i| (i * i / 7) as u8).collect();
        let lengths =
            [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE, 4 * PIECE + 1025, bytes.len()];
        for total in lengths {
            let file = &bytes[..total];
            let mut pieces: Vec<&[u8]> = file.chunks(PIECE).collect();
            if pieces.is_empty() {
                pieces.push(&[]);
            }
            assert_eq!(pieces.len() as u64, n_pieces(total as u64));
            let values: Vec<_> =
                pieces.iter().enumerate().map(|(i, p)| piece(total as u64, i as u64, p)).collect();
            assert_eq!(join(&values), blake3::hash(file).to_hex().as_str(), "{total} bytes");
        }
    }
}
