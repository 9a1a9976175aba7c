//! Strangers at the hub's door and at the ranks' doors: none comes in, none costs much, and the job goes on meanwhile.

use crate::job::{self, Job, Ranks, deadline};
use phalanx_core::{Config, Encrypt, Epoch, Rank};
use phalanx_net::{
    World,
    auth::{Caller, Connector, Purpose, fresh_nonce},
    discover::{Identity, Meeting},
    frame,
    hub::message::{FailureKind, Up, Words},
    lost::Cause,
    nodes::{self, NodeDoor, NodeLine, NodePlace},
    secret::Secret,
};
use rustix::net::AddressFamily;
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{self, UnixStream},
    },
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

const REPLY: usize = 72;

fn call(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the door is open");
    stream.set_nodelay(true).expect("a fresh socket takes options");
    stream.set_read_timeout(Some(deadline())).expect("a fresh socket takes options");
    stream
}

/// Whether the other side closes the connection, whatever it sends before; false if it does neither until the read times out.
fn is_shown_out(stream: &mut impl Read) -> bool {
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

/// An honest handshake: the connection, and both messages of the caller.
fn shake(address: SocketAddr, secret: &Secret, purpose: Purpose, rank: u32) -> (TcpStream, [Vec<u8>; 2]) {
    let mut stream = call(address);
    let said = prove(&mut stream, secret, purpose, rank);
    (stream, said)
}

/// The same on a connection of any kind.
fn prove(stream: &mut (impl Read + Write), secret: &Secret, purpose: Purpose, rank: u32) -> [Vec<u8>; 2] {
    let caller = Caller { rank: Rank(rank), epoch: Epoch(0), stream: u32::MAX };
    let (mut opening, mut closing) = (Vec::new(), Vec::new());
    let mut connector = Connector::new(secret.clone(), purpose, caller, fresh_nonce(), &mut opening);
    stream.write_all(&opening).expect("the door listens");
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).expect("the door answers an opening");
    assert!(connector.feed(&reply, &mut closing).expect("the door knows the secret"));
    stream.write_all(&closing).expect("the door listens");
    [opening, closing]
}

/// Forges one handshake out of a recorded one and says whether it was refused.
fn forge(mut stream: impl Read + Write, recorded: &[Vec<u8>; 2], seed: u64) -> bool {
    let [mut opening, mut closing] = recorded.clone();
    let noise = fresh_nonce();
    let bit = (seed / 5) as usize;
    match seed % 5 {
        0 => {} // Replayed as it was.
        1 => closing[bit % 48] ^= 1 << (bit % 8),
        2 => closing[16..].copy_from_slice(&noise),
        3 => opening[bit % 6] ^= 1 << (bit % 8),
        _ => opening.iter_mut().zip(noise.iter().cycle()).for_each(|(byte, n)| *byte = *n),
    }
    // The door may close at the first message already; then the second cannot be sent.
    let _ = stream.write_all(&opening);
    if stream.read_exact(&mut [0; REPLY]).is_ok() {
        let _ = stream.write_all(&closing);
    }
    let _ = stream.write_all(&frame::encode(&Up::Alive).expect("a word is small"));
    is_shown_out(&mut stream)
}

fn none_of_5000_is_accepted(door: SocketAddr, recorded: &[Vec<u8>; 2]) {
    let accepted: Vec<u64> = (0..5_000).filter(|&seed| !forge(call(door), recorded, seed)).collect();
    assert_eq!(accepted, Vec::<u64>::new(), "AUTH-2");
}

#[test]
fn ten_thousand_forged_handshakes_are_refused_while_a_world_forms_and_works() {
    let job = Job::of(3);
    let (_, at_hub) = shake(job.address, &job.secret, Purpose::Hub, 7);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let forger = scope.spawn(|| none_of_5000_is_accepted(job.address, &at_hub));
        let ranks = Ranks::join(&job);
        let door = ranks.link_address(0);
        let (_, at_link) = shake(door, &job.secret, Purpose::Link(Rank(0)), 7);
        let link_forger = scope.spawn(move || none_of_5000_is_accepted(door, &at_link));
        let worker = scope.spawn({
            let over = &over;
            move || {
                let mut rounds = 0;
                // Relaxed: it only ends a loop.
                while !over.load(Ordering::Relaxed) {
                    ranks.greet_each_other(rounds);
                    rounds += 1;
                }
                rounds
            }
        });
        let forged = [forger.join(), link_forger.join()];
        over.store(true, Ordering::Relaxed);
        let rounds = worker.join().expect("the world works under siege");
        forged.into_iter().for_each(|f| f.expect("no forgery is accepted"));
        println!("the ranks opened {rounds} sets of links meanwhile");
        assert!(rounds > 0);
    });
}

