//! Ranks of different builds do not form a world: one of them is told what both sides are.

use phalanx_core::{Config, Rank};
use phalanx_net::{
    NetError, World,
    discover::{Identity, Meeting},
    hub::Hub,
    secret::Secret,
};
use std::{net::TcpListener, time::Duration};

#[test]
fn ranks_of_different_builds_are_not_let_in_together() {
    let secret = Secret::random();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let hub = Hub::start(vec![listener], secret.clone(), 2).expect("a hub starts");
    let join = |rank: u32, build: &'static str| {
        let meeting = Meeting::Hub(vec![hub.addresses()[0].to_string()]);
        let identity = Identity::worker(Rank(rank), 2, meeting);
        // A rank that is let in waits for the other, in vain.
        let mut config = Config::default();
        config.start_timeout = Duration::from_secs(1);
        World::join_with(identity, secret.clone(), config, build)
    };
    let errors = std::thread::scope(|scope| {
        let first = scope.spawn(|| join(0, "0.1.0+aaaa"));
        let second = scope.spawn(|| join(1, "0.1.0+bbbb"));
        [first, second].map(|rank| rank.join().expect("joining does not panic").expect_err("no world forms"))
    });
    let refused = errors.iter().find(|e| matches!(e, NetError::Refused { .. })).expect("one is refused");
    let text = refused.to_string();
    assert!(text.contains("the phalanx build differs"), "{text}");
    assert!(
        text.contains("rank 0 has \"0.1.0+aaaa\"") || text.contains("rank 1 has \"0.1.0+bbbb\""),
        "{text}"
    );
    assert!(text.contains("0.1.0+aaaa") && text.contains("0.1.0+bbbb"), "both sides: {text}");
}
