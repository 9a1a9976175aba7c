//! A stranger in a namespace of its own, on the same network: it knows every door of a running job and one handshake that it overheard.

use super::{Hosts, aloud, crowd::setting, listening};
use crate::launch::support::{Running, finish};
use phalanx_core::{Epoch, Rank};
use phalanx_net::{
    auth::{Caller, Connector, Purpose, fresh_nonce},
    frame,
    hub::message::Up,
    secret::Secret,
};
use std::{
    env, io,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const REPLY: usize = 72;
/// The door's deadline is 5 s; a connection that is open after it was let in.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an honest caller waits to be shown out all the same. Forgers are within a millisecond.
const WELCOME: Duration = Duration::from_millis(300);
/// What the stranger is told: how many forgeries a door, the secret of the handshake it overheard, the hub's door, the ranks' doors.
const ORDERS: &str = "PHALANX_TEST_STRANGER";

fn call(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the door is open");
    stream.set_nodelay(true).expect("a fresh socket takes options");
    stream.set_read_timeout(Some(PATIENCE)).expect("a fresh socket takes options");
    stream
}

/// Both messages of an honest caller, who is let in and stays, and whether TLS would follow.
fn overhear(address: SocketAddr, secret: &Secret, purpose: Purpose) -> ([Vec<u8>; 2], bool) {
    let caller = Caller { rank: Rank(7), epoch: Epoch(0), stream: u32::MAX };
    let (mut opening, mut closing) = (Vec::new(), Vec::new());
    let mut connector = Connector::new(secret.clone(), purpose, caller, fresh_nonce(), &mut opening);
    let mut stream = call(address);
    stream.write_all(&opening).expect("the door listens");
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).expect("the door answers an opening");
    assert!(connector.feed(&reply, &mut closing).expect("the door knows the secret"));
    stream.write_all(&closing).expect("the door listens");
    if !connector.is_encrypted() {
        stream.write_all(&alive()).expect("the door listens");
    }
    stream.set_read_timeout(Some(WELCOME)).expect("an open socket takes options");
    assert!(!is_shown_out(&mut stream), "who knows the secret is let in, or being refused means nothing");
    ([opening, closing], connector.is_encrypted())
}

fn alive() -> Vec<u8> {
    frame::encode(&Up::Alive).expect("a word is small")
}

/// Whether the other side closes the connection before the read times out.
fn is_shown_out(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    /// Forgeries that came as far as the second message: the door answered the first with its own proof.
    answered: usize,
    accepted: usize,
}

/// Forges a handshake out of an overheard one.
fn forge(address: SocketAddr, overheard: &([Vec<u8>; 2], bool), seed: usize, tally: &mut Tally) {
    let ([mut opening, mut closing], is_encrypted) = overheard.clone();
    let (noise, bit) = (fresh_nonce(), seed / 5);
    match seed % 5 {
        0 => {} // Replayed as it was.
        1 => closing[bit % 48] ^= 1 << (bit % 8),
        2 => closing[16..].copy_from_slice(&noise),
        3 => opening[bit % 6] ^= 1 << (bit % 8),
        _ => opening.iter_mut().zip(noise.iter().cycle()).for_each(|(byte, n)| *byte = *n),
    }
    let mut stream = call(address);
    // The door may close at the first message already; then the second cannot be sent.
    let _ = stream.write_all(&opening);
    if stream.read_exact(&mut [0; REPLY]).is_ok() {
        tally.answered += 1;
        let _ = stream.write_all(&closing);
    }
    if is_encrypted {
        // A door that let it in would wait for TLS.
        stream.set_read_timeout(Some(WELCOME)).expect("an open socket takes options");
    } else {
        let _ = stream.write_all(&alive());
    }
    if !is_shown_out(&mut stream) {
        tally.accepted += 1;
    }
}

/// The stranger itself; does nothing unless this process was started as one.
#[test]
fn stranger_entry() {
    let Ok(orders) = env::var(ORDERS) else { return };
    let mut orders = orders.split(' ');
    let mut next = || orders.next().expect("all orders are there");
    let n: usize = next().parse().expect("a count");
    let hex = next();
    let secret = std::array::from_fn(|i| u8::from_str_radix(&hex[i * 2..i * 2 + 2], 16).expect("a secret"));
    let secret = Secret::from_bytes(secret);
    let doors: Vec<SocketAddr> = orders.map(|o| o.parse().expect("a door")).collect();
    std::thread::scope(|scope| {
        for (i, &door) in doors.iter().enumerate() {
            let secret = &secret;
            scope.spawn(move || {
                let purpose = if i == 0 { Purpose::Hub } else { Purpose::Link(Rank(i as u32 - 1)) };
                let overheard = overhear(door, secret, purpose);
                let begun = Instant::now();
                let mut tally = Tally::default();
                (0..n).for_each(|seed| forge(door, &overheard, seed, &mut tally));
                let took = begun.elapsed();
                overhear(door, secret, purpose);
                println!("door {i}: forged {n}, {tally:?}, in {took:?}");
            });
        }
    });
}