/// NODE-1
#[test]
fn ten_thousand_forged_handshakes_are_refused_at_the_door_of_launchers() {
    let given = Secret::from_bytes([7; 32]);
    for encrypt in [Encrypt::Never, Encrypt::Always] {
        let (come, came) = mpsc::channel();
        let place = NodePlace::At(vec!["127.0.0.1:0".into()]);
        let welcome = move |line: NodeLine| come.send(line).expect("the test waits");
        let door = NodeDoor::open(&place, &given, encrypt, &[], deadline(), welcome).expect("a door");
        let address = door.addresses()[0];
        let at_door = shake(address, &given.derive(b"launchers"), Purpose::Launcher, 1).1;
        none_of_5000_is_accepted(address, &at_door);
        let place = NodePlace::At(vec![address.to_string()]);
        let line = nodes::connect(&place, &given, encrypt, 1, deadline());
        let line = line.expect("a launcher is let in as ever");
        drop(door);
        drop(line);
        // The recorded one is an honest launcher where nothing is encrypted; elsewhere it stopped before TLS.
        let n_honest = if encrypt == Encrypt::Never { 2 } else { 1 };
        assert_eq!(came.iter().count(), n_honest, "NODE-1");
    }
}

#[test]
fn the_silent_and_the_slow_are_shown_out_in_time() {
    let job = Job::of(2);
    let ranks = Ranks::join(&job);
    for door in [job.address, ranks.link_address(1)] {
        let begun = Instant::now();
        let mut silent = call(door);
        let mut half = call(door);
        half.write_all(b"PHLX\x01").expect("the door listens");
        let mut slow = call(door);
        slow.set_read_timeout(Some(Duration::from_millis(200))).expect("an open socket takes options");
        // One byte now and then, never the whole opening.
        let mut bytes = b"PHLX\x01".iter().chain(&[0; 30]);
        while !is_shown_out(&mut slow) {
            assert!(begun.elapsed() < deadline(), "DOOR-2");
            if let Some(byte) = bytes.next() {
                let _ = slow.write_all(&[*byte]);
            }
        }
        println!("shown out after {:?}", begun.elapsed());
        assert!(is_shown_out(&mut silent) && is_shown_out(&mut half), "DOOR-2");
    }
    ranks.greet_each_other(0);
}

#[test]
fn garbage_is_shown_out_at_once() {
    let job = Job::of(2);
    let ranks = Ranks::join(&job);
    for door in [job.address, ranks.link_address(0)] {
        for garbage in [
            b"GET / HTTP/1.1\r\nHost: phalanx\r\nAccept: everything under the sun\r\n\r\n".to_vec(),
            vec![0; 4096],
            [b"PHLX\x04\x01\0\0".as_slice(), &[7; 64]].concat(),
            [b"PHLX\x03\x01\x07\0".as_slice(), &[7; 64]].concat(),
            [b"PHLX\x03\x09\0\0".as_slice(), &[7; 64]].concat(),
        ] {
            let begun = Instant::now();
            let mut stream = call(door);
            let _ = stream.write_all(&garbage);
            assert!(is_shown_out(&mut stream));
            assert!(begun.elapsed() < Duration::from_secs(4), "for what it said, not for its time");
        }
    }
    ranks.greet_each_other(0);
}

#[test]
fn a_crowd_at_the_door_is_kept_small_and_does_not_keep_the_ranks_out() {
    let job = Job::of(3);
    let mut crowd: Vec<TcpStream> = (0..400).map(|_| call(job.address)).collect();
    for stream in &mut crowd {
        stream.set_nonblocking(true).expect("an open socket takes options");
    }
    let begun = Instant::now();
    loop {
        let inside = crowd.iter_mut().filter_map(|s| (!is_shown_out(s)).then_some(())).count();
        if inside <= 256 {
            assert!(inside > 0, "DOOR-1: only as many go as must");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(4), "DOOR-1: {inside} strangers wait inside");
        std::thread::yield_now();
    }
    let ranks = Ranks::join(&job);
    let crowd: Vec<TcpStream> = (0..400).map(|_| call(ranks.link_address(0))).collect();
    ranks.greet_each_other(0);
    drop(crowd);
    ranks.greet_each_other(1);
}

#[test]
fn words_for_people_are_heard_from_members_only_and_made_plain() {
    let job = Job::of(2);
    let ranks = Ranks::join(&job);
    // One that knows the secret, but is no rank of this world, and one in the name of a rank that sits there already.
    for (rank, member) in [(7, 1), (1, 1)] {
        let (mut stream, _) = shake(job.address, &job.secret, Purpose::Hub, rank);
        let forged = Up::Words(Words::Notice("forged".into()));
        // It is shown out for joining, which it says last: by then the rest was heard.
        for up in [forged, Up::Join(ranks.introduction(member))] {
            stream.write_all(&frame::encode(&up).expect("a word is small")).expect("the hub listens");
        }
        assert!(is_shown_out(&mut stream));
    }
    assert!(ranks.world(0).tell_failure(FailureKind::Own, "first\x1b[2J\n"));
    let text = "first\u{fffd}[2J\n".to_string();
    assert_eq!(job.hear(), (Rank(0), Words::Failure { kind: FailureKind::Own, text }));
    assert!(ranks.world(1).tell_launcher("second"));
    assert_eq!(job.hear(), (Rank(1), Words::Notice("second".into())));
}

