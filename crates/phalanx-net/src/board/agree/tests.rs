//! Ranks as threads around a board in memory.

use super::*;
use crate::board::Notices;
use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

#[derive(Debug, Default)]
struct Wall {
    notes: BTreeMap<String, String>,
    n_come: u32,
}

/// A board in memory for a number of ranks.
#[derive(Clone, Debug)]
struct InMemory {
    wall: Arc<(Mutex<Wall>, Condvar)>,
    n_ranks: u32,
    n_settled: u32,
}

impl Notices for InMemory {
    fn publish(&mut self, key: &str, text: &str, _: Wait) -> Result<(), BoardError> {
        assert!(text.len() <= self.longest());
        let before = self.wall.0.lock().unwrap().notes.insert(key.into(), text.into());
        assert_eq!(before, None, "{key} twice");
        Ok(())
    }

    fn replace(&mut self, _: &str, _: &str, _: Wait) -> Result<(), BoardError> {
        unreachable!("ranks replace nothing on a private board")
    }

    fn settle(&mut self, wait: Wait) -> Result<(), BoardError> {
        let (wall, changed) = &*self.wall;
        self.n_settled += 1;
        let mut wall = wall.lock().unwrap();
        wall.n_come += 1;
        changed.notify_all();
        let left = wait.left().unwrap_or_default();
        let all =
            changed.wait_timeout_while(wall, left, |w| w.n_come < self.n_ranks * self.n_settled).unwrap();
        if all.1.timed_out() { Err(wait.late("all ranks")) } else { Ok(()) }
    }

    fn look(&mut self, by: Rank, key: &str, _: Wait) -> Result<String, BoardError> {
        let found = self.wall.0.lock().unwrap().notes.get(key).cloned();
        found.ok_or(BoardError::Missing { rank: by, key: key.into() })
    }

    fn longest(&self) -> usize {
        255
    }
}

type Outcome = Result<(Vec<String>, Secret), String>;

/// All ranks meet; returns what each got, and what is on the board.
fn meet(given: &[Option<Secret>]) -> (Vec<Outcome>, Vec<String>) {
    let n_ranks = given.len() as u32;
    let board = InMemory { wall: Arc::default(), n_ranks, n_settled: 0 };
    let ranks = given.iter().enumerate().map(|(i, given)| {
        let (mut board, given, rank) = (board.clone(), given.clone(), Rank(i as u32));
        std::thread::spawn(move || {
            let serve = |secret: &Secret| {
                let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                Ok((rank == Rank::ZERO).then(|| Hub::start(vec![door], secret.clone(), n_ranks).unwrap()))
            };
            let board = Numbered { board: &mut board, meeting: 1 };
            let wait = Wait::within(Duration::from_secs(1));
            let met = on_private_board(board, Party { rank, n_ranks }, given, wait, &serve);
            met.map(|met| (met.addresses, met.secret)).map_err(|e| match e {
                Disagreement::Board(error) => error.to_string(),
                Disagreement::Other(error) => panic!("{error}"),
            })
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let got = ranks.into_iter().map(|r| r.join().unwrap()).collect();
    let wall = board.wall.0.lock().unwrap();
    (got, wall.notes.iter().map(|(k, v)| format!("{k}={v}")).collect())
}

#[test]
fn ranks_agree_on_a_secret_that_the_board_never_shows() {
    for n in [2, 5] {
        let (got, notes) = meet(&vec![None; n]);
        let (addresses, secret) = got[0].clone().unwrap();
        assert!(addresses.len() == 1 && addresses[0].starts_with("127.0.0.1:"));
        assert!(got.iter().all(|g| *g == Ok((addresses.clone(), secret.clone()))), "{got:?}");
        assert_eq!(notes.len(), 2 * n - 1, "a key of each, a sealed secret for each but rank 0");
        assert!(!notes.concat().contains(&hex(secret.expose())), "RDZV-1");
    }
}

#[test]
fn a_given_secret_stays_off_the_board_and_differs_in_every_meeting() {
    let given = Secret::random();
    let (first, notes) = meet(&vec![Some(given.clone()); 3]);
    let (second, _) = meet(&vec![Some(given.clone()); 3]);
    let secret = |got: &[Outcome]| got[0].clone().unwrap().1;
    assert!(first.iter().all(|g| g.as_ref().is_ok_and(|g| g.1 == secret(&first))));
    assert_ne!(secret(&first), secret(&second));
    assert_eq!(notes.len(), 3);
    let shown = notes.concat();
    assert!(
        !shown.contains(&hex(given.expose())) && !shown.contains(&hex(secret(&first).expose())),
        "RDZV-1"
    );
}

#[test]
fn ranks_with_and_without_a_given_secret_are_both_named() {
    let given = Some(Secret::random());
    let (got, _) = meet(&[given.clone(), given.clone(), None]);
    assert!(got[0].is_ok() && got[1].is_ok());
    let error = got[2].clone().unwrap_err();
    assert!(error.starts_with("rank 0 was given a secret, rank 2 was not"), "{error}");
    let (got, _) = meet(&[None, given]);
    for error in got.into_iter().map(|g| g.unwrap_err()) {
        assert!(error.starts_with("rank 1 was given a secret, rank 0 was not"), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_ends_the_wait_of_the_others() {
    let mut board = InMemory { wall: Arc::default(), n_ranks: 2, n_settled: 0 };
    let (party, wait) = (Party { rank: Rank(1), n_ranks: 2 }, Wait::within(Duration::from_millis(20)));
    let board = Numbered { board: &mut board, meeting: 1 };
    let Err(Disagreement::Board(late)) = on_private_board(board, party, None, wait, &|_| Ok(None)) else {
        panic!("rank 0 did not come")
    };
    assert!(late.to_string().contains("for all ranks"), "RDZV-3: {late}");
}
