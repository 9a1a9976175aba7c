//! Which engine this process runs under: as one of its ranks, or in an allocation where ranks can be started.

use super::finding::Finding;
use phalanx_net::{discover::discover, rehearsal};

const CHECK: &str = "engine";

/// What a rank would do in this environment, and all that it would refuse.
pub fn check(var: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let refused = rehearsal::refusals(&var).into_iter().map(|error| refusal(&error.to_string()));
    std::iter::once(who(&var)).chain(refused).collect()
}

fn refusal(error: &str) -> Finding {
    Finding::fail(
        CHECK,
        error,
        "a program started here as a rank refuses to run",
        "mend what is said here, or start the program with `phalanx run`, which removes such variables",
    )
}

fn who(var: &dyn Fn(&str) -> Option<String>) -> Finding {
    match discover(var, 0) {
        Ok(identity) if identity.source != "nobody" => {
            let fact = format!(
                "rank {} of {} by {}: ranks meet {}",
                identity.rank, identity.n_ranks, identity.source, identity.meeting
            );
            Finding::note(CHECK, fact)
        }
        Ok(_) => allocation(&|name: &str| var(name).filter(|value| !value.is_empty())),
        Err(error) => refusal(&error.to_string()),
    }
}

/// Where this process is no rank, but its surroundings can start some.
fn allocation(var: &dyn Fn(&str) -> Option<String>) -> Finding {
    if let Some(job) = var("SLURM_JOB_ID") {
        let nodes = var("SLURM_JOB_NODELIST").or_else(|| var("SLURM_NODELIST"));
        let tasks = var("SLURM_TASKS_PER_NODE").map(|t| format!(", tasks {t}")).unwrap_or_default();
        let fact = format!(
            "in allocation {job} of Slurm{}{tasks}: no rank of it; start ranks with srun",
            nodes.map(|n| format!(", nodes {n}")).unwrap_or_default()
        );
        return Finding::note(CHECK, fact);
    }
    if var("KUBERNETES_SERVICE_HOST").is_some() {
        let fact =
            "in a pod of Kubernetes that is no rank: JOB_COMPLETION_INDEX and PHALANX_SIZE are not both set";
        return Finding::note(CHECK, fact);
    }
    Finding::ok(CHECK, "none: a program started here is alone; `phalanx run -np N` starts ranks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Mark;

    fn found(vars: &[(&str, &str)]) -> (Mark, String) {
        let finding =
            check(|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string())).remove(0);
        (finding.mark, finding.fact)
    }

    #[test]
    fn a_rank_is_told_where_it_would_meet_the_others() {
        let vars = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2"), ("PMI_FD", "8")];
        assert_eq!(found(&vars).1, "rank 1 of 4 by PMI: ranks meet through PMI 1");
        let (mark, fact) = found(&vars[..3]);
        assert_eq!((mark, fact.contains("does not say where they meet")), (Mark::Fail, true), "{fact}");
    }

    #[test]
    fn an_allocation_is_no_rank() {
        let vars = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_NODELIST", "n[0-1]"),
            ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ];
        assert_eq!(
            found(&vars).1,
            "in allocation 7 of Slurm, nodes n[0-1], tasks 2(x2): no rank of it; start ranks with srun"
        );
        assert!(found(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).1.starts_with("in a pod of Kubernetes"));
        assert_eq!(found(&[]).0, Mark::Ok);
        for half in ["RANK", "JOB_COMPLETION_INDEX", "PHALANX_RANK"] {
            let (mark, fact) = found(&[(half, "1")]);
            assert_eq!((mark, fact.contains("is only partly set")), (Mark::Fail, true), "{fact}");
        }
    }

    #[test]
    fn what_a_rank_refuses_fails_here() {
        for (name, value) in [
            ("PHALANX_SECRET", "short"),
            ("PHALANX_RENDEZVOUS", "n0:99999"),
            ("PHALANX_INTERFACE", "nope0"),
            ("PHALANX_SIZE", ""),
        ] {
            let findings = check(|asked| (asked == name).then(|| value.to_string()));
            assert!(findings.iter().any(|f| f.mark == Mark::Fail), "{name}: {findings:?}");
        }
    }

    #[test]
    fn launchers_that_disagree_are_a_failure() {
        let vars = [
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        let (mark, fact) = found(&vars);
        assert_eq!((mark, fact.starts_with("two launchers disagree")), (Mark::Fail, true), "{fact}");
    }
}
