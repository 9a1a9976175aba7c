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
    let told = refusals.iter().find(|why| why.contains("encrypt=Always") && why.contains("encrypt=Never"));
    assert!(told.is_some(), "{refusals:?}");
}

/// A caller that knows the secret and wants encryption, after its closing.
fn call(address: SocketAddr, secret: &Secret) -> TcpStream {
    let caller = Caller { rank: Rank(1), epoch: Epoch(0), stream: 0 };
    let (mut opening, mut closing) = (Vec::new(), Vec::new());
    let mut connector = Connector::wishing(
        EncryptionWish::Tls,
        secret.clone(),
        Purpose::Hub,
        caller,
        fresh_nonce(),
        &mut opening,
    );
    let mut stream = TcpStream::connect(address).expect("the door is open");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a fresh socket takes options");
    stream.write_all(&opening).expect("the door listens");
    let mut reply = [0; 72];
    stream.read_exact(&mut reply).expect("the door answers an opening");
    assert!(connector.feed(&reply, &mut closing).expect("the door knows the secret"));
    assert!(connector.is_encrypted());
    stream.write_all(&closing).expect("the door listens");
    stream
}

#[test]
fn callers_that_stop_halfway_through_tls_or_send_garbage_are_closed_and_the_world_forms() {
    let job = Job::encrypted("always", 2);
    let mut halves: Vec<TcpStream> = (0..20).map(|_| call(job.address, &job.secret)).collect();
    for (i, stream) in halves.iter_mut().enumerate() {
        // The beginning of a record that announces more, garbage, or nothing.
        let bytes: &[u8] = [&[0x16, 3, 1, 2, 0, 1, 0, 1][..], &[0xff; 64], &[]][i % 3];
        stream.write_all(bytes).expect("the door listens");
    }
    let ranks = Ranks::join(&job);
    ranks.greet_each_other(1);
    // DOOR-2: whatever they sent, they are shown out.
    for stream in &mut halves {
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(
            ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset),
            "DOOR-2"
        );
    }
}
