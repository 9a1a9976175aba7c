//! Saves and loads: by one process, by several ranks, into states that fit and that do not.

use crate::support::{TempDir, about, empty, filled, leftovers, small_infos, state, state_of};
use phalanx_checkpoint::{
    CheckpointDraft, CheckpointError, Checkpoints, Copied, Flaw, Keep, Manifest, ManifestFault, OwnedTensors,
    Part, PartError, Pointer, Several, ShardId, ShardRecord, ShardStream, Strictness, TensorInfo,
    TensorSlice, share_out,
};
use phalanx_core::DType;
use safetensors::{Dtype, SafeTensors};
use std::{fs, path::Path};

/// A part that lends no memory.
struct Unlent<'a>(&'a dyn Part);

impl Part for Unlent<'_> {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.0.tensors()
    }
    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError> {
        self.0.read(name, offset, out)
    }
    fn write(&mut self, _: &str, _: u64, _: &[u8]) -> Result<(), PartError> {
        Err("it is only read".into())
    }
}

/// Saves as `n` ranks do: one begins, all write, the records are exchanged as text, one commits.
fn save_by_ranks(
    dir: &Path,
    step: u64,
    n: u32,
    state: &OwnedTensors,
    own: impl Fn(u32) -> OwnedTensors,
) -> Manifest {
    let draft = CheckpointDraft::begin(dir, step).unwrap();
    let shares = share_out(&state.tensors(), n as usize);
    let records = (0..n).zip(shares).map(|(rank, mut slices)| {
        let (mut all, mut own) = (state.clone(), own(rank));
        slices.extend(own.tensors().into_iter().map(TensorSlice::whole));
        let parts = Several::new(vec![&mut all, &mut own]).unwrap();
        let mut copied = Copied::new();
        copied.copy(&parts, &slices).unwrap();
        let joined = CheckpointDraft::join(dir, draft.name()).unwrap();
        let id = ShardId { index: rank, of: n, rank };
        let record = joined.write_copied(id, &copied).unwrap();
        assert_eq!(joined.write_shard(id, &slices, &parts).unwrap(), record, "from memory that is lent");
        assert_eq!(
            joined.write_shard(id, &slices, &Unlent(&parts)).unwrap(),
            record,
            "from bytes that are read"
        );
        sent_instead(&joined, id, &copied, &record);
        serde_json::to_string(&record).unwrap()
    });
    let records: Vec<String> = records.collect();
    let records = records.iter().rev().map(|text| serde_json::from_str::<ShardRecord>(text).unwrap());
    let about = phalanx_checkpoint::About { world: n, ..about(step) };
    let manifest = Manifest::new(about, records.collect()).unwrap();
    assert_eq!(draft.commit(&manifest).unwrap().manifest(), &manifest);
    manifest
}

/// STREAM-1: what a rank sends in pieces of any length is the file that it would write, with the same record.
fn sent_instead(draft: &CheckpointDraft, id: ShardId, copied: &Copied, record: &ShardRecord) {
    let path = draft.path().join(format!("shard-{}-of-{}.safetensors", id.index, id.of));
    let written = fs::read(&path).unwrap();
    for n in [1000, 4096, written.len(), written.len() + 1] {
        let mut stream = ShardStream::new(id, copied).unwrap();
        assert_eq!(stream.bytes(), written.len() as u64);
        let mut file = draft.receive_shard(id.index, id.of).unwrap();
        for _ in 0..written.len().div_ceil(n) {
            file.put(&stream.take(n)).unwrap();
        }
        assert!(stream.take(n).is_empty(), "all of it has gone");
        file.end().unwrap();
        assert_eq!(stream.record(), *record, "in pieces of {n} bytes");
        assert!(fs::read(&path).unwrap() == written, "in pieces of {n} bytes");
    }
}

