//! Bytes and words from outside, a million for each decoder: no panic, nothing accepted that should not be, no allocation above the cap.

use crate::inputs::{Chance, N_INPUTS, largest_allocation};
use phalanx_core::{Config, Epoch, Rank, Tiers};
use phalanx_net::{
    LinkAddress,
    auth::{Acceptor, Caller, Connector, Purpose},
    discover::discover,
    ending::{End, Ending},
    frame::{self, Decoder, HEADER},
    hub::message::{Down, FailureKind, MAX_FRAME, Member, Up, Words},
    lost::{Cause, Doom, Lost},
    secret::Secret,
};
use serde::{Serialize, de::DeserializeOwned};

/// What a stranger may make this side allocate.
const STRANGERS_CAP: usize = 64 << 10;

fn within(cap: usize, seed: u64, f: impl FnOnce(&mut Chance)) {
    println!("seed {seed}");
    let largest = largest_allocation(|| f(&mut Chance(seed)));
    println!("largest allocation {largest} bytes");
    assert!(largest <= cap, "{largest} bytes were allocated at once, the cap is {cap}");
}

fn member(rank: u32) -> Member {
    Member {
        rank: Rank(rank),
        n_aside: 0,
        role: phalanx_core::TaskRole::Worker,
        n_ranks: 4,
        host_key: 0x1234_5678_9abc,
        host_name: "host.example".into(),
        pid: 4711,
        cores: vec![0, 1, 2, 300],
        core_quota: u32::MAX,
        addresses: [("tcp", "10.0.0.1:4000"), ("tcp", "[fe80::1]:4000"), ("unix", "@phalanx-1")]
            .map(|(transport, address)| LinkAddress::new(transport, address).unwrap())
            .to_vec(),
        arena_fd: 5,
        arena_heap_bytes: 64 << 30,
        trial_address: 0x7fff_0000_1000,
        build: "0.1.0".into(),
        settings: "transport=Auto tiers=4x2".into(),
    }
}

fn dooms() -> Vec<Doom> {
    let lost = |cause| Doom::Lost(Lost { rank: Rank(3), cause });
    vec![
        lost(Cause::Ended(End::Process(Ending::Signal(9)))),
        lost(Cause::Frozen { silent_ms: 3_123 }),
        lost(Cause::Left),
        Doom::Mismatch { a: Rank(0), a_call: "barrier".into(), b: Rank(1), b_call: "allreduce".into() },
        Doom::GaveUp { rank: Rank(2), why: "waited 3 s".into() },
    ]
}

/// Feeds tampered and random streams of frames.
fn frames<T: Serialize + DeserializeOwned>(seed: u64, messages: &[T]) {
    let valid: Vec<Vec<u8>> = messages.iter().map(|m| frame::encode(m).unwrap()).collect();
    within(MAX_FRAME, seed, |chance| {
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
            // Half of them have a header that fits, so that the body is reached.
            if bytes.len() >= HEADER && chance.below(2) == 0 {
                let len = (bytes.len() - HEADER) as u32;
                bytes[..4].copy_from_slice(&valid[0][..4]);
                bytes[4..HEADER].copy_from_slice(&len.to_le_bytes());
            }
            let cut = chance.below(bytes.len() + 1);
            let mut decoder = Decoder::new(MAX_FRAME);
            for piece in [&bytes[..cut], &bytes[cut..]] {
                decoder.feed(piece);
                while let Ok(Some(_)) = decoder.take::<T>() {}
            }
            let _ = frame::read::<T>(&mut bytes.as_slice(), MAX_FRAME);
        }
    });
}

#[test]
fn what_ranks_say_to_the_hub_may_be_anything() {
    let mut messages = vec![Up::Join(member(1)), Up::Alive, Up::Leave];
    messages.extend(dooms().into_iter().map(Up::Doomed));
    messages.push(Up::Words(Words::Notice("x\u{1b}".into())));
    messages.push(Up::Words(Words::Failure { kind: FailureKind::Own, text: "Traceback".into() }));
    frames(1, &messages);
}

#[test]
fn what_the_hub_says_to_ranks_may_be_anything() {
    let mut messages =
        vec![Down::Roster((0..3).map(member).collect()), Down::Refused("no".into()), Down::Alive];
    messages.push(Down::Lost(Lost { rank: Rank(1), cause: Cause::Disconnected }));
    messages.extend(dooms().into_iter().map(Down::Doomed));
    frames(2, &messages);
}

const CALLER: Caller = Caller { rank: Rank(1), epoch: Epoch(2), stream: 3 };

