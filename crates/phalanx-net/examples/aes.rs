//! How fast one core encrypts and decrypts records of TLS, without TLS and without a network: the share of AES in an encrypted allreduce.
//!
//! `cargo run --release -p phalanx-net --example aes`. It counts the time on a core, so that other programs of the machine disturb it little.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::{fs, hint::black_box};

/// What a record of TLS holds at most.
const RECORD: usize = 16 << 10;
/// As much as a core's share of an allreduce: it does not stay in the caches.
const BYTES: usize = 64 << 20;
const ROUNDS: usize = 9;

fn main() {
    for (name, algorithm) in [("AES-128-GCM", &AES_128_GCM), ("AES-256-GCM", &AES_256_GCM)] {
        let key =
            UnboundKey::new(algorithm, &vec![7; algorithm.key_len()]).expect("a key of the right length");
        let key = LessSafeKey::new(key);
        let nonce = || Nonce::assume_unique_for_key([1; 12]);
        let (mut seal, mut open) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut records = vec![vec![5u8; RECORD]; BYTES / RECORD];
            records.iter_mut().for_each(|record| record.reserve(algorithm.tag_len()));
            seal.push(gb_per_s(|| {
                for record in &mut records {
                    key.seal_in_place_append_tag(nonce(), Aad::empty(), record).expect("a record is short");
                }
            }));
            open.push(gb_per_s(|| {
                for record in &mut records {
                    let opened = key.open_in_place(nonce(), Aad::empty(), record);
                    black_box(opened.expect("it was sealed with this key"));
                }
            }));
        }
        let (seal, open) = (median(seal), median(open));
        println!(
            "{name}: seals {seal:.2} GB/s, opens {open:.2} GB/s on one core, records of {RECORD} bytes, median of {ROUNDS}"
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn gb_per_s(work: impl FnOnce()) -> f64 {
    let begun = on_core_ns();
    work();
    BYTES as f64 / (on_core_ns() - begun)
}

/// How long this process has been on a core.
fn on_core_ns() -> f64 {
    let text = fs::read_to_string("/proc/self/schedstat").expect("Linux tells it");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("it begins with a number")
}