#[test]
fn what_is_saved_is_loaded() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path().join("new/one")).unwrap();
    assert!(checkpoints.load_newest(&mut empty(), Strictness::Exact).unwrap().is_none());
    for step in [1, 2, 10] {
        checkpoints.save(about(step), &state(step)).unwrap();
    }
    let mut got = empty();
    let restored = checkpoints.load_newest(&mut got, Strictness::Exact).unwrap().unwrap();
    assert_eq!((restored.checkpoint.step(), restored.pointer), (10, Pointer::Right));
    assert_eq!(restored.checkpoint.manifest().about, about(10));
    assert!(restored.skipped.is_empty() && restored.loaded.left.is_empty());
    assert_eq!(got, state(10));
    checkpoints.load(2, &mut got, Strictness::Exact).unwrap();
    assert_eq!(got, state(2));
    assert_eq!(checkpoints.list().unwrap().iter().map(|l| l.step).collect::<Vec<_>>(), [1, 2, 10]);
    assert_eq!(checkpoints.retain(&Keep { last: 1, every: Some(2) }).unwrap(), [1]);
    assert_eq!(checkpoints.steps().unwrap(), [2, 10]);
    assert_eq!(leftovers(checkpoints.dir()), [""; 0]);
}

/// CKPT-4 and STREAM-1.
#[test]
fn shards_of_any_number_of_ranks_give_the_same_bits() {
    let dir = TempDir::new();
    let infos = [
        TensorInfo::new("a", DType::U8, [5]),
        TensorInfo::new("large", DType::F32, [1000, 1111]),
        TensorInfo::new("half", DType::F16, [300_001]),
        TensorInfo::new("b", DType::I32, [7]),
    ];
    let wanted = state_of(&infos, 3);
    let nothing = |_| OwnedTensors::new();
    for (n, step) in [1, 2, 3, 7].into_iter().zip(1..) {
        let manifest = save_by_ranks(dir.path(), step, n, &wanted, nothing);
        assert_eq!(manifest.shards.len(), n as usize);
        let mut got = OwnedTensors::zeros(infos.clone());
        let checkpoints = Checkpoints::open(dir.path());
        checkpoints.load(step, &mut got, Strictness::Exact).unwrap();
        assert!(got == wanted, "{n} shards");
        checkpoints.verify(step).unwrap();
        // From these shards to another number of them.
        save_by_ranks(dir.path(), 100, 5 - n.min(4), &got, nothing);
        let mut again = OwnedTensors::zeros(infos.clone());
        checkpoints.load(100, &mut again, Strictness::Exact).unwrap();
        assert!(again == wanted, "{n} shards, then others");
    }
}

/// CKPT-4.
#[test]
fn what_one_rank_has_is_loaded_by_that_rank_and_missed_by_no_other() {
    let dir = TempDir::new();
    let random = |rank: u32| TensorInfo::new(format!("random.{rank}"), DType::U8, [16]).owned_by(rank);
    let own = |rank: u32| state_of(&[random(rank)], 70 + u64::from(rank));
    save_by_ranks(dir.path(), 4, 3, &state(4), own);
    for rank in 0..5 {
        let (mut all, mut mine) = (empty(), OwnedTensors::zeros([random(rank)]));
        let mut parts = Several::new(vec![&mut all, &mut mine]).unwrap();
        let (_, loaded) = Checkpoints::open(dir.path()).load(4, &mut parts, Strictness::Exact).unwrap();
        let left: Vec<String> = loaded.left.iter().map(|l| l.name.clone()).collect();
        let mut others: Vec<String> = (0..3).filter(|&r| r != rank).map(|r| random(r).name).collect();
        others.extend((rank > 2).then(|| random(rank).name));
        others.sort();
        assert_eq!(
            left.iter().cloned().collect::<std::collections::BTreeSet<_>>(),
            others.into_iter().collect()
        );
        assert_eq!(all, state(4));
        let wanted = if rank < 3 { own(rank) } else { OwnedTensors::zeros([random(rank)]) };
        assert_eq!(mine, wanted, "rank {rank}");
    }
}