/// The three messages of an honest handshake of the past.
fn recorded(secret: &Secret) -> [Vec<u8>; 3] {
    let (mut opening, mut reply, mut closing) = (Vec::new(), Vec::new(), Vec::new());
    let mut acceptor = Acceptor::new(secret.clone(), Purpose::Hub, [1; 32]);
    let mut connector = Connector::new(secret.clone(), Purpose::Hub, CALLER, [2; 32], &mut opening);
    acceptor.feed(&opening, &mut reply).unwrap();
    connector.feed(&reply, &mut closing).unwrap();
    assert_eq!(acceptor.feed(&closing, &mut Vec::new()), Ok(Some(CALLER)));
    [opening, reply, closing]
}

#[test]
fn whatever_a_stranger_says_to_the_door_lets_nobody_in() {
    let secret = Secret::from_bytes([3; 32]);
    let [opening, _, closing] = recorded(&secret);
    within(STRANGERS_CAP, 3, |chance| {
        let mut n_answered = 0;
        for i in 0..N_INPUTS {
            let first = if chance.below(4) == 0 { opening.clone() } else { chance.tamper(&opening) };
            let second = if chance.below(4) == 0 { closing.clone() } else { chance.tamper(&closing) };
            let bytes = [first, second].concat();
            let mut nonce = [9; 32];
            nonce[..8].copy_from_slice(&i.to_le_bytes());
            let mut acceptor = Acceptor::new(secret.clone(), Purpose::Hub, nonce);
            let mut rest = bytes.as_slice();
            let mut out = Vec::new();
            while !rest.is_empty() {
                let n = acceptor.wants().min(rest.len()).min(1 + chance.below(64));
                match acceptor.feed(&rest[..n], &mut out) {
                    Ok(None) => rest = &rest[n..],
                    Ok(Some(caller)) => panic!("AUTH-2: {caller:?} came in with {bytes:x?}"),
                    Err(_) => break,
                }
            }
            n_answered += u64::from(out.len() > 8);
            assert!(out.len() <= 72, "AUTH-1: one answer, of fixed length");
        }
        assert!(n_answered > N_INPUTS / 10, "many must come as far as the second message");
    });
}

#[test]
fn whatever_a_false_door_answers_no_rank_proves_itself_to_it() {
    let secret = Secret::from_bytes([4; 32]);
    let [_, reply, _] = recorded(&secret);
    within(STRANGERS_CAP, 4, |chance| {
        for i in 0..N_INPUTS {
            let mut nonce = [8; 32];
            nonce[..8].copy_from_slice(&i.to_le_bytes());
            let mut out = Vec::new();
            let mut connector = Connector::new(secret.clone(), Purpose::Hub, CALLER, nonce, &mut out);
            out.clear();
            let bytes = if chance.below(4) == 0 { reply.clone() } else { chance.tamper(&reply) };
            let n = bytes.len().min(connector.wants());
            assert!(!matches!(connector.feed(&bytes[..n], &mut out), Ok(true)), "AUTH-2: {bytes:x?}");
            assert!(out.is_empty(), "AUTH-2: nothing is proved to a stranger");
        }
    });
}

const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "7",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "-1",
    "",
    " 3 ",
    "x",
    "1e3",
    "NaN",
    "inf",
    "0.5",
    "1e300",
    "-0",
    "\u{661}",
];
const NAMES: &[&str] = &[
    "PHALANX_RANK",
    "PHALANX_SIZE",
    "PHALANX_LOCAL_SIZE",
    "PHALANX_RENDEZVOUS",
    "PHALANX_LAUNCHER",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "PMI_FD",
    "PMI_JOBID",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PHALANX_SECRET",
    "HOSTNAME",
    "JOB_COMPLETION_INDEX",
];
const PAIRS: &[(&str, &str)] = &[
    ("PHALANX_RANK", "PHALANX_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", "PHALANX_SIZE"),
];
const LISTS: &[&str] = &[
    "n[0-3],m",
    "[",
    "]",
    "n[",
    "n]",
    "a,b",
    "n[05-07,9]-ib,m",
    "[::1]:5",
    "10.0.0.1:5, [::1]:6",
    "etcd://a:1,[::1]/job",
    "etcd://",
    "file:/x",
    "train-1",
    ",",
    "ü[ö]",
];

/// A word that somebody might have put into a variable.
fn word(chance: &mut Chance) -> String {
    match chance.below(4) {
        0 | 1 => chance.pick(NUMBERS).to_string(),
        2 => chance.pick(LISTS).to_string(),
        _ => {
            let list = chance.pick(LISTS).as_bytes();
            String::from_utf8_lossy(&chance.tamper(list)).into_owned()
        }
    }
}

