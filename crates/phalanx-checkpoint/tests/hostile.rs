//! Manifests that somebody wrote on purpose, with a digest that is right.

use crate::support::{Chance, TempDir, about, empty, state, state_of};
use phalanx_checkpoint::{
    Checkpoint, CheckpointError, Checkpoints, Flaw, Manifest, Part, PartError, Strictness, TensorInfo,
};
use phalanx_core::DType;
use std::fs;

const N_CASES: usize = 20_000;
const SEED: u64 = 4;

/// Numbers on which sums and products go wrong.
const NUMBERS: [&str; 8] =
    ["0", "1", "18446744073709551615", "9223372036854775807", "4294967296", "-1", "1e300", "null"];

/// Replaces one number of the text, or one letter.
fn changed(text: &str, chance: &mut Chance) -> String {
    let is_digit = |c: u8| c.is_ascii_digit();
    let bytes = text.as_bytes();
    let at = chance.below(bytes.len() as u64) as usize;
    let Some(begin) = bytes[at..].iter().position(|&c| is_digit(c)).map(|n| at + n) else {
        return text.into();
    };
    if chance.below(4) == 0 {
        let letter = char::from(b'!' + chance.below(90) as u8);
        return format!("{}{letter}{}", &text[..at], &text[at + 1..]);
    }
    let begin = bytes[..begin].iter().rposition(|&c| !is_digit(c)).map_or(0, |n| n + 1);
    let end = bytes[begin..].iter().position(|&c| !is_digit(c)).map_or(bytes.len(), |n| begin + n);
    let number = NUMBERS[chance.below(NUMBERS.len() as u64) as usize];
    format!("{}{number}{}", &text[..begin], &text[end..])
}

/// The text with its digest, as `Manifest::encode` writes it.
fn sealed(body: &str) -> String {
    let open = body.trim_end().trim_end_matches('}').trim_end();
    let digest = blake3::hash(format!("{open}\n}}").as_bytes()).to_hex();
    format!("{open},\n  \"blake3\": \"{digest}\"\n}}\n")
}

/// MANIFEST-1.
#[test]
fn a_forged_manifest_is_refused_or_loads_without_harm() {
    println!("seed {SEED}");
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    let manifest = checkpoints.save(about(1), &state(1)).unwrap().manifest().clone();
    let good = serde_json::to_string_pretty(&manifest).unwrap();
    assert_eq!(sealed(&good).into_bytes(), manifest.encode().0);
    let mut chance = Chance::new(SEED);
    let mut n_accepted = 0;
    for case in 0..N_CASES {
        let mut text = good.clone();
        for _ in 0..=chance.below(3) {
            text = changed(&text, &mut chance);
        }
        let text = sealed(&text);
        let Ok((manifest, _)) = Manifest::decode(text.as_bytes()) else { continue };
        n_accepted += 1;
        assert!(manifest.shards.iter().all(|s| !s.file.contains('/')), "case {case}");
        fs::write(dir.path().join("checkpoint-1/manifest.json"), text).unwrap();
        for strictness in [Strictness::Exact, Strictness::Partial] {
            // Forged numbers may give forged values, but no panic, and no memory beyond the state's.
            let _ = checkpoints.load(1, &mut empty(), strictness);
        }
    }
    println!("{n_accepted} of {N_CASES} were accepted");
    assert!(n_accepted > N_CASES / 50, "{n_accepted}");
}

/// A part that may not make room.
struct Wary;

impl Part for Wary {
    fn tensors(&self) -> Vec<TensorInfo> {
        Vec::new()
    }

    fn read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<(), PartError> {
        Err("it has no tensors".into())
    }

    fn write(&mut self, _: &str, _: u64, _: &[u8]) -> Result<(), PartError> {
        Err("it has no tensors".into())
    }

    fn make_room(&mut self, found: &[TensorInfo]) {
        panic!("room for {found:?} before the files were looked at");
    }
}

#[test]
fn a_claim_of_a_million_gigabytes_takes_no_memory() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    let saved = checkpoints.save(about(1), &state_of(&[TensorInfo::new("w", DType::U8, [8])], 1)).unwrap();
    let mut manifest = saved.manifest().clone();
    manifest.tensors[0].info.shape = vec![1 << 50];
    manifest.tensors[0].slices[0].count = 1 << 50;
    manifest.shards[0].bytes += 1 << 50;
    fs::write(saved.path().join("manifest.json"), manifest.encode().0).unwrap();
    let forged = Checkpoint::open(saved.path()).unwrap();
    let is_length = |error: CheckpointError| {
        let CheckpointError::Damaged { damage, .. } = error else { panic!("{error}") };
        matches!(damage[0].flaw, Flaw::Length { .. })
    };
    assert!(is_length(forged.load(&mut Wary, Strictness::Exact).unwrap_err()));
    assert!(is_length(forged.read("w").unwrap_err()));
}
