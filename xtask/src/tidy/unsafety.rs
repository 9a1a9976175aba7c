//! `unsafe` lives in these files only, each with its reason.

use super::{Complaint, rust, source::Source, words::has_word};

/// Paths, or folders ending in `/`, and what they need it for.
pub const FILES: &[(&str, &str)] = &[
    ("crates/phalanx-core/src/kernel.rs", "calls the kernels on raw memory"),
    ("crates/phalanx-core/src/kernel/", "SIMD kernels chosen at run time, and their tests"),
    ("crates/phalanx-core/examples/kernels.rs", "measures the kernels"),
    ("crates/phalanx-net/src/arena/map.rs", "the shared mapping, behind bounds checks"),
    ("crates/phalanx-net/src/arena/peek.rs", "reads another process's memory through the kernel"),
    ("crates/phalanx-net/src/board/mpi.rs", "asks an MPI library of this process whether it runs"),
    ("crates/phalanx-net/src/board/pmix.rs", "calls libpmix, which is loaded at run time"),
    (
        "crates/phalanx-net/src/board/process.rs",
        "the number of a socket that the launcher handed down, and a word when the process ends",
    ),
    (
        "crates/phalanx-mpi/src/library.rs",
        "calls the MPI library of the launcher, which is loaded at run time",
    ),
    ("crates/phalanx-net/src/forks.rs", "what runs in a forked child"),
    ("crates/phalanx-net/src/large_pages.rs", "advice to the kernel about memory that is borrowed"),
    ("crates/phalanx-net/tests/forked.rs", "forks while a world lives"),
    ("crates/phalanx-net/tests/inputs/mod.rs", "counts what decoders allocate"),
    ("crates/phalanx-collective/src/bytes.rs", "elements as bytes and back"),
    ("crates/phalanx-collective/src/buffer.rs", "slices of arena memory"),
    ("crates/phalanx-collective/src/engine/tensor.rs", "the memory of submitted tensors"),
    ("crates/phalanx-collective/src/run/memory.rs", "the operands of a step, wherever they lie"),
    (
        "crates/phalanx-collective/tests/processes/worker.rs",
        "a fault: shuts every connection it finds in /proc",
    ),
    ("crates/phalanx-collective/tests/engine_faults/forked.rs", "forks while an engine lives"),
    ("crates/phalanx-py/src/dlpack.rs", "the structure in which tensors cross to other libraries"),
    ("crates/phalanx-py/src/lent.rs", "the memory of Python's tensors, with what keeps it alive"),
    (
        "crates/phalanx-py/src/native.rs",
        "the table of functions for native operations of TensorFlow and JAX, and their tensors' memory",
    ),
    ("crates/phalanx-graph/src/kernel/raw_memory.rs", "memory that is lent out by a plan"),
    ("crates/phalanx-graph/src/kernel/call.rs", "the operands of an operation, checked by MEMPLAN-1"),
    ("crates/phalanx-graph/src/kernel/gemm/tile.rs", "SIMD tiles of products on checked slices"),
    ("crates/phalanx-graph/src/kernel/gemm/turn.rs", "SIMD transposes on checked slices"),
    ("crates/phalanx-graph/tests/allocator.rs", "counts what runs and imports allocate"),
    ("crates/phalanx-launch/src/agent/spawn.rs", "what runs between fork and exec"),
    (
        "crates/phalanx-launch/tests/launch/engines/beside_mpi.rs",
        "calls an MPI library in a process that is a rank",
    ),
    ("crates/phalanx-c/src/", "the edge to C: exported names and the callers' pointers"),
];

/// The page that lists them; all of it is generated.
pub const PAGE: &str = "docs/unsafe.md";

/// The whole page.
pub fn page() -> String {
    let mut page = String::from(
        "# Files with `unsafe`\n\nEverything else is safe Rust. `cargo xtask tidy --fix` writes this page from the list in \
         `xtask/src/tidy/unsafety.rs`;\n`cargo xtask tidy` complains about `unsafe` in any other file.\n\n| file | why |\n|---|---|\n",
    );
    for (path, reason) in FILES {
        page.push_str(&format!("| `{path}` | {reason} |\n"));
    }
    page
}

pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for source in rust(sources) {
        if FILES.iter().any(|(allowed, _)| covers(allowed, &source.path)) {
            continue;
        }
        for (i, line) in source.code.lines().enumerate() {
            if has_word(line, "unsafe") {
                let what = "unsafe outside the files listed in xtask/src/tidy/unsafety.rs";
                found.push(Complaint::new(&source.path, i + 1, what));
            }
        }
    }
    for (allowed, _) in FILES {
        let is_used = |s: &&Source| covers(allowed, &s.path) && has_word(&s.code, "unsafe");
        if !rust(sources).any(|s| is_used(&s)) {
            found.push(Complaint::new(allowed, 0, "has no unsafe any more: take it off the list"));
        }
    }
    if let Some(listed) = sources.iter().find(|s| s.path == PAGE)
        && listed.text != page()
    {
        found.push(Complaint::new(PAGE, 0, "is out of date: run `cargo xtask tidy --fix`"));
    }
    found
}

fn covers(allowed: &str, path: &str) -> bool {
    path == allowed || (allowed.ends_with('/') && path.starts_with(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::classify;

    #[test]
    fn unsafe_elsewhere_is_named_with_its_line() {
        let mut files: Vec<(String, String)> = FILES
            .iter()
            .map(|(p, _)| (format!("{p}{}", if p.ends_with('/') { "x.rs" } else { "" }), "unsafe {}".into()))
            .collect();
        assert_eq!(check(&classify(files.clone())), []);
        files.push(("crates/a/src/lib.rs".into(), "// unsafe\nfn unsafe_name() {}\nunsafe { x() }\n".into()));
        let found = check(&classify(files));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("crates/a/src/lib.rs", 3));
    }

    #[test]
    fn a_listed_file_without_unsafe_leaves_the_list() {
        assert_eq!(check(&[]).len(), FILES.len());
    }

    #[test]
    fn the_page_lists_every_file_with_its_reason() {
        let page = |text: String| classify(vec![(PAGE.into(), text)]);
        let complaints = |text| check(&page(text)).into_iter().filter(|c| c.path == PAGE).count();
        assert_eq!((complaints(super::page()), complaints("old".into())), (0, 1));
        assert_eq!(super::page().lines().filter(|l| l.starts_with("| `")).count(), FILES.len());
    }
}