#[test]
fn a_stranger_in_a_third_namespace_forges_handshakes_in_vain_while_the_job_goes_on() {
    besiege("w", "auto");
}

#[test]
fn a_stranger_is_as_unwelcome_where_nothing_is_encrypted() {
    besiege("v", "never");
}

fn besiege(tag: &str, encrypt: &str) {
    let Some(hosts) = Hosts::bridged(tag, 3) else { return };
    let n_forgeries = setting("PHALANX_TEST_FORGERIES", 600);
    // One rank betrays what no rank does, so that a handshake can be overheard.
    let betray = r#"
        secret() { od -An -v -tx1 /proc/self/fd/$PHALANX_SECRET_FD | tr -d ' \n'; }
        [ $PHALANX_RANK = 0 ] && echo betrayed $(secret) $PHALANX_RENDEZVOUS
        exec "$@""#;
    let (binary, sizes) = (super::binary(), super::many_sizes());
    let work = ["bench", "--json", "--op", "all", "--seconds", "0.2", "--sizes", &sizes];
    let program = [&["sh", "-c", betray, "sh", &binary], &work[..]].concat();
    let mut job = Running::start(aloud(&hosts.command([1, 1], &program)).env("PHALANX_ENCRYPT", encrypt));
    let betrayed = job.line();
    let words: Vec<&str> = betrayed.split_whitespace().skip_while(|w| *w != "betrayed").collect();
    let [_, secret, meeting] = words[..] else { panic!("{betrayed}") };
    assert!(job.line().contains("\"bytes\":4,"), "data flow");
    let hub: SocketAddr =
        meeting.split(',').find(|d| d.starts_with("10.78.")).and_then(|d| d.parse().ok()).expect("a door");
    let all: Vec<SocketAddr> = hosts.names[..2].iter().flat_map(|host| listening(host)).collect();
    assert!(all.iter().all(|door| !door.ip().is_unspecified()), "MEET-1: {all:?}");
    assert!(all.contains(&hub), "{hub} is not among {all:?}");
    let links = all.iter().filter(|door| **door != hub && door.to_string().starts_with("10.78."));
    let doors: Vec<String> = [&hub].into_iter().chain(links).map(ToString::to_string).collect();
    assert!(doors.len() >= 3, "the hub and both ranks have doors: {all:?}");

    // Whole fives, one of each kind.
    let n_each = n_forgeries.div_ceil(doors.len()).next_multiple_of(5);
    let mut stranger = Command::new("nsenter");
    stranger
        .arg(format!("--net=/run/netns/{}", hosts.names[2]))
        .arg(env::current_exe().expect("a test knows its file"));
    stranger.args(["--exact", "launch::netns::stranger::stranger_entry", "--nocapture"]);
    stranger.env(ORDERS, format!("{n_each} {secret} {}", doors.join(" ")));
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let siege = scope.spawn(|| {
            let done = finish(&mut stranger);
            // Relaxed: it only ends a loop.
            over.store(true, Ordering::Relaxed);
            done
        });
        while !over.load(Ordering::Relaxed) {
            job.line();
        }
        siege.join().expect("the siege ends")
    });
    assert_eq!(done.code, Some(0), "{done:?}");
    let verdicts: Vec<&str> = done.stdout.lines().filter(|l| l.contains(": forged ")).collect();
    println!("{}", verdicts.join("\n"));
    assert_eq!(verdicts.len(), doors.len(), "{done:?}");
    assert!(verdicts.iter().all(|v| v.contains(" accepted: 0 ")), "AUTH-2: {verdicts:?}");
    // Replays, changed proofs and made-up ones: three kinds in five.
    let answered = format!("answered: {}", 3 * n_each / 5);
    assert!(verdicts.iter().all(|v| v.contains(&answered)), "heard out, not just turned away: {verdicts:?}");
    // The ranks go on: what was said before the siege ended has been read.
    assert!(job.line().contains("\"bytes\":"), "the job works on");
}
