//! Files packed by gzip.

use flate2::read::GzDecoder;
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Longer files are refused rather than read: examples have a few megabytes.
const MOST_BYTES: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {why}", file.display())]
pub struct Unreadable {
    file: PathBuf,
    why: io::Error,
}

pub fn unpacked(file: &Path) -> Result<Vec<u8>, Unreadable> {
    let failed = |why| Unreadable { file: file.to_path_buf(), why };
    let mut bytes = Vec::new();
    let packed = File::open(file).map_err(failed)?;
    GzDecoder::new(packed).take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
