//! How long a save and a load take beside plain copies, writes and reads of the same bytes.
//!
//! `cargo run --release -p phalanx-checkpoint --example checkpoint_bench -- [DIR] [MB] [ROUNDS]`; `-` is the folder for
//! temporary files. Rounds are interleaved. A line for each: `files`, what, median, least and most milliseconds. A round
//! writes the state three times and removes it.

use phalanx_checkpoint::{
    About, CheckpointDraft, CheckpointError, Checkpoints, Copied, Manifest, OwnedTensors, Part, ShardId,
    Strictness, TensorInfo, TensorSlice,
};
use phalanx_core::DType;
use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    time::Instant,
};

const NAMES: [&str; 6] = [
    "copy into kept memory",
    "plain write + fsync",
    "save (from the copy)",
    "save (from the state)",
    "plain read",
    "load",
];

fn timed<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let result = run();
    (begun.elapsed().as_secs_f64() * 1e3, result)
}

/// Forty tensors of a size, ten small ones beside each.
fn state(bytes: usize) -> OwnedTensors {
    let mut state = OwnedTensors::new();
    let mut seed = 1u32;
    for i in 0..40 {
        let n = bytes / 160;
        let values = (0..n).flat_map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.to_le_bytes()
        });
        state.insert(TensorInfo::new(format!("layer.{i}.w"), DType::F32, [n]), values.collect());
        for j in 0..10 {
            state.insert(TensorInfo::new(format!("layer.{i}.b.{j}"), DType::F32, [64]), vec![j; 256]);
        }
    }
    state
}

fn write_plainly(path: &Path, parts: &OwnedTensors) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for (_, bytes) in parts.iter() {
        file.write_all(bytes)?;
    }
    file.sync_all()
}

fn save(dir: &Path, about: About, copied: &Copied) -> Result<(), CheckpointError> {
    let draft = CheckpointDraft::begin(dir, about.step)?;
    let record = draft.write_copied(ShardId { index: 0, of: 1, rank: 0 }, copied)?;
    let why = |why| CheckpointError::Manifest { path: draft.path().to_path_buf(), why };
    let manifest = Manifest::new(about, vec![record]).map_err(why)?;
    draft.commit(&manifest).map(drop)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let dir = args.next().filter(|dir| dir != "-").map_or_else(env::temp_dir, PathBuf::from);
    let megabytes: usize = args.next().map_or(Ok(400), |a| a.parse())?;
    let rounds: usize = args.next().map_or(Ok(7), |a| a.parse())?;
    let dir = dir.join(format!("phalanx-checkpoint-bench-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let state = state(megabytes * 1_000_000);
    let slices: Vec<TensorSlice> = state.tensors().into_iter().map(TensorSlice::whole).collect();
    let (mut copied, mut loaded) = (Copied::new(), state.clone());
    copied.copy(&state, &slices)?;
    let mut plain: Vec<u8> = vec![1; state.tensors().iter().map(TensorInfo::bytes).sum::<u64>() as usize];
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); NAMES.len()];
    let checkpoints = Checkpoints::create(dir.join("checkpoints"))?;
    for round in 0..=rounds {
        let about = About { step: round as u64, world: 1, ..About::default() };
        let file = dir.join("plain");
        let remove = || {
            let _ = fs::remove_file(&file);
            let _ = fs::remove_dir_all(checkpoints.dir());
            // What was removed is off the disk before the next measurement begins.
            let _ = File::open(&dir).and_then(|d| d.sync_all());
        };
        let mut measured = Vec::new();
        measured.push(timed(|| copied.copy(&state, &slices)).0);
        measured.push(timed(|| write_plainly(&file, &state)).0);
        remove();
        let (from_state, saved) = timed(|| checkpoints.save(about.clone(), &state));
        saved?;
        remove();
        let (from_copy, saved) = timed(|| save(checkpoints.dir(), about, &copied));
        saved?;
        measured.extend([from_copy, from_state]);
        let shard = checkpoints.dir().join(format!("checkpoint-{round}/shard-0-of-1.safetensors"));
        measured.push(timed(|| File::open(&shard).and_then(|mut f| f.read_exact(&mut plain))).0);
        let (load, restored) = timed(|| checkpoints.load_newest(&mut loaded, Strictness::Exact));
        restored?.ok_or("a checkpoint was saved")?;
        measured.push(load);
        remove();
        // The first round warms up.
        if round > 0 {
            times.iter_mut().zip(measured).for_each(|(all, one)| all.push(one));
        }
    }
    fs::remove_dir_all(&dir)?;
    for (name, all) in NAMES.iter().zip(&times) {
        let (low, high) =
            (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
        println!("files\t{name}\t{:.1}\t{low:.1}\t{high:.1}", median(all));
    }
    Ok(())
}
