//! Variables that launchers set for ranks. A complete set is fine; a partial one is a warning.

use super::finding::Finding;
use phalanx_net::discover::discover;

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

/// Where a rank that is started here meets the others, if it is one.
pub fn meeting(var: impl Fn(&str) -> Option<String>) -> Option<Finding> {
    let identity = discover(&var, 0).ok().filter(|identity| identity.n_ranks > 1)?;
    let fact = format!(
        "rank {} of {} by {}: ranks meet {}",
        identity.rank, identity.n_ranks, identity.source, identity.meeting
    );
    Some(Finding::note("environment", fact))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    fn found(set: &[&str]) -> Vec<(Mark, String)> {
        check(|name| set.contains(&name)).into_iter().map(|f| (f.mark, f.fact)).collect()
    }

    #[test]
    fn a_rank_is_told_where_it_would_meet_the_others() {
        let vars = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2"), ("PMI_FD", "8")];
        let var = |n: usize| {
            move |name: &str| vars[..n].iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string())
        };
        assert_eq!(meeting(var(4)).unwrap().fact, "rank 1 of 4 by PMI: ranks meet through PMI 1");
        assert!(meeting(var(0)).is_none() && meeting(var(3)).is_none());
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
