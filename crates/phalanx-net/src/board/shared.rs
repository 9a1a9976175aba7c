//! What ranks exchange on a shared board: where the hub is, proved with the secret that every rank was given.
//!
//! - RDZV-5: a rank believes an announcement only if it was made with its own secret, for this board. One that leads nowhere may be of an
//!   earlier job that was killed, whatever its secret: the rank looks again until the deadline. One with another secret where somebody answers is
//!   an error at once.
//! - RDZV-8: while the process that made an entry is alive, a second rank 0 is refused with its name. Where nobody answers, rank 0 takes the
//!   place of the entry (a directory), or waits until it goes (etcd).
//! - RDZV-6: when the world has formed, or cannot, rank 0 takes its announcement off the board.

use super::{
    LOOK_EVERY, Meet, Notices, Party, Wait,
    agree::{Disagreement, fresh_id, of_meeting},
    announcement::{Announcement, Trust},
    encoding::{hex, unhex},
    occupant::{self, Occupant},
    wire::nonsense,
};
use crate::{
    auth::Purpose,
    error::{BoardError, NetError},
    hub::Hub,
    secret::Secret,
};
use phalanx_core::Rank;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

const KEY: &str = "rank0";
/// How long looking once more may take, when an announcement led nowhere.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// A shared board that ranks have met on. It is kept until the world has formed.
#[derive(Debug)]
pub(crate) struct Post {
    board: Box<dyn Notices>,
    /// What the board is called, the same on every rank.
    name: String,
    given: Secret,
    claim: Claim,
    /// Who meets there.
    purpose: Purpose,
    /// What this rank has put there.
    mine: Option<String>,
}

/// What rank 0 does with an announcement that is there already and leads nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// Waits until it is gone: entries of dead jobs go by themselves.
    Wait,
    /// Replaces it: it is of a dead job (RDZV-8).
    TakeOver,
}

/// Two processes that claim one place at once see each other at the second look; more looks are of a directory that does not work.
const MOST_LOOKS: u32 = 5;
/// How often it is asked whether the other process is alive, while its entry stays. A busy one may answer the second time.
const ASK_EVERY: Duration = Duration::from_secs(1);

impl Post {
    pub fn new(board: Box<dyn Notices>, name: String, given: Secret, claim: Claim) -> Post {
        Post { board, name, given, claim, purpose: Purpose::Hub, mine: None }
    }

    /// The same for launchers instead of ranks.
    pub fn of_launchers(mut self) -> Post {
        self.purpose = Purpose::Launcher;
        self
    }

    pub fn meet(
        &mut self,
        party: Party,
        wait: Wait,
        serve: &dyn Fn(&Secret) -> Result<Option<Hub>, NetError>,
    ) -> Result<Meet, Disagreement> {
        if party.rank != Rank::ZERO {
            let (addresses, secret) = self.look(wait)?;
            return Ok(Meet { addresses, secret, hub: None, post: None });
        }
        let id = fresh_id();
        let secret = of_meeting(&self.given, &id);
        let hub = serve(&secret)?;
        let addresses = hub.as_ref().map(|hub| hub.addresses().to_vec()).unwrap_or_default();
        let addresses = self.put(id, addresses, wait)?;
        let addresses = addresses.iter().map(ToString::to_string).collect();
        Ok(Meet { addresses, secret, hub, post: None })
    }

    /// Tells everybody where this process listens; returns the secret of this meeting.
    pub fn announce(&mut self, addresses: Vec<SocketAddr>, wait: Wait) -> Result<Secret, BoardError> {
        let id = fresh_id();
        self.put(id, addresses, wait)?;
        Ok(of_meeting(&self.given, &id))
    }

