//! Directories, made-up states, and this program as a child.

use phalanx_checkpoint::{About, OwnedTensors, TensorInfo};
use phalanx_core::DType;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// A directory of its own that ends with the test. In memory where possible: a killed process loses nothing that a disk
/// would keep, and syncing takes no time.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let name = format!("phalanx-checkpoint-{}-{n}", std::process::id());
        let memory = Path::new("/dev/shm").join(&name);
        if fs::create_dir(&memory).is_ok() {
            return TempDir(memory);
        }
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory for temporary files");
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers from a seed.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

pub fn filled(info: TensorInfo, seed: u64) -> (TensorInfo, Vec<u8>) {
    let mut chance = Chance::new(seed);
    let bytes = (0..info.bytes()).map(|_| chance.below(256) as u8).collect();
    (info, bytes)
}

pub fn state_of(infos: &[TensorInfo], seed: u64) -> OwnedTensors {
    let mut state = OwnedTensors::new();
    for (i, info) in (0..).zip(infos) {
        let (info, bytes) = filled(info.clone(), seed * 1000 + i);
        state.insert(info, bytes);
    }
    state
}

pub fn small_infos() -> Vec<TensorInfo> {
    vec![
        TensorInfo::new("flag", DType::Bool, [3]),
        TensorInfo::new("layer.w", DType::F32, [20, 30]),
        TensorInfo::new("layer.b", DType::BF16, [30]),
        TensorInfo::new("none", DType::F64, [0, 7]),
        TensorInfo::new("one", DType::I64, []),
    ]
}

/// A small state; every step has its own.
pub fn state(step: u64) -> OwnedTensors {
    state_of(&small_infos(), step)
}

pub fn empty() -> OwnedTensors {
    OwnedTensors::zeros(small_infos())
}

pub fn about(step: u64) -> About {
    About { step, world: 1, seed: 5, ..About::default() }
}

/// What is in a directory under names that start with a dot.
pub fn leftovers(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("the directory exists").map(|e| e.expect("an entry").file_name());
    names.map(|n| n.to_string_lossy().into_owned()).filter(|n| n.starts_with('.')).collect()
}

/// The variable that tells a child where to save.
pub const DIR: &str = "PHALANX_TEST_CHECKPOINTS";

/// This program as a child that runs one test.
pub fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(DIR, dir);
    command
}

/// Where to save, if this process is such a child.
pub fn orders() -> Option<PathBuf> {
    env::var_os(DIR).map(PathBuf::from)
}
