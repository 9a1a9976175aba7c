//! Checks `PHALANX_*` variables: a rank refuses to start with an unknown name or a bad value.

use super::finding::Finding;
use phalanx_core::{Config, config::ConfigError};

pub fn check(vars: impl IntoIterator<Item = (String, String)>) -> Vec<Finding> {
    let check = "settings";
    let mut ours: Vec<(String, String)> =
        vars.into_iter().filter(|(name, _)| name.starts_with("PHALANX_")).collect();
    ours.sort();
    let mut findings = Vec::new();
    for (name, value) in &ours {
        // One by one, so that the first mistake does not hide the others.
        let config = Config::from_vars([(name.clone(), value.clone())]);
        let Err(error) = config.and_then(|c| phalanx_net::World::check(&c)) else { continue };
        let action = match &error {
            ConfigError::Unknown { nearest: Some(meant), .. } => {
                format!("unset {name}; export {meant}='{value}' if that is what you meant")
            }
            ConfigError::Unknown { nearest: None, .. } => format!("unset {name}"),
            ConfigError::Bad { .. } => format!("correct it, or unset {name}"),
        };
        findings.push(Finding::fail(
            check,
            error.to_string(),
            "every rank started from here refuses to run",
            &action,
        ));
    }
    if findings.is_empty() {
        let names: Vec<&str> = ours.iter().map(|(name, _)| name.as_str()).collect();
        let fact =
            if names.is_empty() { "no PHALANX_ variables are set".to_string() } else { names.join(", ") };
        findings.push(Finding::ok(check, fact));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    fn found(vars: &[(&str, &str)]) -> Vec<(Mark, String, String)> {
        let vars = vars.iter().map(|(n, v)| (n.to_string(), v.to_string()));
        check(vars).into_iter().map(|f| (f.mark, f.fact, f.action.unwrap_or_default())).collect()
    }

    #[test]
    fn every_misspelled_name_is_answered_with_the_nearest_known_one() {
        let found = found(&[("PHALANX_TRANSPROT", "tcp"), ("PHALANX_RANKK", "0"), ("PHALANX_TIMEOUT", "5")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].1, "PHALANX_RANKK is not a setting; did you mean PHALANX_RANK?");
        assert_eq!(found[1].0, Mark::Fail);
        assert_eq!(
            found[1].2,
            "unset PHALANX_TRANSPROT; export PHALANX_TRANSPORT='tcp' if that is what you meant"
        );
    }

    #[test]
    fn values_that_cannot_be_used_are_found_and_good_ones_listed() {
        assert_eq!(found(&[("PHALANX_TIMEOUT", "soon")])[0].0, Mark::Fail);
        assert_eq!(found(&[("PHALANX_TRANSPORT", "ib")])[0].0, Mark::Fail);
        assert_eq!(found(&[("PHALANX_FAR_AWAY_FROM_ANY", "1")])[0].2, "unset PHALANX_FAR_AWAY_FROM_ANY");
        let fine = found(&[("PHALANX_TIMEOUT", "5"), ("HOME", "x")]);
        assert_eq!((fine[0].0, fine[0].1.as_str()), (Mark::Ok, "PHALANX_TIMEOUT"));
        assert_eq!(found(&[])[0].1, "no PHALANX_ variables are set");
    }
}
