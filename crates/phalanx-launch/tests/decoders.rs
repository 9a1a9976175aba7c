//! What launcher and agents read from each other, a million inputs each: no panic, no allocation above the cap.

#[path = "../../phalanx-net/tests/inputs/mod.rs"]
mod inputs;
#[expect(
    dead_code,
    reason = "the whole module is here for its decoders; this crate is a command and has no library"
)]
#[path = "../src/wire.rs"]
mod wire;

use inputs::{Chance, N_INPUTS, largest_allocation};
use phalanx_core::Rank;
use phalanx_net::frame::{self, HEADER};
use serde::{Serialize, de::DeserializeOwned};
use wire::{
    CAP, CoreSpan, Ending, Hidden, JobSignal, NamedCores, OutputStream, Prepare, RankStart, StartRefusal,
    ToAgent, ToLauncher,
};

/// Feeds tampered and random streams; returns how many messages came out of them.
fn decoded<T: Serialize + DeserializeOwned>(seed: u64, messages: &[T]) -> u64 {
    let valid: Vec<Vec<u8>> = messages.iter().map(|m| frame::encode(m).expect("ours are short")).collect();
    println!("seed {seed}");
    let mut n_decoded = 0;
    let largest = largest_allocation(|| {
        let chance = &mut Chance(seed);
        for _ in 0..N_INPUTS {
            let mut bytes = match chance.below(8) {
                0 => {
                    let len = chance.below(64);
                    chance.bytes(len)
                }
                _ => {
                    let valid = chance.pick(&valid);
                    chance.tamper(valid)
                }
            };
            // Most have a header that fits, so that the body is reached.
            if bytes.len() >= HEADER && chance.below(4) != 0 {
                let len = (bytes.len() - HEADER) as u32;
                bytes[..4].copy_from_slice(&valid[0][..4]);
                bytes[4..HEADER].copy_from_slice(&len.to_le_bytes());
            }
            let mut stream = bytes.as_slice();
            while let Ok(Some(_)) = frame::read::<T>(&mut stream, CAP) {
                n_decoded += 1;
            }
        }
    });
    println!("{n_decoded} messages, largest allocation {largest} bytes");
    assert!(largest <= CAP, "{largest} bytes were allocated at once, the cap is {CAP}");
    n_decoded
}

#[test]
fn whatever_a_launcher_says_is_an_order_or_an_error() {
    let rank = |rank| RankStart {
        rank: Rank(rank),
        argv: Some(vec![b"phalanx".to_vec(), b"serve".to_vec()]),
        reads: true,
        cores: Some(NamedCores {
            place: "a.rf line 3".into(),
            spans: vec![CoreSpan { socket: Some(1), first: 0, last: None }],
        }),
        env: vec![("PHALANX_RANK".into(), rank.to_string())],
    };
    let prepare = Prepare {
        secret: Hidden([7; 32]),
        cwd: b"/tmp".to_vec(),
        argv: vec![b"sh".to_vec(), b"-c".to_vec(), vec![0, 255]],
        env: vec![(b"PATH".to_vec(), b"/bin".to_vec()), (b"LANG".to_vec(), Vec::new())],
        ranks: vec![rank(0), rank(300)],
        bind: true,
    };
    let orders = [
        ToAgent::Prepare(Box::new(prepare)),
        ToAgent::Go,
        ToAgent::Signal(JobSignal::Usr2),
        ToAgent::Input(b"yes\n".to_vec()),
        ToAgent::InputEnded,
        ToAgent::End,
    ];
    let n_decoded = decoded(11, &orders);
    assert!(n_decoded > N_INPUTS / 100, "some must be orders: {n_decoded}");
}

#[test]
fn whatever_an_agent_says_is_news_or_an_error() {
    let (rank, stream) = (Rank(3), OutputStream::Stderr);
    let news = [
        ToLauncher::Hello { version: "0.1.0".into() },
        ToLauncher::Ready { cores: 8 },
        ToLauncher::Refused(StartRefusal::NotExecutable {
            program: "x".into(),
            why: "permission denied".into(),
        }),
        ToLauncher::Refused(StartRefusal::NoRoom {
            n_ranks: 600,
            needed: 2400,
            what: "processes and threads".into(),
            left: 100,
            limit: "ulimit -u is 1000".into(),
        }),
        ToLauncher::Started { rank, pid: 4711 },
        ToLauncher::Taken { rank },
        ToLauncher::Output { rank, stream, bytes: b"a line\n".to_vec() },
        ToLauncher::Closed { rank, stream },
        ToLauncher::Exited { rank, ending: Ending::Signal(9) },
        ToLauncher::Done,
    ];
    let n_decoded = decoded(12, &news);
    assert!(n_decoded > N_INPUTS / 100, "some must be news: {n_decoded}");
}
