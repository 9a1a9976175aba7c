//! Writes which rank failed first and how, for the program that started the launcher: one JSON object in a file.

use super::policy::EndCause;
use crate::wire::Ending;
use serde_json::{Value, json};

/// The verdict, where a rank is to blame.
pub fn of(cause: EndCause) -> Option<Value> {
    match cause {
        EndCause::Failed { rank, ending: Ending::Code(code) } => {
            Some(json!({ "rank": rank.0, "code": code }))
        }
        EndCause::Failed { rank, ending: Ending::Signal(signal) } => {
            Some(json!({ "rank": rank.0, "signal": signal }))
        }
        EndCause::Blamed { rank, end, .. } => {
            let mut verdict = json!({ "rank": rank.0 });
            match end.and_then(|end| end.ending) {
                Some(Ending::Code(code)) => verdict["code"] = code.into(),
                Some(Ending::Signal(signal)) => verdict["signal"] = signal.into(),
                None => {}
            }
            Some(verdict)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::policy::{Charge, RankEnd};
    use phalanx_core::Rank;

    #[test]
    fn a_verdict_names_the_rank_and_its_end() {
        let of = |ending| of(EndCause::Failed { rank: Rank(3), ending }).map(|v| v.to_string());
        assert_eq!(of(Ending::Code(7)).as_deref(), Some(r#"{"code":7,"rank":3}"#));
        assert_eq!(of(Ending::Signal(9)).as_deref(), Some(r#"{"rank":3,"signal":9}"#));
        assert_eq!(super::of(EndCause::TimedOut), None);
        let blamed = |end| super::of(EndCause::Blamed { rank: Rank(1), charge: Charge::Frozen, end });
        assert_eq!(blamed(None), Some(json!({ "rank": 1 })));
        let end = RankEnd { ending: Some(Ending::Code(0)), asked: None, early: true };
        assert_eq!(blamed(Some(end)), Some(json!({ "rank": 1, "code": 0 })));
    }
}
