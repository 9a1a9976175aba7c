//! Which crate may know which: core <- net <- collective <- launch; net <- ps <- launch; core <- graph; core <- checkpoint <- launch, train; graph and
//! collective meet in train.

use super::{Complaint, source::Source};

/// Each crate and what of ours it may depend on. A new edge also needs a line in ARCHITECTURE.md.
const ALLOWED: &[(&str, &[&str])] = &[
    ("phalanx-core", &[]),
    ("phalanx-checkpoint", &["phalanx-core"]),
    ("phalanx-net", &["phalanx-core"]),
    ("phalanx-mpi", &["phalanx-core"]),
    ("phalanx-collective", &["phalanx-core", "phalanx-mpi", "phalanx-net"]),
    ("phalanx-ps", &["phalanx-core", "phalanx-net"]),
    (
        "phalanx-launch",
        &["phalanx-core", "phalanx-checkpoint", "phalanx-net", "phalanx-collective", "phalanx-ps"],
    ),
    ("phalanx-c", &["phalanx-core", "phalanx-collective"]),
    ("phalanx-graph", &["phalanx-core"]),
    (
        "phalanx-train",
        &[
            "phalanx-core",
            "phalanx-checkpoint",
            "phalanx-net",
            "phalanx-collective",
            "phalanx-graph",
            "phalanx-ps",
        ],
    ),
    ("phalanx", &["phalanx-core", "phalanx-net", "phalanx-collective", "phalanx-graph", "phalanx-train"]),
    (
        "phalanx-py",
        &[
            "phalanx-core",
            "phalanx-checkpoint",
            "phalanx-net",
            "phalanx-collective",
            "phalanx-ps",
            "phalanx-launch",
            "phalanx-graph",
            "phalanx-train",
        ],
    ),
    ("xtask", &[]),
];

pub fn check(sources: &[Source]) -> Vec<Complaint> {
    let manifests = sources.iter().filter(|s| s.path.ends_with("/Cargo.toml"));
    manifests.flat_map(|s| check_manifest(&s.path, &s.text)).collect()
}

fn check_manifest(path: &str, text: &str) -> Vec<Complaint> {
    let Some(name) = path.rsplit('/').nth(1) else { return Vec::new() };
    let edges = edges(text);
    let Some((_, allowed)) = ALLOWED.iter().find(|(n, _)| *n == name) else {
        // What is no crate of the layers (fuzz targets, say) may use all of them.
        let is_layer = path.starts_with("crates/");
        return is_layer
            .then(|| Complaint::new(path, 0, "a new crate needs its place in xtask/src/tidy/layers.rs"))
            .into_iter()
            .collect();
    };
    edges
        .into_iter()
        .filter(|(_, to)| !allowed.contains(&to.as_str()))
        .map(|(line, to)| {
            Complaint::new(
                path,
                line,
                format!("{name} must not depend on {to}; layers: core <- net <- collective <- launch"),
            )
        })
        .collect()
}

/// Our own crates among the dependencies of any kind, with their lines.
fn edges(text: &str) -> Vec<(usize, String)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim_end().ends_with("dependencies]");
        } else if inside {
            let name: String =
                line.chars().take_while(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect();
            if name == "phalanx" || name.starts_with("phalanx-") {
                found.push((i + 1, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_upwards_is_named() {
        let text = "[package]\nname = \"phalanx-net\"\n[dependencies]\nphalanx-core.workspace = true\n\
                    [dev-dependencies]\nphalanx-collective = { path = \"../x\" }\n";
        let found = check_manifest("crates/phalanx-net/Cargo.toml", text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 6);
        assert!(found[0].what.contains("must not depend on phalanx-collective"));
    }

    #[test]
    fn a_crate_without_a_place_is_named() {
        assert_eq!(check_manifest("crates/phalanx-new/Cargo.toml", "").len(), 1);
        assert_eq!(check_manifest("fuzz/Cargo.toml", "[dependencies]\nphalanx-net = \"1\"").len(), 0);
    }

    #[test]
    fn allowed_edges_have_no_cycle() {
        for (i, (name, to)) in ALLOWED.iter().enumerate() {
            let earlier: Vec<&str> = ALLOWED[..i].iter().map(|(n, _)| *n).collect();
            assert!(to.iter().all(|t| earlier.contains(t)), "{name} depends only on what stands above it");
        }
    }
}
