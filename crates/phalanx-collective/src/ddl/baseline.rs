//! What `check` compares with: MPI where ranks can enter it, else all inputs gathered; and the words for it.

use super::check::GATHERED;
use crate::{Error, engine::EngineError};
use std::sync::{Arc, OnceLock};

/// Remembers whether MPI is there: once refused, it is not asked again.
#[derive(Debug)]
pub struct Baseline {
    version: Arc<OnceLock<String>>,
    /// Why MPI is not the baseline.
    without: Option<String>,
    last: Option<String>,
}

impl Baseline {
    /// `climbs`: the results themselves are MPI's, which must not be judged by it.
    pub fn new(version: Arc<OnceLock<String>>, climbs: bool) -> Baseline {
        Baseline { version, without: climbs.then(|| "the result is MPI's own".into()), last: None }
    }

    pub fn may_be_mpi(&self) -> bool {
        self.without.is_none()
    }

    /// Notes that there is no MPI; `None` if the error says something else.
    pub fn refused(&mut self, why: &EngineError) -> Option<()> {
        let EngineError::Failed(error) = why else { return None };
        let Error::NoMpi { why, .. } = &**error else { return None };
        self.go_without(why.clone());
        Some(())
    }

    /// Notes why MPI is not asked any more.
    pub fn go_without(&mut self, why: String) {
        self.without = Some(why);
    }

    /// Notes what a check compared with, and names it.
    pub fn used(&mut self, is_mpi: bool) -> String {
        let (short, long) = if is_mpi {
            let version = self.version.get().map_or("", String::as_str);
            let text = format!("MPI_Allreduce of {version}");
            (text.clone(), text)
        } else {
            let why = self.without.as_ref().map(|why| format!("; not MPI: {why}")).unwrap_or_default();
            (GATHERED.to_string(), format!("{GATHERED}{why}"))
        };
        self.last = Some(long);
        short
    }

    /// What the last check compared with.
    pub fn last(&self) -> Option<String> {
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Rank;

    #[test]
    fn a_refusal_is_remembered_and_told() {
        let mut baseline = Baseline::new(Arc::default(), false);
        assert!(baseline.may_be_mpi() && baseline.last().is_none());
        assert_eq!(baseline.refused(&EngineError::Forked), None);
        let why = Error::NoMpi { rank: Rank(0), why: "no mpirun".into() };
        assert_eq!(baseline.refused(&EngineError::from(why)), Some(()));
        assert!(!baseline.may_be_mpi());
        assert_eq!(baseline.used(false), GATHERED);
        assert_eq!(baseline.last().unwrap(), format!("{GATHERED}; not MPI: no mpirun"));
    }

    #[test]
    fn the_library_is_named() {
        let version: Arc<OnceLock<String>> = Arc::default();
        let mut baseline = Baseline::new(version.clone(), false);
        version.set("Open MPI v4.1.4".into()).unwrap();
        assert_eq!(baseline.used(true), "MPI_Allreduce of Open MPI v4.1.4");
        assert_eq!(baseline.last().as_deref(), Some("MPI_Allreduce of Open MPI v4.1.4"));
        assert!(!Baseline::new(version, true).may_be_mpi(), "MPI does not judge itself");
    }
}
