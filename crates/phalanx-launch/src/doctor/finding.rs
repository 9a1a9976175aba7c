//! A finding of the doctor: a fact and, if it is a problem, its consequence and what to do.

use super::pair::Figures;
use crate::simulate::MeasuredCosts;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    Ok,
    /// Nothing good or bad, but worth knowing.
    Note,
    Warn,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub check: String,
    pub mark: Mark,
    pub fact: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Of two hosts.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub figures: Option<Figures>,
    /// Of the network, for `phalanx simulate --costs`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub costs: Option<MeasuredCosts>,
}

impl Finding {
    pub fn ok(check: &str, fact: impl Into<String>) -> Finding {
        Finding {
            check: check.to_string(),
            mark: Mark::Ok,
            fact: fact.into(),
            consequence: None,
            action: None,
            figures: None,
            costs: None,
        }
    }

    pub fn note(check: &str, fact: impl Into<String>) -> Finding {
        Finding { mark: Mark::Note, ..Finding::ok(check, fact) }
    }

    pub fn warn(check: &str, fact: impl Into<String>, consequence: &str, action: &str) -> Finding {
        Finding {
            mark: Mark::Warn,
            consequence: Some(consequence.to_string()),
            action: Some(action.to_string()),
            ..Finding::ok(check, fact)
        }
    }

    pub fn fail(check: &str, fact: impl Into<String>, consequence: &str, action: &str) -> Finding {
        Finding { mark: Mark::Fail, ..Finding::warn(check, fact, consequence, action) }
    }
}
