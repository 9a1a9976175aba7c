//! What a rank would refuse before it meets anybody, found out by a process that is none: nothing is made, written or joined.

use crate::{
    board::{self, Wait},
    discover::{BoardAddress, Meeting, discover, meeting},
    error::{BoardError, NetError},
    secret_source, socket,
    world::place::NO_SECRET,
};
use phalanx_core::Config;
use std::{path::Path, time::Duration};

/// How long a board may take to answer.
const ANSWERS: Duration = Duration::from_secs(3);

/// The errors with which a rank that is started in this environment would end, or launchers that meet by it. Who it is is not judged here
/// ([`discover`]), and settings by themselves neither ([`Config`]).
pub fn refusals(var: &dyn Fn(&str) -> Option<String>) -> Vec<NetError> {
    let mut refusals: Vec<NetError> = Vec::new();
    let secret = secret_source::existing_by(var);
    let has_secret = !matches!(secret, Ok(None));
    refusals.extend(secret.err());
    let told = || Ok::<_, NetError>(meeting::told(var)?.unwrap_or(Meeting::Alone));
    // Without ranks the meeting point is for launchers; a rank's own troubles are found with who it is.
    let (meeting, is_rank) = match discover(var, 0) {
        Ok(identity) if identity.meeting != Meeting::Alone => (Ok(identity.meeting), true),
        Ok(_) => (told(), false),
        Err(_) => (Ok(Meeting::Alone), false),
    };
    match meeting {
        Err(error) => refusals.push(error),
        Ok(Meeting::Board(board)) => {
            let failed = |error| NetError::Board { board: board.to_string(), error };
            refusals.extend(stands(&board).err().map(failed));
            let is_shared = matches!(board, BoardAddress::Etcd { .. } | BoardAddress::File { .. });
            if is_shared && !has_secret {
                refusals.push(failed(BoardError::NoSecret));
            }
        }
        Ok(Meeting::Pod { .. }) if is_rank && !has_secret => {
            refusals.push(NetError::Secret { why: NO_SECRET.into() });
        }
        Ok(_) => {}
    }
    let interface = var("PHALANX_INTERFACE").filter(|name| !name.is_empty());
    let wanted = interface.and_then(|name| Config::from_vars([("PHALANX_INTERFACE".into(), name)]).ok());
    if let Some(name) = wanted.and_then(|config| config.interface) {
        refusals.extend(socket::addresses_of(&name).err().map(NetError::from));
    }
    refusals
}

/// Whether a board that others can read is there.
fn stands(board: &BoardAddress) -> Result<(), BoardError> {
    match board {
        BoardAddress::Etcd { endpoints, job } => board::etcd_answers(endpoints, job, Wait::within(ANSWERS)),
        BoardAddress::File { dir } => board::directory_is_fit(Path::new(dir)),
        BoardAddress::Pmix | BoardAddress::Pmi1 { .. } | BoardAddress::Pmi2 { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(vars: &[(&str, &str)]) -> Vec<String> {
        let var = |name: &str| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string());
        refusals(&var).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_a_rank_refuses_is_said_with_its_own_words() {
        assert!(said(&[]).is_empty());
        let secret = ("PHALANX_SECRET", "correct horse battery staple");
        let rank = [("PHALANX_RANK", "0"), ("PHALANX_SIZE", "2")];
        let with = |more: &[(&'static str, &'static str)]| said(&[&rank[..], more].concat());
        for (vars, wanted) in [
            (vec![("PHALANX_SECRET", "short")], "PHALANX_SECRET has fewer than 16 characters"),
            (vec![("PHALANX_SECRET", "")], "PHALANX_SECRET is set and empty"),
            (
                vec![secret, ("PHALANX_SECRET_FILE", "/nonexistent/key"), ("PHALANX_RENDEZVOUS", "n0:99999")],
                "is no port",
            ),
            (vec![("PHALANX_INTERFACE", "nope0")], "there is no interface \"nope0\""),
            (vec![secret, ("PHALANX_RENDEZVOUS", "etcd://127.0.0.1:1/j")], "127.0.0.1:1 cannot be reached"),
            (
                vec![("PHALANX_RENDEZVOUS", "file:/nonexistent/dir")],
                "others can read it, so it does not carry a secret",
            ),
            (vec![secret, ("PHALANX_RENDEZVOUS", "file:/nonexistent/dir")], "/nonexistent/dir"),
        ] {
            let found = said(&vars);
            assert!(found.iter().any(|text| text.contains(wanted)), "{wanted}: {found:?}");
            // The same of a rank; what it is told twice wrong is judged with who it is.
            if vars.iter().all(|(_, value)| *value != "n0:99999") {
                assert!(with(&vars).iter().any(|text| text.contains(wanted)), "{wanted}");
            }
        }
        assert!(!Path::new("/nonexistent").exists(), "nothing is made");
    }
}