#[test]
fn a_shard_is_a_safetensors_file() {
    let dir = TempDir::new();
    let infos: Vec<TensorInfo> =
        DType::ALL.iter().map(|&d| TensorInfo::new(format!("t-{d}"), d, [40, 500])).collect();
    let wanted = state_of(&infos, 8);
    let manifest = save_by_ranks(dir.path(), 1, 2, &wanted, |_| OwnedTensors::new());
    let mut found = OwnedTensors::zeros(infos.clone());
    for shard in &manifest.shards {
        let bytes = fs::read(dir.path().join("checkpoint-1").join(&shard.file)).unwrap();
        assert_eq!(blake3::hash(&bytes).to_hex().as_str(), shard.blake3);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in file.tensors() {
            let (name, start) = match name.split_once('[') {
                Some((name, range)) => {
                    (name.to_string(), range.split(':').next().unwrap().parse::<u64>().unwrap())
                }
                None => (name, 0),
            };
            let info = infos.iter().find(|i| i.name == name).unwrap();
            assert_eq!(format!("{:?}", view.dtype()).to_lowercase(), info.dtype.name());
            assert_eq!(view.data().as_ptr().align_offset(1), 0);
            found.write(&name, start * info.dtype.size() as u64, view.data()).unwrap();
        }
    }
    assert!(found == wanted);
    let bytes = fs::read(dir.path().join("checkpoint-1/shard-0-of-2.safetensors")).unwrap();
    let view = SafeTensors::deserialize(&bytes).unwrap();
    let view = view.tensor("t-u8").unwrap();
    assert_eq!((view.dtype(), view.shape()), (Dtype::U8, [40, 500].as_slice()));
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    let first = checkpoints.save(about(7), &state(1)).unwrap();
    checkpoints.save(about(7), &state(2)).unwrap();
    let mut got = empty();
    let restored = checkpoints.load_newest(&mut got, Strictness::Exact).unwrap().unwrap();
    assert_eq!((restored.checkpoint.step(), restored.pointer), (7, Pointer::Right));
    assert_eq!((got, checkpoints.steps().unwrap()), (state(2), vec![7]));
    assert_eq!(leftovers(dir.path()), [""; 0]);
    // A reader that had opened the first one does not get a mixture.
    let error = first.load(&mut empty(), Strictness::Exact).unwrap_err();
    assert!(error.is_gone(), "{error}");
}

/// CKPT-3.
#[test]
fn all_that_does_not_fit_is_named_and_nothing_changes() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    checkpoints.save(about(3), &state(3)).unwrap();
    let mut infos = small_infos();
    infos[0].dtype = DType::U8;
    infos[1].shape = vec![30, 20];
    infos[4].name = "two".into();
    let mut got = OwnedTensors::zeros(infos.clone());
    let error = checkpoints.load_newest(&mut got, Strictness::Exact).unwrap_err();
    let text = error.to_string();
    for says in [
        "the checkpoint of step 3 does not fit",
        "`flag` is u8[3], the checkpoint has bool[3]",
        "`layer.w` is f32[30, 20], the checkpoint has f32[20, 30]",
        "`two` (i64[]) is not in the checkpoint",
        "`one` (i64[]) is in the checkpoint only",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    assert_eq!(got, OwnedTensors::zeros(infos.clone()));

    let restored = checkpoints.load_newest(&mut got, Strictness::Partial).unwrap().unwrap();
    assert_eq!(restored.loaded.tensors, ["layer.b", "none"]);
    let left: Vec<&str> = restored.loaded.left.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(left, ["flag", "layer.w", "two", "one"]);
    assert_eq!(got.get("layer.b"), state(3).get("layer.b"));
    assert_eq!(got.get("two"), Some([0; 8].as_slice()));
}

/// A part that takes over all tensors of other names than its own.
struct Taking(OwnedTensors);

impl Part for Taking {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.0.tensors()
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), PartError> {
        self.0.read(name, offset, out)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), PartError> {
        self.0.write(name, offset, bytes)
    }

    fn make_room(&mut self, found: &[TensorInfo]) {
        for info in found.iter().filter(|info| self.0.get(&info.name).is_none()).cloned().collect::<Vec<_>>()
        {
            let bytes = vec![0; info.bytes() as usize];
            self.0.insert(info, bytes);
        }
    }
}

