//! Checkpoints of ranks that have no common directory: the chief writes all of it.

use crate::{
    processes::{World, role, say},
    session::{Scratch, options, place, step},
    worlds::{contents, program, world},
};
use phalanx_checkpoint::{About, Checkpoints, Keep, OwnedTensors, TensorInfo};
use phalanx_core::DType;
use phalanx_train::{
    Ranks,
    session::{Period, Session, SessionError, ShardWriters, StopAtStep, Writer},
};
use rustix::process::Signal;
use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Small, so that there are many.
fn in_pieces(n: usize) -> ShardWriters {
    ShardWriters::Chief { piece_bytes: NonZeroUsize::new(n) }
}

/// What a rank has trained: the step it began with, and the values.
type Trained = (u64, Vec<(String, Vec<u8>)>);

/// Trains to a step, with a directory of this rank's own unless it is common; without an end if `is_killed`.
fn train(ranks: Ranks, dir: &Path, shards: ShardWriters, last: u64, is_killed: bool) -> Trained {
    let place = place(&ranks);
    let own = match shards {
        ShardWriters::Each => dir.to_path_buf(),
        ShardWriters::Chief { .. } => dir.join(place.0.to_string()),
    };
    let options = options(ranks, 1).checkpoints(own).shards(shards);
    let options = options.save(Some(Period::Steps(4))).hook(StopAtStep::at(last));
    let mut session = Session::new(&program(), "loss", options).expect("a session begins");
    let from = session.global_step();
    while !session.should_stop() {
        step(&mut session, place).expect("a step runs");
    }
    let values = contents(session.store());
    if is_killed {
        drop(session);
    } else {
        session.close().expect("a session ends");
    }
    (from, values)
}

/// SENT-1: on one host and on several; a training resumes from there with the same bits.
#[test]
fn only_the_chief_needs_the_directory() {
    for (hosts, piece) in [(&[0, 1][..], 700), (&[0, 1, 2], 1000), (&[0, 0, 1], 1 << 20)] {
        let (whole, apart) = (Scratch::new("sent-whole"), Scratch::new("sent-apart"));
        let wanted = world(hosts, |ranks| train(ranks, &whole.0, ShardWriters::Each, 10, false));
        world(hosts, |ranks| train(ranks, &apart.0, in_pieces(piece), 6, true));
        let chief = Checkpoints::open(apart.0.join("0"));
        let newest = chief.latest().expect("it can be read").checkpoint.expect("step 4 was saved");
        newest.verify().expect("it is whole");
        assert_eq!((newest.step(), newest.manifest().shards.len()), (4, hosts.len()));
        let same = Checkpoints::open(&whole.0).verify(4).expect("it is whole");
        assert_eq!(newest.manifest(), same.manifest(), "what all ranks together would have written");
        for (at, (from, values)) in
            world(hosts, |ranks| train(ranks, &apart.0, in_pieces(piece), 10, false)).into_iter().enumerate()
        {
            assert_eq!(from, 4);
            assert!(values == wanted[at].1, "rank {at} of {hosts:?} has other bits");
        }
        let names =
            fs::read_dir(&apart.0).expect("it can be read").map(|e| e.expect("it can be read").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["0"], "no other rank has a directory");
        assert!(apart.0.join("0/done").exists());
    }
}

/// WRITE-2: without the option, the rank whose directory is another one is named.
#[test]
fn a_rank_with_another_directory_is_named_and_told_what_to_write() {
    let dir = Scratch::new("sent-not");
    let ends = world(&[0, 1], |ranks| {
        let place = place(&ranks);
        let own = dir.0.join(place.0.to_string());
        let options = options(ranks, 1).checkpoints(own).save(Some(Period::Steps(1)));
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        (0..10).find_map(|_| step(&mut session, place).err()).expect("it cannot be saved").to_string()
    });
    assert_eq!(ends[0], ends[1]);
    for says in ["rank 1: the checkpoint that rank 0 has begun is not visible here", "shards=\"rank0\""] {
        assert!(ends[0].contains(says), "{}", ends[0]);
    }
}