#[test]
fn a_member_that_announces_a_huge_message_is_dropped() {
    let huge = [b"PX".as_slice(), &[frame::VERSION, 0], &u32::MAX.to_le_bytes()].concat();
    let job = Job::of(3);
    // Before it joined it is nobody's loss.
    let (mut member, _) = shake(job.address, &job.secret, Purpose::Hub, 2);
    member.write_all(&huge).expect("the hub listens");
    assert!(is_shown_out(&mut member), "FRAME-1");
    let ranks = Ranks::join(&job);
    ranks.greet_each_other(0);
    // A second connection in a joined rank's name does not harm that rank.
    let (mut double, _) = shake(job.address, &job.secret, Purpose::Hub, 2);
    double.write_all(&huge).expect("the hub listens");
    assert!(is_shown_out(&mut double), "FRAME-1");
    ranks.greet_each_other(1);
}

#[test]
fn a_joined_member_that_sends_nonsense_is_lost_to_the_others() {
    let join = Up::Join(Ranks::join(&Job::of(2)).introduction(1));
    let job = Job::of(2);
    let rank_0 = std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| job.join(0));
        let (mut member, _) = shake(job.address, &job.secret, Purpose::Hub, 1);
        member.write_all(&frame::encode(&join).expect("it is small")).expect("the hub listens");
        job::await_roster(&mut member);
        member.write_all(&frame::encode(&[0xffu8; 32]).expect("it is small")).expect("the hub listens");
        assert!(is_shown_out(&mut member), "FRAME-2");
        rank_0.join().expect("rank 0 joins")
    });
    let begun = Instant::now();
    while rank_0.casualties().cause(Rank(1)).is_none() {
        assert!(begun.elapsed() < deadline());
        std::thread::yield_now();
    }
    assert_eq!(rank_0.casualties().cause(Rank(1)), Some(Cause::Disconnected));
}

/// Knocks at a rank's door for Unix sockets.
fn call_unix(name: &str) -> UnixStream {
    let name = name.strip_prefix('@').expect("an abstract name begins so");
    let address = net::SocketAddr::from_abstract_name(name).expect("it is a short name");
    let stream = UnixStream::connect_addr(&address).expect("the door is open");
    stream.set_read_timeout(Some(deadline())).expect("a fresh socket takes options");
    stream
}

#[test]
fn unix_sockets_carry_the_links_inside_hosts_and_keep_strangers_out_too() {
    let job = Job::with_links("unix", 2, 4);
    let ranks = Ranks::join(&job);
    let door = ranks.address_of(0, "unix");
    assert_ne!(door, ranks.address_of(1, "unix"), "names are random");
    let recorded = prove(&mut call_unix(&door), &job.secret, Purpose::Link(Rank(0)), 7);
    let accepted: Vec<u64> = (0..500).filter(|&seed| !forge(call_unix(&door), &recorded, seed)).collect();
    assert_eq!(accepted, Vec::<u64>::new(), "AUTH-2");
    let mut garbage = call_unix(&door);
    let _ = garbage.write_all(&[0; 4096]);
    assert!(is_shown_out(&mut garbage));
    let crowd: Vec<UnixStream> = (0..400).map(|_| call_unix(&door)).collect();
    ranks.greet_each_other(0);
    drop(crowd);
    for (a, b) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
        assert_eq!(ranks.carrier(a, b, 0), ("unix", AddressFamily::UNIX));
    }
    for (a, b) in [(0, 2), (3, 0), (1, 3)] {
        assert_eq!(ranks.carrier(a, b, 0), ("tcp", AddressFamily::INET), "LINK-1");
    }
}

#[test]
fn a_transport_that_nobody_knows_is_refused_with_the_known_ones() {
    let identity = Identity::worker(Rank(0), 1, Meeting::Alone);
    let mut config = Config::default();
    config.set("PHALANX_TRANSPORT", "pigeon").expect("only the net knows its transports");
    let checked = World::check(&config).unwrap_err().to_string();
    let error = World::join(identity, Secret::random(), config).unwrap_err().to_string();
    assert_eq!(error, checked);
    assert!(error.contains("pigeon") && error.contains("tcp, unix"), "CONF-2: {error}");
}