    fn put(
        &mut self,
        id: [u8; 16],
        addresses: Vec<SocketAddr>,
        wait: Wait,
    ) -> Result<Vec<SocketAddr>, BoardError> {
        let announced = Announcement { id, trust: Trust::Given, addresses };
        let who = Occupant::this_process().to_text();
        let text = announced.to_text(self.board.longest() - 66 - who.len());
        let text = format!("{text}/{who}");
        let text = format!("{text}/{}", hex(&self.given.prove(&parts(&self.name, &text))));
        self.take_place(&text, wait)?;
        self.mine = Some(text);
        Ok(announced.addresses)
    }

    /// RDZV-8.
    fn take_place(&mut self, text: &str, wait: Wait) -> Result<(), BoardError> {
        let (mut n_looks, mut n_vanished) = (0, 0);
        let mut asked: Option<(String, Instant)> = None;
        loop {
            let taken = match self.board.publish(KEY, text, wait) {
                Err(taken @ BoardError::There { .. }) => taken,
                done => return done,
            };
            let there = match self.board.glance(KEY, wait) {
                // A network file system may have answered an attempt of ours twice.
                Ok(Some(there)) if there == text => return Ok(()),
                Ok(Some(there)) => there,
                // It went away meanwhile, or it is a link to nothing.
                Ok(None) if n_vanished == MOST_LOOKS => return Err(taken),
                Ok(None) => {
                    n_vanished += 1;
                    continue;
                }
                Err(BoardError::Nonsense { .. }) if matches!(self.claim, Claim::TakeOver) => {
                    return self.board.replace(KEY, text, wait);
                }
                Err(error) => return Err(error),
            };
            let is_known = |(it, at): &(String, Instant)| *it == there && at.elapsed() < ASK_EVERY;
            if !asked.as_ref().is_some_and(is_known) {
                if let Some(error) = self.occupied(&there, wait) {
                    return Err(error);
                }
                asked = Some((there.clone(), Instant::now()));
            }
            match self.claim {
                Claim::TakeOver if n_looks == MOST_LOOKS => return Err(taken),
                Claim::TakeOver => self.board.withdraw(KEY, &there),
                Claim::Wait if wait.left_to_look().is_none() => {
                    let who = self.who(&there);
                    return Err(wait.late(format!(
                        "the entry of {who} to go away, where nobody answers; give this job a place of its own"
                    )));
                }
                Claim::Wait => std::thread::park_timeout(LOOK_EVERY),
            }
            n_looks += 1;
        }
    }