/// CKPT-3.
#[test]
fn a_part_of_a_checkpoint_is_loaded_or_a_part_takes_over_all_of_it() {
    let (dir, infos) = (TempDir::new(), small_infos());
    let checkpoints = Checkpoints::open(dir.path());
    let saved = checkpoints.save(about(1), &state_of(&infos, 1)).unwrap();
    let mut some = state_of(&infos[1..3], 2);
    assert!(saved.load(&mut some, Strictness::Exact).is_err());
    let loaded = saved.load(&mut some, Strictness::Subset).unwrap();
    assert_eq!((loaded.tensors.len(), loaded.left.len()), (2, infos.len() - 2));
    assert_eq!(some.get("layer.b"), state_of(&infos, 1).get("layer.b"));
    let mut more = state_of(&[infos[1].clone(), TensorInfo::new("other", DType::F32, [1])], 2);
    let before = more.clone();
    let error = saved.load(&mut more, Strictness::Subset).unwrap_err().to_string();
    assert!(error.contains("other") && !error.contains("layer.b"), "{error}");
    assert_eq!(more, before);
    let mut taking = Taking(state_of(&infos[1..2], 3));
    saved.load(&mut taking, Strictness::Exact).unwrap();
    for (info, bytes) in state_of(&infos, 1).iter() {
        assert_eq!(taking.0.get(&info.name), Some(bytes), "{info}");
        assert_eq!(saved.read(&info.name).unwrap(), bytes, "{info}");
    }
    assert!(saved.read("other").unwrap_err().to_string().contains("other"));
    let shard = dir.path().join("checkpoint-1").join("shard-0-of-1.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let broken = infos.iter().filter(|info| saved.read(&info.name).is_err()).count();
    assert_eq!(broken, 1, "only the tensor that has the bit");
}

#[test]
fn a_shard_that_the_committing_rank_does_not_see_is_named() {
    let dir = TempDir::new();
    Checkpoints::create(dir.path()).unwrap().save(about(1), &state(1)).unwrap();
    let draft = CheckpointDraft::begin(dir.path(), 2).unwrap();
    let path = draft.path().to_path_buf();
    let slices = share_out(&state(2).tensors(), 2);
    let record = |index: u32| {
        let id = ShardId { index, of: 2, rank: index + 4 };
        draft.write_shard(id, &slices[index as usize], &state(2)).unwrap()
    };
    let manifest = Manifest::new(about(2), vec![record(0), record(1)]).unwrap();
    let lost = path.join("shard-1-of-2.safetensors");
    fs::write(&lost, "short").unwrap();
    let again = CheckpointDraft::join(dir.path(), draft.name()).unwrap();
    let error = again.commit(&manifest).unwrap_err().to_string();
    assert!(error.contains("rank 5's shard is not visible") && error.contains("has 5 bytes, not"), "{error}");
    fs::remove_file(&lost).unwrap();
    let error = draft.commit(&manifest).unwrap_err().to_string();
    let says = "shard-1-of-2.safetensors does not exist. Save to a directory that is common to all hosts";
    assert!(error.contains(says), "{error}");
    // A rank whose directory is another one.
    let elsewhere = TempDir::new();
    let other = CheckpointDraft::join(elsewhere.path(), path.file_name().unwrap().to_str().unwrap()).unwrap();
    let id = ShardId { index: 0, of: 2, rank: 4 };
    let error = other.write_shard(id, &slices[0], &state(2)).unwrap_err().to_string();
    assert!(error.starts_with("the checkpoint that rank 0 has begun is not visible here: "), "{error}");
    // The one that began the draft has removed it, and the old checkpoint is whole.
    assert!(!path.exists());
    assert_eq!(Checkpoints::open(dir.path()).latest().unwrap().checkpoint.unwrap().step(), 1);
}

#[test]
fn a_draft_of_a_living_saver_is_not_swept_and_one_that_is_dropped_is_removed() {
    let dir = TempDir::new();
    let draft = CheckpointDraft::begin(dir.path(), 5).unwrap();
    Checkpoints::create(dir.path()).unwrap().save(about(6), &state(6)).unwrap();
    assert_eq!(leftovers(dir.path()), [draft.name()]);
    let other = CheckpointDraft::begin(dir.path(), 5).unwrap();
    assert_ne!(other.name(), draft.name());
    drop(draft);
    other.abandon().unwrap();
    assert_eq!(leftovers(dir.path()), [""; 0]);
    assert!(CheckpointDraft::join(dir.path(), "../elsewhere").is_err());
}

#[test]
fn names_that_would_mix_tensors_up_are_refused() {
    let dir = TempDir::new();
    let info = |name: &str| TensorInfo::new(name, DType::U8, [2]);
    let checkpoints = Checkpoints::open(dir.path());
    let error = checkpoints.save(about(1), &state_of(&[info("__metadata__")], 1)).unwrap_err();
    assert!(matches!(error, CheckpointError::Name { .. }), "{error}");
    let (mut one, mut two) = (state_of(&[info("a")], 1), state_of(&[info("b"), info("a")], 1));
    assert!(Several::new(vec![&mut one, &mut two]).is_err());
    let slices = [TensorSlice::whole(info("a")), TensorSlice::whole(info("a"))];
    let draft = CheckpointDraft::begin(dir.path(), 1).unwrap();
    assert!(draft.write_shard(ShardId { index: 0, of: 1, rank: 0 }, &slices, &one).is_err());
}

#[test]
fn a_checkpoint_without_manifest_or_shards_is_skipped_and_told() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    for step in 1..=4 {
        checkpoints.save(about(step), &state(step)).unwrap();
    }
    let at = |path: &str| dir.path().join(path);
    fs::remove_file(at("checkpoint-4/manifest.json")).unwrap();
    fs::remove_file(at("checkpoint-3/shard-0-of-1.safetensors")).unwrap();
    fs::copy(at("checkpoint-1/manifest.json"), at("checkpoint-2/manifest.json")).unwrap();
    let latest = checkpoints.latest().unwrap();
    assert_eq!(latest.checkpoint.unwrap().step(), 1);
    assert!(matches!(latest.pointer, Pointer::Wrong { .. }));
    let [four, three, two] = latest.skipped.as_slice() else { panic!("{:?}", latest.skipped) };
    assert!(four.why.to_string().contains("manifest.json"), "{four}");
    let CheckpointError::Damaged { damage, .. } = &three.why else { panic!("{three}") };
    assert_eq!((&damage[0].flaw, damage[0].tensors.len()), (&Flaw::Missing, 5));
    let CheckpointError::Manifest { why, .. } = &two.why else { panic!("{two}") };
    assert_eq!(why, &ManifestFault::Step { found: 1, named: 2 });

    fs::remove_dir_all(at("checkpoint-1")).unwrap();
    let error = checkpoints.load_newest(&mut empty(), Strictness::Exact).unwrap_err().to_string();
    assert!(error.contains("none of the checkpoints is whole: step 4"), "{error}");
    // Retention neither counts nor removes them.
    checkpoints.save(about(9), &state(9)).unwrap();
    assert_eq!(checkpoints.retain(&Keep { last: 1, every: None }).unwrap(), [0; 0]);
}