/// WRITE-3.
#[test]
fn ranks_that_save_differently_do_not_begin() {
    let dir = Scratch::new("sent-unlike");
    let started = |one: fn(usize) -> (bool, ShardWriters)| {
        let ends = world(&[0, 0, 1], |ranks| {
            let (has_dir, shards) = one(place(&ranks).0);
            let peers = Arc::new(Arc::new(ranks).peers(1));
            let keep = Keep { last: 1, every: None };
            let started = Writer::start(has_dir.then_some(dir.0.as_path()), keep, shards, peers);
            started.map(|writer| writer.is_some()).map_err(|why| why.to_string())
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        ends[0].clone()
    };
    assert_eq!(started(|_| (false, ShardWriters::Each)), Ok(false));
    assert_eq!(started(|_| (true, ShardWriters::chief())), Ok(true));
    let told = started(|rank| (true, if rank == 1 { ShardWriters::Each } else { ShardWriters::chief() }));
    let says = "ranks do not save alike: shards sent to rank 0 on rank 0, shards of each rank on rank 1. Give all ranks the \
                same options";
    assert_eq!(told, Err(says.to_string()));
    let told = started(|rank| (rank != 2, ShardWriters::Each)).expect_err("rank 2 has no directory");
    assert!(told.contains("without a directory for checkpoints on rank 2"), "{told}");
}

/// A tensor that all ranks have, and one of this rank alone.
fn state(rank: u32, common: usize, own: usize) -> OwnedTensors {
    let mut part = OwnedTensors::new();
    part.insert(TensorInfo::new("all", DType::U8, [common]), vec![7; common]);
    let info = TensorInfo::new(format!("own.{rank}"), DType::U8, [own]).owned_by(rank);
    part.insert(info, vec![rank as u8; own]);
    part
}

/// What a rank is: it saves until a save fails and the order says that this is the end. In the test's own process it is nothing.
#[test]
fn saver_entry() {
    let Some(role) = role() else { return };
    let (kind, dir) = role.split_once(' ').expect("an order and a directory");
    let peers = Arc::new(Arc::new(Ranks::from_env().expect("the world forms")).peers(1));
    let rank = peers.rank.0;
    let dir = PathBuf::from(dir).join(rank.to_string());
    let keep = Keep { last: 2, every: None };
    let mut writer = Writer::start(Some(&dir), keep, in_pieces(64 << 10), peers)
        .expect("ranks are alike")
        .expect("there is a directory");
    let mut save = |step: u64, own: usize| -> Result<(), SessionError> {
        writer.save(About { step, world: 2, ..About::default() }, &state(rank, 1 << 20, own))?;
        writer.wait()
    };
    if kind == "full" {
        for (step, own) in [(1, 10), (2, if rank == 1 { 8 << 20 } else { 10 }), (3, 20)] {
            match save(step, own) {
                Ok(()) => say(&format!("saved {step}")),
                Err(why) => say(&format!("error {why}")),
            }
        }
        return;
    }
    for step in 1.. {
        match save(step, 4 << 20) {
            Ok(()) => say(&format!("saved {step}")),
            Err(why) => return say(&format!("error {why}")),
        }
    }
}

/// What the chief has: the newest checkpoint, whole, and what saves have left there.
fn left(dir: &Path) -> (u64, Vec<String>) {
    let chief = Checkpoints::open(dir.join("0"));
    for listed in chief.list().expect("it can be read") {
        listed.checkpoint.and_then(|found| found.verify()).expect("all that is there is whole");
    }
    let newest = chief.latest().expect("it can be read").checkpoint.expect("there is one").step();
    let entries = fs::read_dir(chief.dir()).expect("it can be read");
    let names =
        entries.map(|entry| entry.expect("it can be read").file_name().into_string().expect("our names"));
    (newest, names.filter(|name| name.starts_with('.') && name != ".lock").collect())
}

/// SENT-2: ranks are killed while they save, one save after the other.
#[test]
fn a_rank_that_is_killed_while_it_sends_is_named_on_all_and_old_checkpoints_stay() {
    for (hosts, victim) in [(&["a", "b"][..], 1), (&["a", "b", "c"], 2), (&["a", "a", "b"], 0)] {
        let dir = Scratch::new("sent-killed");
        let mut world = World::start("sent::saver_entry", hosts, &format!("on {}", dir.0.display()), None);
        for rank in &world.ranks {
            rank.hear("saved 3").expect("all of them save");
        }
        world.ranks[victim].signal(Signal::KILL);
        for (at, rank) in world.ranks.iter_mut().enumerate().filter(|(at, _)| *at != victim) {
            let line =
                rank.hear("error").unwrap_or_else(|| panic!("{hosts:?}: rank {at} ended without an error"));
            assert!(line.contains(&format!("rank {victim} is lost")), "{hosts:?}, rank {at}: {line}");
            assert_eq!(rank.hear("anything"), None);
            assert!(rank.end().success());
        }
        let _ = world.ranks[victim].end();
        if victim == 0 {
            // A draft of a saver that is dead; the next training collects it.
            Checkpoints::create(dir.0.join("0")).expect("it can be used");
        }
        let (newest, rest) = left(&dir.0);
        assert!(newest >= 3 && rest.is_empty(), "{hosts:?}: {newest} {rest:?}");
    }
}

/// SENT-2: and the next save, which fits, succeeds.
#[test]
fn a_full_disk_of_the_chief_is_told_on_all_ranks_and_old_checkpoints_stay() {
    let dir = Scratch::new("sent-full");
    // 4 MiB a file, in units of 512 bytes.
    let limit = Some("trap '' XFSZ && ulimit -f 8192");
    let role = format!("full {}", dir.0.display());
    let mut world = World::start("sent::saver_entry", &["a", "b"], &role, limit);
    let mut told = Vec::new();
    for rank in &mut world.ranks {
        rank.hear("saved 1").expect("it fits");
        told.push(rank.hear("error").expect("it does not fit"));
        rank.hear("saved 3").expect("it fits again");
        assert!(rank.end().success());
    }
    assert_eq!(told[0], told[1]);
    for says in
        ["step 2 could not be saved: rank 0: cannot write", "shard-1-of-2.safetensors", "File too large"]
    {
        assert!(told[0].contains(says), "{}", told[0]);
    }
    assert_eq!(left(&dir.0), (3, Vec::new()));
    assert_eq!(Checkpoints::open(dir.0.join("0")).steps().expect("it can be read"), [1, 3]);
}