    /// Who meets there first.
    fn what(&self) -> &'static str {
        match self.purpose {
            Purpose::Launcher => "node 0",
            _ => "rank 0",
        }
    }

    /// The process that says it has put this there.
    fn who(&self, there: &str) -> String {
        match Post::said(there) {
            Some((_, who)) => format!("{} ({who})", self.what()),
            None => self.what().to_string(),
        }
    }

    /// The error that names who is alive where this entry leads.
    fn occupied(&self, there: &str, wait: Wait) -> Option<BoardError> {
        let what = self.what();
        match Post::believed(there, &self.given, &self.name) {
            Ok((announced, who)) => {
                let secret = of_meeting(&self.given, &announced.id);
                let is_there = self.answers(&announced, Some(&secret), wait);
                is_there.then(|| BoardError::Taken { what, who: who.to_string() })
            }
            Err(Doubt::OtherSecret) => {
                let (announced, who) = Post::said(there)?;
                let is_there = self.answers(&announced, None, wait);
                is_there.then(|| BoardError::TakenByOther { what, who: who.to_string() })
            }
            Err(_) => None,
        }
    }

    fn answers(&self, announced: &Announcement, secret: Option<&Secret>, wait: Wait) -> bool {
        let within = wait.left().unwrap_or_default().min(occupant::ANSWERS);
        occupant::answers(&announced.addresses, secret, self.purpose, within)
    }

    /// Where the hub is by now; `None` if that cannot be found out.
    pub fn look_again(&mut self) -> Option<(Vec<String>, Secret)> {
        if self.mine.is_some() { None } else { self.look(Wait::within(ONCE_MORE)).ok() }
    }

    /// Where the process that announced itself listens, and the secret of the meeting (RDZV-5).
    pub fn look(&mut self, wait: Wait) -> Result<(Vec<String>, Secret), BoardError> {
        let mut doubted: Option<String> = None;
        loop {
            let (text, why) = match self.board.look(Rank::ZERO, KEY, wait) {
                Ok(text) => match Post::believed(&text, &self.given, &self.name) {
                    Ok((announced, _)) => {
                        let addresses = announced.addresses.iter().map(ToString::to_string).collect();
                        return Ok((addresses, of_meeting(&self.given, &announced.id)));
                    }
                    Err(doubt) => {
                        let why = doubt.of(&text, self.who(&text));
                        (text, why)
                    }
                },
                Err(why @ BoardError::Nonsense { .. }) => (String::new(), why),
                Err(error) => return Err(error),
            };
            if doubted.as_ref() != Some(&text)
                && matches!(why, BoardError::OtherSecret { .. })
                && Post::said(&text).is_some_and(|(announced, _)| self.answers(&announced, None, wait))
            {
                return Err(why);
            }
            if wait.left_to_look().is_none() {
                let (what, waited_s) = (self.what(), wait.waited_s());
                return Err(BoardError::Stale { what, waited_s, why: Box::new(why) });
            }
            doubted = Some(text);
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    /// What rank 0 has said there, if it has proved the secret for this board (RDZV-5).
    fn believed(text: &str, given: &Secret, name: &str) -> Result<(Announcement, Occupant), Doubt> {
        let (announced, proof) = text.rsplit_once('/').ok_or(Doubt::Nonsense)?;
        let proof = unhex(proof).ok_or(Doubt::Nonsense)?;
        if !given.verify(&parts(name, announced), &proof) {
            return Err(Doubt::OtherSecret);
        }
        // A process that has the secret means no harm.
        Post::said(text).ok_or(Doubt::OtherBuild)
    }

    /// The same whether it is proved or not.
    fn said(text: &str) -> Option<(Announcement, Occupant)> {
        let (announced, who) = text.rsplit_once('/')?.0.rsplit_once('/')?;
        Some((Announcement::parse(announced)?, Occupant::parse(who)?))
    }

    /// Reads an entry, for fuzzing.
    pub(super) fn reads(text: &str, given: &Secret) -> Option<Announcement> {
        let _ = Post::said(text);
        Post::believed(text, given, "file:/x").ok().map(|(announced, _)| announced)
    }
}

/// Why an entry is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    Nonsense,
    OtherSecret,
    OtherBuild,
}

impl Doubt {
    fn of(self, text: &str, who: String) -> BoardError {
        match self {
            Doubt::Nonsense => nonsense(text),
            Doubt::OtherSecret => BoardError::OtherSecret { who },
            Doubt::OtherBuild => BoardError::OtherBuild,
        }
    }
}

/// What a proof is about.
fn parts<'a>(name: &'a str, text: &'a str) -> [&'a [u8]; 3] {
    [b"announcement", name.as_bytes(), text.as_bytes()]
}