#[test]
fn a_state_larger_than_all_buffers_is_read_by_two_threads() {
    let dir = TempDir::new();
    let (info, bytes) = filled(TensorInfo::new("w", DType::F32, [3_000_001]), 1);
    let mut wanted = OwnedTensors::new();
    wanted.insert(info.clone(), bytes);
    let (small, bytes) = filled(TensorInfo::new("s", DType::F64, [3]), 2);
    wanted.insert(small.clone(), bytes);
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    checkpoints.save(about(1), &wanted).unwrap();
    let mut got = OwnedTensors::zeros([info, small]);
    checkpoints.load_newest(&mut got, Strictness::Exact).unwrap().unwrap();
    assert!(got == wanted);

    /// A part that cannot take what is loaded.
    struct Stubborn(OwnedTensors);
    impl Part for Stubborn {
        fn tensors(&self) -> Vec<TensorInfo> {
            self.0.tensors()
        }
        fn read(&self, _: &str, offset: u64, _: &mut [u8]) -> Result<(), PartError> {
            if offset > 5_000_000 { Err("busy".into()) } else { Ok(()) }
        }
        fn write(&mut self, _: &str, offset: u64, _: &[u8]) -> Result<(), PartError> {
            if offset > 5_000_000 { Err("full".into()) } else { Ok(()) }
        }
    }
    let mut stubborn = Stubborn(wanted);
    let error = checkpoints.load_newest(&mut stubborn, Strictness::Exact).unwrap_err();
    assert_eq!(error.to_string(), "the tensor \"w\" cannot be written: full");
    let error = checkpoints.save(about(2), &stubborn).unwrap_err();
    assert_eq!(error.to_string(), "the tensor \"w\" cannot be read: busy");
    assert_eq!(leftovers(dir.path()), [""; 0]);
}
