//! The pages for people say what the code says.

use phalanx::core::config::{KEYS, RESERVED};

const README: &str = include_str!("../../../README.md");

#[test]
fn the_readme_lists_every_setting_with_its_meaning() {
    for key in KEYS {
        assert!(README.contains(&format!("| `{}` |", key.name)), "README.md has no row for {}", key.name);
    }
}

#[test]
fn the_readme_names_no_setting_that_does_not_exist() {
    let known: Vec<&str> = KEYS.iter().map(|k| k.name).chain(RESERVED.iter().copied()).collect();
    for (at, _) in README.match_indices("PHALANX_") {
        let name: String = README[at..].chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
        assert!(name == "PHALANX_" || known.contains(&name.as_str()), "{name} is no setting");
    }
}