#[test]
fn whatever_launchers_leave_in_the_environment_is_an_identity_or_an_error() {
    within(STRANGERS_CAP, 5, |chance| {
        let mut n_found = 0;
        for _ in 0..N_INPUTS {
            let mut vars: Vec<(&str, String)> =
                (0..2 + chance.below(6)).map(|_| (*chance.pick(NAMES), word(chance))).collect();
            if chance.below(2) == 0 {
                let (rank, size) = *chance.pick(PAIRS);
                vars.extend([(rank, chance.below(5).to_string()), (size, "4".to_string())]);
                vars.rotate_right(2);
            }
            let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
            if let Ok(identity) = discover(&var, 1) {
                assert!(identity.rank.0 < identity.n_ranks, "{vars:?}");
                n_found += u64::from(identity.source != "nobody");
            }
        }
        assert!(n_found > N_INPUTS / 200, "some must be worlds: {n_found}");
    });
}

#[test]
fn whatever_settings_say_is_a_configuration_or_an_error() {
    let names: Vec<&str> = phalanx_core::config::KEYS.iter().map(|k| k.name).collect();
    within(STRANGERS_CAP, 6, |chance| {
        for _ in 0..N_INPUTS {
            let name = match chance.below(8) {
                0 => String::from_utf8_lossy(&chance.tamper(b"PHALANX_TIMEOUT")).into_owned(),
                _ => chance.pick(&names).to_string(),
            };
            if let Ok(config) = Config::from_vars([(name, word(chance))]) {
                assert!(!config.timeout.is_zero() && (4096..=262_144).contains(&config.segment_bytes));
            }
        }
    });
}

#[test]
fn whatever_text_is_a_shape_or_an_error_and_shapes_are_read_back() {
    within(STRANGERS_CAP, 7, |chance| {
        for _ in 0..N_INPUTS {
            let text = match chance.below(3) {
                0 => format!("{}x{}", chance.pick(NUMBERS), chance.pick(NUMBERS)),
                _ => String::from_utf8_lossy(&chance.tamper(b"4x8x2")).into_owned(),
            };
            if let Ok(tiers) = text.parse::<Tiers>() {
                assert!(tiers.n_ranks() > 0);
                assert_eq!(tiers.to_string().parse::<Tiers>(), Ok(tiers));
            }
        }
    });
}

#[test]
fn any_text_is_a_secret_and_different_texts_are_different_ones() {
    within(STRANGERS_CAP, 8, |chance| {
        let hex = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let honest = Secret::from_text(std::str::from_utf8(hex).unwrap());
        for _ in 0..N_INPUTS / 4 {
            let text = String::from_utf8_lossy(&chance.tamper(hex)).into_owned();
            let same = text.trim().eq_ignore_ascii_case(std::str::from_utf8(hex).unwrap());
            assert_eq!(Secret::from_text(&text) == honest, same, "{text:?}");
        }
    });
}

/// What boards answer when all is well: process managers, etcd, an entry of rank 0, a sealed secret.
fn answers() -> Vec<Vec<u8>> {
    let (id, key, proof) = ("07".repeat(16), "5a".repeat(32), "9b".repeat(32));
    let body = r#"{"header":{"revision":"7"},"kvs":[{"key":"L3A=","value":"MTAuMC4wLjE6NQ=="}],"count":"1"}"#;
    let texts = [
        "cmd=get_result rc=0 msg=success value=10.0.0.1:4000".to_string(),
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
        "cmd=kvs-get-response;rc=0;found=TRUE;value=10.0.0.1:5;".into(),
        format!("{id}/given/10.0.0.1:4000,[fe80::1]:4001/{proof}"),
        format!("{id}/{key}/10.0.0.1:4000,10.0.0.2:4000"),
        format!("{key}{proof}"),
        body.to_string(),
        r#"{"ID":"7587869","TTL":"10"}"#.into(),
        r#"{"succeeded":true,"responses":[]}"#.into(),
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        ),
        "[".repeat(2000),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}

#[test]
fn whatever_a_board_answers_is_understood_or_an_error() {
    let valid = answers();
    within(STRANGERS_CAP, 9, |chance| {
        for _ in 0..N_INPUTS / 10 {
            let answer = chance.pick(&valid);
            phalanx_net::fuzzing::board_answer(&chance.tamper(answer));
        }
    });
}

#[test]
fn whatever_a_process_manager_says_to_a_rank_that_greets_it_is_understood_or_an_error() {
    let sessions = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
         cmd=my_kvsname kvsname=kvs_1\n",
        "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n    42cmd=fullinit-response;rc=0;rank=0;size=4;xx=1;",
        "    28cmd=fullinit-response;rc=0;x;",
    ];
    let endless = vec![b'x'; 1 << 20];
    within(STRANGERS_CAP, 10, |chance| {
        for _ in 0..10_000 {
            let said = chance.pick(&sessions).as_bytes();
            phalanx_net::fuzzing::board_session(&chance.tamper(said));
        }
        phalanx_net::fuzzing::board_session(&endless);
    });
}
