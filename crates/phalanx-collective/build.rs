//! Says which build this is: the version, and a digest of the sources of the crates whose ranks talk to each other.
//!
//! Ranks must make the same plans, lay out the same memory and send the same messages; every source file of core, mpi, net and collective can change
//! one of these, and a manual protocol version would be forgotten. A digest of the files needs no git, is the same in a clone and in a
//! tarball, sees changes that were not committed, and changes only with files for which this crate is compiled again anyway.

use std::{
    env, fs,
    io::{self, Write},
    path::Path,
};

fn main() -> io::Result<()> {
    let mut cargo = io::stdout();
    let mut digest = Digest::default();
    for krate in ["phalanx-core", "phalanx-mpi", "phalanx-net", "phalanx-collective"] {
        // Where only this crate was unpacked, the versions of the others are what Cargo chose.
        let src = Path::new("..").join(krate).join("src");
        let src = if krate == "phalanx-collective" { Path::new("src").to_path_buf() } else { src };
        if src.is_dir() {
            writeln!(cargo, "cargo:rerun-if-changed={}", src.display())?;
            digest.add_tree(&src, krate)?;
        }
    }
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")?;
    // Not PHALANX_*: Cargo shows it to tests, too, and settings that are none are refused.
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    writeln!(cargo, "cargo:rustc-env=BUILD_OF_PHALANX={version}+{:016x}", digest.0)
}

/// FNV-1a: not to keep forgers out, only to tell builds apart.
#[derive(Debug)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// All files below a directory, by their names and contents, in the order of their names.
    pub fn add_tree(&mut self, dir: &Path, name: &str) -> io::Result<()> {
        let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.add_tree(&entry.path(), &name)?;
            } else {
                self.add(name.as_bytes());
                self.add(&fs::read(entry.path())?);
            }
        }
        Ok(())
    }

    /// With its length, so that bytes cannot move from one piece to the next.
    fn add(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
