//! phalanx.h is what the sources say.

use cbindgen::{Builder, Config};
use std::path::Path;

/// In the order in which the header shows them.
const SOURCES: [&str; 6] = ["abi", "membership", "submit", "results", "horovod", "ddl"];

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let builder = SOURCES.into_iter().fold(Builder::new().with_config(config), |builder, name| {
        builder.with_src(root.join("src").join(name).with_extension("rs"))
    });
    let mut bytes = Vec::new();
    builder.generate().expect("cbindgen reads the sources").write(&mut bytes);
    let fresh =
        String::from_utf8(bytes).expect("the header is text").replace("# Safety\n", "The caller promises:\n");
    every_function_is_in(&fresh, root);
    let path = root.join("include/phalanx.h");
    if std::env::var_os("PHALANX_TEST_WRITE_HEADER").is_some() {
        std::fs::write(&path, &fresh).expect("the header can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let line = fresh.lines().zip(written.lines()).position(|(a, b)| a != b);
    assert!(
        fresh == written,
        "include/phalanx.h is not what the sources say (first at line {}); write it anew with\n    \
         PHALANX_TEST_WRITE_HEADER=1 cargo test -p phalanx-c header\nand commit it",
        line.unwrap_or(0) + 1
    );
}

/// A file that is missing in `SOURCES` would be missed by nobody else.
fn every_function_is_in(header: &str, root: &Path) {
    for entry in std::fs::read_dir(root.join("src")).expect("the sources are there") {
        let text = std::fs::read_to_string(entry.expect("a source").path()).expect("a source is text");
        for rest in text.split("extern \"C\" fn ").skip(1) {
            let name = rest.split('(').next().unwrap_or_default();
            let is_ours = name.starts_with("phalanx_") || name.starts_with("horovod_");
            assert!(!is_ours || header.contains(&format!("{name}(")), "{name}: add its file to SOURCES");
        }
    }
}
