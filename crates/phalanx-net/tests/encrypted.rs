//! Worlds whose connections are encrypted.

use crate::job::{Job, Ranks};
use phalanx_core::{Epoch, Rank};
use phalanx_net::{
    auth::{Caller, Connector, EncryptionWish, Purpose, fresh_nonce},
    secret::Secret,
};
use std::{
    io::{IoSlice, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

#[test]
fn ranks_meet_and_talk_encrypted_inside_a_host_only_if_asked() {
    for (encrypt, is_encrypted) in [("always", true), ("auto", false), ("never", false)] {
        let job = Job::encrypted(encrypt, 3);
        let ranks = Ranks::join(&job);
        ranks.greet_each_other(1);
        let link = ranks.world(0).link(Rank(2), 1).expect("it is open");
        assert_eq!(link.is_encrypted(), is_encrypted, "{encrypt}");
    }
}

#[test]
fn megabytes_cross_an_encrypted_link_in_both_directions_at_once() {
    const N: usize = 20 << 20;
    let job = Job::encrypted("always", 2);
    let ranks = Ranks::join(&job);
    std::thread::scope(|scope| {
        for me in 0..2usize {
            let world = ranks.world(me);
            scope.spawn(move || {
                let link = world.link(Rank(1 - me as u32), 3).expect("ranks can open links");
                let mine = vec![me as u8 + 1; N];
                let (mut sent, mut got, mut bytes) = (0, 0, vec![0; 1 << 20]);
                let begun = Instant::now();
                while sent < N || got < N || !link.flush().expect("the link is whole") {
                    assert!(begun.elapsed() < crate::job::deadline(), "sent {sent}, got {got}");
                    if sent < N {
                        let part = &mine[sent..N.min(sent + (1 << 20))];
                        sent += link.send_some(&[IoSlice::new(part)]).expect("the link is whole");
                    }
                    if got < N {
                        let n = link.recv_some(&mut bytes).expect("the link is whole");
                        assert!(bytes[..n].iter().all(|b| *b == 2 - me as u8), "CHAN-1");
                        got += n;
                    }
                }
            });
        }
    });
}

#[test]
fn ranks_with_different_settings_are_refused_with_both() {
    let job = Job::encrypted("always", 2);
    let refusals = std::thread::scope(|scope| {
        let first = scope.spawn(|| job.refused(0, "always"));
        let second = scope.spawn(|| job.refused(1, "never"));
        [first.join().expect("it ends"), second.join().expect("it ends")]
    });
    let told = refusals
        .iter()
        .find(|why| why.contains("PHALANX_ENCRYPT=always") && why.contains("PHALANX_ENCRYPT=never"));
    assert!(told.is_some(), "{refusals:?}");
}

/// Of the door's answer to an opening.
const REPLY: usize = 72;
/// Where an opening says what its sender wants.
const WISH: usize = 6;
/// How a TLS session begins: a record with a first message, both shorter than they say.
const HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 7, 7, 7, 7, 7];

fn knock(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the door is open");
    stream.set_nodelay(true).expect("a fresh socket takes options");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a fresh socket takes options");
    stream
}

/// A caller that knows the secret and wants encryption, after its closing; and what it has said.
fn call(address: SocketAddr, secret: &Secret, purpose: Purpose) -> (TcpStream, [Vec<u8>; 2]) {
    let caller = Caller { rank: Rank(1), epoch: Epoch(0), stream: u32::MAX };
    let (mut opening, mut closing) = (Vec::new(), Vec::new());
    let wish = EncryptionWish::Tls;
    let mut connector =
        Connector::wishing(wish, secret.clone(), purpose, caller, fresh_nonce(), &mut opening);
    let mut stream = knock(address);
    stream.write_all(&opening).expect("the door listens");
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).expect("the door answers an opening");
    assert!(connector.feed(&reply, &mut closing).expect("the door knows the secret"));
    assert!(connector.is_encrypted());
    stream.write_all(&closing).expect("the door listens");
    (stream, [opening, closing])
}

/// All that the door says until it closes the connection.
fn until_shown_out(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(e) if e.kind() != std::io::ErrorKind::ConnectionReset => panic!("DOOR-2: {e}"),
        _ => said,
    }
}

