//! Variables that launchers set for ranks. A complete set is fine; a partial one is a warning.

use super::finding::Finding;

/// A launcher and the variables that make sense only together.
const SOURCES: [(&str, &[&str]); 6] = [
    ("phalanx", &["PHALANX_RANK", "PHALANX_SIZE"]),
    ("torchrun", &["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
    ("Horovod", &["HOROVOD_RANK", "HOROVOD_SIZE"]),
    ("Open MPI", &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]),
    ("PMI", &["PMI_RANK", "PMI_SIZE"]),
    ("Slurm", &["SLURM_PROCID", "SLURM_NTASKS"]),
];

pub fn check(is_set: impl Fn(&str) -> bool) -> Vec<Finding> {
    let check = "environment";
    let mut findings = Vec::new();
    for (launcher, names) in SOURCES {
        let (set, unset): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_set(name));
        // Inside a bare `sbatch` script Slurm sets the number of tasks although it started none.
        if set.is_empty() || (launcher == "Slurm" && set == ["SLURM_NTASKS"]) {
            continue;
        }
        let set = set.join(", ");
        if unset.is_empty() {
            findings.push(Finding::note(check, format!("this looks like a rank of {launcher}: {set}")));
        } else {
            findings.push(Finding::warn(
                check,
                format!("{set} set, but not {}; {launcher} sets all of them", unset.join(", ")),
                "a program started here without `phalanx run` cannot tell whether it is a rank of a world",
                &format!("unset {set}"),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(check, "no launcher's variables are set"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    fn found(set: &[&str]) -> Vec<(Mark, String)> {
        check(|name| set.contains(&name)).into_iter().map(|f| (f.mark, f.fact)).collect()
    }

    #[test]
    fn half_sets_are_warned_about() {
        assert_eq!(found(&[])[0].0, Mark::Ok);
        assert_eq!(found(&["SLURM_NTASKS"])[0].0, Mark::Ok);
        assert_eq!(found(&["PMI_RANK", "PMI_SIZE"])[0].0, Mark::Note);
        let half = &found(&["RANK"])[0];
        assert_eq!(half.0, Mark::Warn);
        assert_eq!(half.1, "RANK set, but not WORLD_SIZE, LOCAL_RANK; torchrun sets all of them");
    }
}
