//! Everything that takes what a board answers, for fuzzing: any bytes are understood or are an error (RDZV-2).

use super::{
    Party, Wait,
    announcement::{Announcement, Trust},
    answer::PmiAnswer,
    base64,
    encoding::unhex,
    etcd, http,
    pmi1::Pmi1,
    pmi2::Pmi2,
    seal::KeyPair,
    shared::Post,
    wire::{MAX_ANSWER, Wire},
};
use crate::secret::Secret;
use phalanx_core::Rank;
use std::{
    io::Write,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

const PARTY: Party = Party { rank: Rank(1), n_ranks: 2 };

/// An answer of etcd, a line of a process manager, an entry of rank 0, a sealed secret.
pub fn board_answer(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_ANSWER)];
    if let Some((_, body)) = http::parse(bytes) {
        assert!(body.len() <= bytes.len(), "RDZV-2");
        etcd::read(&body);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    etcd::read(text);
    for (between, command) in [(' ', "get_result"), (';', "kvs-get-response"), (' ', "maxes")] {
        if let Ok(answer) = PmiAnswer::expect(text, between, command) {
            let _ = (answer.succeeded(), answer.word("value"), answer.number("vallen_max"));
        }
    }
    if let Some(found) = Announcement::parse(text) {
        assert_eq!(Announcement::parse(&found.to_text(usize::MAX)), Some(found), "RDZV-2");
    }
    let _ = (Trust::parse(text), base64::decode(text));
    if let Some(sealed) = unhex(text) {
        assert!(KeyPair::random().open(PARTY.rank, &[9; 32], &sealed).is_none(), "RDZV-1: nobody sealed it");
    }
    assert!(Post::reads(text, &Secret::from_bytes([3; 32])).is_none(), "RDZV-5: nobody has proved it");
}

/// All that a process manager says to a rank that greets it, before it closes the connection.
pub fn board_session(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(2 * MAX_ANSWER)];
    let greet = |said: &[u8], greet: &dyn Fn(Wire, Wait)| {
        let Ok((here, mut there)) = UnixStream::pair() else { return };
        // What the socket does not take is not said.
        if there.set_nonblocking(true).is_ok() {
            let _ = there.write(said);
        }
        let _ = there.shutdown(std::net::Shutdown::Write);
        greet(Wire::new(OwnedFd::from(here).into()), Wait::within(Duration::from_secs(5)));
    };
    greet(bytes, &|wire, wait| drop(Pmi1::greet(wire, -1, wait)));
    greet(bytes, &|wire, wait| drop(Pmi2::greet(wire, -1, "7.0", PARTY.rank, wait)));
    let begun = [b"cmd=response_to_init rc=0\n".as_slice(), bytes].concat();
    greet(&begun, &|wire, wait| drop(Pmi1::greet(wire, -1, wait)));
    greet(&begun, &|wire, wait| drop(Pmi2::greet(wire, -1, "7.0", PARTY.rank, wait)));
}