#[test]
fn callers_that_stop_halfway_through_tls_or_send_garbage_are_closed_and_the_world_works() {
    let job = Job::encrypted("always", 2);
    let halves = |door, purpose| {
        let mut halves: Vec<TcpStream> = (0..20).map(|_| call(door, &job.secret, purpose).0).collect();
        for (i, stream) in halves.iter_mut().enumerate() {
            // The beginning of a record that announces more, garbage, or nothing.
            let bytes: &[u8] = [HELLO, &[0xff; 64], &[]][i % 3];
            stream.write_all(bytes).expect("the door listens");
        }
        halves
    };
    let at_hub = halves(job.address, Purpose::Hub);
    let ranks = Ranks::join(&job);
    let at_rank = halves(ranks.link_address(0), Purpose::Link(Rank(0)));
    ranks.greet_each_other(1);
    // DOOR-2: whatever they sent, they are shown out.
    at_hub.into_iter().chain(at_rank).for_each(|mut stream| drop(until_shown_out(&mut stream)));
    ranks.greet_each_other(2);
}

/// Forges a call that wants encryption, and goes on as if it had been let in. Returns how many bytes the door said after its answer.
fn forge(door: SocketAddr, recorded: &[Vec<u8>; 2], seed: usize) -> usize {
    let [mut opening, mut closing] = recorded.clone();
    let (noise, bit) = (fresh_nonce(), seed / 7);
    match seed % 7 {
        0 => {} // Replayed as it was.
        1 => closing[bit % 48] ^= 1 << (bit % 8),
        2 => closing[16..].copy_from_slice(&noise),
        3 => opening[bit % 6] ^= 1 << (bit % 8),
        4 => opening.iter_mut().zip(noise.iter().cycle()).for_each(|(byte, n)| *byte = *n),
        // Encryption turned off by somebody in between.
        5 => opening[WISH] = EncryptionWish::Plain as u8,
        _ => opening[WISH] = EncryptionWish::Never as u8,
    }
    let mut stream = knock(door);
    let _ = stream.write_all(&opening);
    let is_answered = stream.read_exact(&mut [0; REPLY]).is_ok();
    if is_answered {
        let _ = stream.write_all(&[closing.as_slice(), HELLO].concat());
    }
    until_shown_out(&mut stream).len()
}

/// Pages of this process that are in memory, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux says how much memory is in use");
    let pages: usize = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number of pages");
    pages * rustix::param::page_size()
}

#[test]
fn ten_thousand_forged_calls_at_encrypted_doors_never_reach_tls() {
    let job = Job::encrypted("always", 2);
    let ranks = Ranks::join(&job);
    let doors = [(job.address, Purpose::Hub), (ranks.link_address(0), Purpose::Link(Rank(0)))];
    let before = resident_bytes();
    std::thread::scope(|scope| {
        for (door, purpose) in doors {
            let recorded = call(door, &job.secret, purpose).1;
            // AUTH-1: a door that had let one of them as far as TLS would have answered with an alert.
            scope.spawn(move || {
                let heard: Vec<usize> = (0..5_000).filter(|&seed| forge(door, &recorded, seed) > 0).collect();
                assert_eq!(heard, Vec::<usize>::new(), "AUTH-1, AUTH-2");
            });
        }
        for round in 0..20 {
            ranks.greet_each_other(round);
        }
    });
    let more = resident_bytes().saturating_sub(before);
    println!("{more} bytes more are in use than before");
    assert!(more < 128 << 20, "strangers cost {more} bytes");
    ranks.greet_each_other(99);
}

#[test]
fn somebody_in_between_cannot_turn_encryption_off() {
    let job = Job::encrypted("always", 2);
    let ranks = Ranks::join(&job);
    let (door, purpose) = (ranks.link_address(0), Purpose::Link(Rank(0)));
    for wish in [EncryptionWish::Plain, EncryptionWish::Never] {
        let caller = Caller { rank: Rank(1), epoch: Epoch(0), stream: 7 };
        let (mut opening, mut closing) = (Vec::new(), Vec::new());
        let mut connector = Connector::wishing(
            EncryptionWish::Tls,
            job.secret.clone(),
            purpose,
            caller,
            fresh_nonce(),
            &mut opening,
        );
        opening[WISH] = wish as u8;
        let mut stream = knock(door);
        stream.write_all(&opening).expect("the door listens");
        let mut reply = [0; REPLY];
        if stream.read_exact(&mut reply).is_ok() {
            // The door's proof is about what it has heard, which is not what was said.
            assert!(connector.feed(&reply, &mut closing).is_err() && closing.is_empty(), "AUTH-2: {wish:?}");
        }
    }
    ranks.greet_each_other(1);
}