impl Drop for Post {
    fn drop(&mut self) {
        if let Some(mine) = self.mine.take() {
            self.board.withdraw(KEY, &mine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    /// A board in memory that anybody can write on.
    #[derive(Clone, Debug, Default)]
    struct Wall(Arc<Mutex<BTreeMap<String, String>>>);

    impl Notices for Wall {
        fn publish(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
            if self.0.lock().unwrap().contains_key(key) {
                return Err(BoardError::There { key: key.into() });
            }
            self.replace(key, text, wait)
        }

        fn replace(&mut self, key: &str, text: &str, _: Wait) -> Result<(), BoardError> {
            self.0.lock().unwrap().insert(key.into(), text.into());
            Ok(())
        }

        fn settle(&mut self, _: Wait) -> Result<(), BoardError> {
            Ok(())
        }

        fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError> {
            loop {
                if let Some(found) = self.glance(key, wait)? {
                    return Ok(found);
                }
                if wait.left().is_none() {
                    return Err(BoardError::Missing { rank: by, key: key.into() });
                }
                std::thread::yield_now();
            }
        }

        fn glance(&mut self, key: &str, _: Wait) -> Result<Option<String>, BoardError> {
            Ok(self.0.lock().unwrap().get(key).cloned())
        }

        fn longest(&self) -> usize {
            1000
        }

        fn withdraw(&mut self, key: &str, text: &str) {
            let mut notes = self.0.lock().unwrap();
            if notes.get(key).is_some_and(|t| t == text) {
                notes.remove(key);
            }
        }
    }

    fn serve(secret: &Secret) -> Result<Option<Hub>, NetError> {
        let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Ok(Some(Hub::start(vec![door], secret.clone(), 2).unwrap()))
    }

    fn meet(post: &mut Post, rank: u32) -> Result<Meet, String> {
        let wait = Wait::within(Duration::from_secs(1));
        post.meet(Party { rank: Rank(rank), n_ranks: 2 }, wait, &serve).map_err(|e| match e {
            Disagreement::Board(error) => error.to_string(),
            Disagreement::Other(error) => panic!("{error}"),
        })
    }

    #[test]
    fn ranks_with_one_secret_meet_and_leave_nothing_behind() {
        let (wall, given) = (Wall::default(), Secret::random());
        let post = |name: &str, secret: &Secret| {
            Post::new(Box::new(wall.clone()), name.into(), secret.clone(), Claim::Wait)
        };
        let mut zero = post("a", &given);
        let there = meet(&mut zero, 0).unwrap();
        let here = meet(&mut post("a", &given), 1).unwrap();
        assert_eq!((here.addresses, &here.secret), (there.addresses, &there.secret));
        let shown = wall.0.lock().unwrap()[KEY].clone();
        assert!(
            !shown.contains(&hex(given.expose())) && !shown.contains(&hex(there.secret.expose())),
            "RDZV-1"
        );
        for (name, secret) in [("a", Secret::random()), ("b", given)] {
            let error = meet(&mut post(name, &secret), 1).err().unwrap();
            assert!(error.starts_with("what rank 0 (host "), "RDZV-5: {error}");
            assert!(error.contains("was made with another secret"), "RDZV-5: somebody answers: {error}");
        }
        drop(zero);
        assert!(wall.0.lock().unwrap().is_empty(), "RDZV-6");
    }

    #[test]
    fn an_announcement_of_an_earlier_job_gives_way_to_that_of_this_one() {
        let (wall, given) = (Wall::default(), Secret::random());
        let post = || Post::new(Box::new(wall.clone()), "a".into(), given.clone(), Claim::TakeOver);
        let mut earlier = post();
        drop(meet(&mut earlier, 0).unwrap().hub);
        let (mut zero, mut one) = (post(), post());
        let stale = meet(&mut one, 1).unwrap();
        let now = meet(&mut zero, 0).unwrap();
        assert_ne!(now.secret, stale.secret, "RDZV-5: the earlier hub would not let this rank in");
        assert_eq!(one.look_again(), Some((now.addresses, now.secret)), "RDZV-5");
        drop(earlier);
        assert!(one.look_again().is_some(), "RDZV-6: a rank takes down its own announcement only");
        drop(now.hub);
        for nonsense in ["", "/", "x/y/z", &"0/".repeat(500)] {
            wall.clone().replace(KEY, nonsense, Wait::within(Duration::ZERO)).unwrap();
            assert!(meet(&mut post(), 1).is_err(), "RDZV-2");
            drop(meet(&mut post(), 0).unwrap());
        }
    }

    #[test]
    fn an_entry_of_a_dead_job_with_another_secret_is_waited_out_and_named_if_it_stays() {
        let (wall, given) = (Wall::default(), Secret::random());
        let post =
            |secret: &Secret| Post::new(Box::new(wall.clone()), "a".into(), secret.clone(), Claim::TakeOver);
        let mut earlier = post(&Secret::random());
        drop(meet(&mut earlier, 0).unwrap().hub);
        let error = meet(&mut post(&given), 1).err().unwrap();
        assert!(error.contains("for rank 0 of this job to replace an entry where nobody answers"), "{error}");
        let pid = std::process::id();
        assert!(
            error.contains(&format!(", pid {pid}, since ")) && error.contains("another secret"),
            "{error}"
        );
        let seen = wall.0.lock().unwrap()[KEY].clone();
        let mut zero = post(&given);
        let (here, there) = std::thread::scope(|scope| {
            let mut one = post(&given);
            let looks = scope.spawn(move || {
                let found = one.look(Wait::within(Duration::from_secs(60)));
                found.unwrap_or_else(|error| panic!("RDZV-5: {error}"))
            });
            let there = meet(&mut zero, 0).unwrap();
            (looks.join().unwrap(), there)
        });
        assert_eq!(here, (there.addresses, there.secret));
        assert!(!wall.0.lock().unwrap().values().any(|text| *text == seen), "RDZV-8: it was replaced");
    }

    #[test]
    fn where_entries_go_by_themselves_a_living_rank_0_is_named_and_a_dead_one_is_waited_for() {
        let (wall, given) = (Wall::default(), Secret::random());
        let post = || Post::new(Box::new(wall.clone()), "a".into(), given.clone(), Claim::Wait);
        let mut first = post();
        let met = meet(&mut first, 0).unwrap();
        let error = meet(&mut post(), 0).err().unwrap();
        assert!(error.starts_with("rank 0 of this job is already there (host "), "RDZV-8: {error}");
        drop(met.hub);
        let error = meet(&mut post(), 0).err().unwrap();
        assert!(error.contains("for the entry of rank 0 (host "), "RDZV-7: {error}");
        let taken = std::thread::scope(|scope| {
            let mut second = post();
            let waits = scope.spawn(move || {
                second
                    .announce(Vec::from([([127, 0, 0, 1], 9).into()]), Wait::within(Duration::from_secs(60)))
            });
            drop(first);
            waits.join().unwrap()
        });
        taken.expect("RDZV-7: the name is free");
    }

    #[test]
    fn a_rank_0_that_is_alive_keeps_its_place_and_is_named() {
        let (wall, given) = (Wall::default(), Secret::random());
        let post =
            |secret: &Secret| Post::new(Box::new(wall.clone()), "a".into(), secret.clone(), Claim::TakeOver);
        let mut first = post(&given);
        let met = meet(&mut first, 0).unwrap();
        let shown = wall.0.lock().unwrap()[KEY].clone();
        let error = meet(&mut post(&given), 0).err().unwrap();
        let pid = std::process::id();
        assert!(error.starts_with("rank 0 of this job is already there (host "), "RDZV-8: {error}");
        assert!(error.contains(&format!(", pid {pid}, since ")), "RDZV-8: {error}");
        let error = meet(&mut post(&Secret::random()), 0).err().unwrap();
        assert!(error.starts_with("rank 0 of another job meets there (host "), "RDZV-8: {error}");
        assert_eq!(wall.0.lock().unwrap()[KEY], shown, "RDZV-8: nothing was changed");
        drop(met.hub);
        meet(&mut post(&given), 0).unwrap();
    }

    #[test]
    fn a_proved_entry_that_is_not_understood_is_of_another_build() {
        let given = Secret::random();
        let old = format!("{}/given/127.0.0.1:1", "07".repeat(16));
        let text = format!("{old}/{}", hex(&given.prove(&parts("a", &old))));
        assert!(matches!(Post::believed(&text, &given, "a"), Err(Doubt::OtherBuild)));
    }
}
