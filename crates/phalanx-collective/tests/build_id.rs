//! What tells two builds apart (see `build.rs`).

#[path = "../build.rs"]
#[expect(dead_code, reason = "its main is for Cargo")]
mod build;

use std::{fs, path::PathBuf};

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("phalanx-build-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("it has a directory")).expect("a directory is made");
            fs::write(path, text).expect("a file is written");
        }
        Tree(root)
    }

    fn digest(&self) -> u64 {
        let mut digest = build::Digest::default();
        digest.add_tree(&self.0, "src").expect("the tree can be read");
        digest.0
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_build_is_its_sources_wherever_they_lie() {
    let here = Tree::new("here", &[("a.rs", "1"), ("b/c.rs", "2")]).digest();
    assert_eq!(Tree::new("there", &[("b/c.rs", "2"), ("a.rs", "1")]).digest(), here);
    let others: [&[(&str, &str)]; 4] = [
        &[("a.rs", "1"), ("b/c.rs", "3")],
        &[("a.rs", "1"), ("b/d.rs", "2")],
        &[("a.rs", "12"), ("b/c.rs", "")],
        &[("a.rs", "1")],
    ];
    for (i, files) in others.iter().enumerate() {
        assert_ne!(Tree::new(&format!("other{i}"), files).digest(), here, "{files:?}");
    }
}

#[test]
fn the_build_has_a_version_and_a_digest() {
    let (version, digest) = phalanx_collective::BUILD.split_once('+').expect("both");
    assert_eq!((version, digest.len()), (env!("CARGO_PKG_VERSION"), 16));
}
