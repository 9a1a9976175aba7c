//! Files of ours, with the right checksum, so that what lies behind it is reached: a program for prediction, and values.
#![no_main]

use phalanx_graph::saved::{load, load_values};

/// Letters, version, length of the head, checksum.
const PREFIX: usize = 8 + 4 + 8 + 8;

/// The file with the checksum (FNV-1a) that its content has.
fn resealed(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    if let Some((prefix, rest)) = file.split_at_mut_checked(PREFIX) {
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let sum = rest.iter().fold(0xcbf2_9ce4_8422_2325, step);
        prefix[PREFIX - 8..].copy_from_slice(&sum.to_le_bytes());
    }
    file
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let file = resealed(bytes);
    if let Ok(saved) = load(&file) {
        saved.program.verify().expect("SAVED-2: what was loaded is a program");
    }
    let _ = load_values(&file);
});
