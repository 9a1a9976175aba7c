//! Single changed bits, anywhere.

use crate::support::{Chance, TempDir, about, empty, state, state_of};
use phalanx_checkpoint::{
    CheckpointDraft, CheckpointError, Checkpoints, Manifest, Part, Pointer, ShardId, Strictness, TensorInfo,
    TensorSlice, share_out,
};
use phalanx_core::DType;
use std::{fs, path::PathBuf};

const N_FLIPS: usize = 10_000;
const SEED: u64 = 13;

/// The tensor to which a byte of a shard belongs.
fn tensor_at(manifest: &Manifest, shard: u32, byte: u64) -> Vec<String> {
    let has_it = |t: &&phalanx_checkpoint::TensorRecord| {
        let size = t.info.dtype.size() as u64;
        t.slices.iter().any(|s| s.shard == shard && (s.at..s.at + s.count * size).contains(&byte))
    };
    manifest.tensors.iter().find(has_it).map(|t| t.info.name.clone()).into_iter().collect()
}

/// CKPT-2.
#[test]
fn every_changed_bit_is_found_named_and_the_older_checkpoint_is_taken() {
    println!("seed {SEED}");
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    checkpoints.save(about(1), &state(1)).unwrap();
    let draft = CheckpointDraft::begin(dir.path(), 2).unwrap();
    let shares = share_out(&state(2).tensors(), 2);
    let records = (0..2).zip(&shares).map(|(index, slices)| {
        draft.write_shard(ShardId { index, of: 2, rank: index }, slices, &state(2)).unwrap()
    });
    let manifest = Manifest::new(about(2), records.collect()).unwrap();
    draft.commit(&manifest).unwrap();

    let names = ["shard-0-of-2.safetensors", "shard-1-of-2.safetensors", "manifest.json"];
    let mut files: Vec<PathBuf> =
        names.iter().map(|name| dir.path().join("checkpoint-2").join(name)).collect();
    files.push(dir.path().join("latest"));
    let contents: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    let mut chance = Chance::new(SEED);
    let (old, new, zeros) = (state(1), state(2), empty());
    let mut n_tensors_named = 0;
    for flip in 0..N_FLIPS {
        let file = chance.below(4) as usize;
        let (path, byte) = (&files[file], chance.below(contents[file].len() as u64));
        let mut damaged = contents[file].clone();
        damaged[byte as usize] ^= 1 << chance.below(8);
        fs::write(path, &damaged).unwrap();
        let mut got = zeros.clone();
        let restored = checkpoints.load_newest(&mut got, Strictness::Exact).unwrap().unwrap();
        let case = format!("flip {flip}: byte {byte} of {}", path.display());
        if file == 3 {
            assert_eq!((restored.checkpoint.step(), &got), (2, &new), "{case}");
            assert!(
                matches!(&restored.pointer, Pointer::Wrong { path: named, .. } if named == path),
                "{case}"
            );
        } else {
            assert_eq!((restored.checkpoint.step(), &got), (1, &old), "{case}");
            let [skipped] = restored.skipped.as_slice() else { panic!("{case}: {:?}", restored.skipped) };
            match &skipped.why {
                CheckpointError::Manifest { path: named, .. } => {
                    assert_eq!((file, named), (2, path), "{case}");
                }
                CheckpointError::Damaged { step: 2, damage } => {
                    assert_eq!((damage.len(), &damage[0].path), (1, path), "{case}");
                    assert_eq!(damage[0].tensors, tensor_at(&manifest, file as u32, byte), "{case}");
                    n_tensors_named += damage[0].tensors.len();
                }
                other => panic!("{case}: {other}"),
            }
        }
        fs::write(path, &contents[file]).unwrap();
    }
    assert!(n_tensors_named > N_FLIPS / 5, "{n_tensors_named}");
    let restored = checkpoints.load_newest(&mut empty(), Strictness::Exact).unwrap().unwrap();
    assert_eq!((restored.checkpoint.step(), restored.pointer), (2, Pointer::Right));
}

/// CKPT-2: also where the rank that loads wants nothing of the shard.
#[test]
fn a_changed_bit_in_a_shard_of_another_rank_is_found_and_the_older_checkpoint_is_taken() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    checkpoints.save(about(1), &state(1)).unwrap();
    let draft = CheckpointDraft::begin(dir.path(), 2).unwrap();
    let others = state_of(&[TensorInfo::new("random.1", DType::U8, [16]).owned_by(1)], 9);
    let parts: [&dyn Part; 2] = [&state(2), &others];
    let records = (0..2).zip(parts).map(|(index, part)| {
        let slices: Vec<TensorSlice> = part.tensors().into_iter().map(TensorSlice::whole).collect();
        draft.write_shard(ShardId { index, of: 2, rank: index }, &slices, part).unwrap()
    });
    let manifest = Manifest::new(about(2), records.collect()).unwrap();
    draft.commit(&manifest).unwrap();
    let restored = checkpoints.load_newest(&mut empty(), Strictness::Exact).unwrap().unwrap();
    assert_eq!(restored.checkpoint.step(), 2);

    let path = dir.path().join("checkpoint-2/shard-1-of-2.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    for strictness in [Strictness::Exact, Strictness::Subset, Strictness::Partial] {
        let mut got = empty();
        let restored = checkpoints.load_newest(&mut got, strictness).unwrap().unwrap();
        assert_eq!(restored.checkpoint.step(), 1, "{strictness:?}");
        assert!(got == state(1), "{strictness:?}");
        let [skipped] = restored.skipped.as_slice() else { panic!("{:?}", restored.skipped) };
        let CheckpointError::Damaged { step: 2, damage } = &skipped.why else { panic!("{skipped}") };
        assert_eq!((&damage[0].path, damage[0].tensors.join(" ").as_str()), (&path, "random.1"));
    }
}
