//! Sessions of worlds whose ranks are threads of this process.

use crate::{
    processes::{World, role, say},
    worlds::{contents, program, samples, world},
};
use phalanx_checkpoint::{About, Checkpoints, Keep, OwnedTensors, Part, PartError, Strictness, TensorInfo};
use phalanx_core::DType;
use phalanx_graph::{Feed, Fetch, Setup};
use phalanx_train::{
    Ranks,
    session::{
        Hook, HookAction, Period, Session, SessionError, SessionOptions, ShardWriters, StateOrigin, StepInfo,
        StopAtStep, StopAtTime, Wanted, Writer, restore, share,
    },
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

const SAMPLES: usize = 12;

/// A directory that is there as long as this is.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("phalanx-session-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path); // Of a process that had this number before.
        fs::create_dir_all(&path).expect("temporary directories can be made");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn options(ranks: Ranks, replicas: usize) -> SessionOptions {
    let setup = Setup { replicas: Some(replicas), ..Setup::default() };
    SessionOptions::new().ranks(Arc::new(ranks)).setup(setup).ignore_signals()
}

/// The number of this rank among how many.
pub fn place(ranks: &Ranks) -> (usize, usize) {
    use phalanx_graph::Collective;
    (ranks.index(), ranks.processes())
}

/// One step on this rank's share of the samples.
pub fn step(session: &mut Session, (me, n): (usize, usize)) -> Result<(), SessionError> {
    let share = SAMPLES / n;
    let (words, labels) = samples(session.global_step(), me * share..(me + 1) * share);
    let feeds = [("words", Feed::Split(&words)), ("label", Feed::Split(&labels))];
    session.run(&feeds, &[Fetch::mean("loss")]).map(drop)
}

type Values = Vec<(String, Vec<u8>)>;

/// Trains to a step and gives the values; without an end if `is_killed`.
fn train(ranks: Ranks, dir: &Path, replicas: usize, last: u64, is_killed: bool) -> (u64, Values) {
    let place = place(&ranks);
    let options =
        options(ranks, replicas).checkpoints(dir).save(Some(Period::Steps(4))).hook(StopAtStep::at(last));
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

/// SESS-1 and SESS-2: also in another world.
#[test]
fn training_that_was_cut_off_and_resumed_has_the_bits_of_one_that_was_not() {
    let (whole, cut) = (Scratch::new("whole"), Scratch::new("cut"));
    let all = world(&[0, 0], |ranks| train(ranks, &whole.0, 2, 10, false));
    assert_eq!(all[0], all[1]);
    world(&[0, 0], |ranks| train(ranks, &cut.0, 2, 6, true));
    let newest =
        Checkpoints::open(&cut.0).latest().expect("it can be read").checkpoint.expect("step 4 was saved");
    assert_eq!((newest.step(), newest.manifest().about.world), (4, 2));
    assert_eq!(newest.manifest().shards.len(), 2, "both ranks write");
    for (from, values) in world(&[0], |ranks| train(ranks, &cut.0, 4, 10, false)) {
        assert_eq!(from, 4);
        assert_eq!(values, all[0].1);
    }
    for dir in [&whole.0, &cut.0] {
        assert!(dir.join("done").exists(), "a training that ended says so");
        let steps = Checkpoints::open(dir).steps().expect("it can be read");
        assert_eq!(steps.last(), Some(&10), "the last step is saved");
    }
}

/// BOUND-1.
#[test]
fn ranks_with_different_clocks_stop_after_the_same_step() {
    let ends = world(&[0, 0, 0], |ranks| {
        let place = place(&ranks);
        let hook = StopAtTime::new(Duration::from_millis(30 + 400 * place.0 as u64));
        let mut session =
            Session::new(&program(), "loss", options(ranks, 1).hook(hook)).expect("a session begins");
        while !session.should_stop() {
            step(&mut session, place).expect("a step runs");
        }
        let stopped = session.stopped().cloned().expect("it has stopped");
        assert!(matches!(step(&mut session, place), Err(SessionError::Ended)), "no step after the end");
        let step = session.global_step();
        session.close().expect("a session ends");
        (step, stopped)
    });
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[1], ends[2]);
    assert_eq!((ends[0].1.rank.0, ends[0].1.reason.by.as_str()), (0, "StopAtTimeHook"));
}

struct FailsAt {
    step: u64,
}

impl Hook for FailsAt {
    fn name(&self) -> &'static str {
        "FailsAt"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        let why = "as it should".to_string();
        if info.step == self.step { vec![HookAction::Fail { why }] } else { Vec::new() }
    }
}

/// BOUND-2.
#[test]
fn a_hook_that_fails_on_one_rank_ends_all_of_them_at_that_step() {
    let dir = Scratch::new("hook");
    let ends = world(&[0, 0, 0], |ranks| {
        let place = place(&ranks);
        let step_of = if place.0 == 2 { 3 } else { 100 };
        let options = options(ranks, 1).checkpoints(&dir.0).hook(FailsAt { step: step_of });
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        let why = (0..10).find_map(|_| step(&mut session, place).err()).expect("it fails");
        (session.global_step(), session.should_stop(), why.to_string())
    });
    let wanted = "training stopped at step 3: FailsAt of rank 2: as it should";
    assert!(ends.iter().all(|end| *end == (3, true, wanted.to_string())), "{ends:?}");
    assert!(!dir.0.join("done").exists(), "a training that failed has not ended");
}

/// BOUND-2 and WRITE-2: older checkpoints stay.
#[test]
fn a_save_that_fails_is_told_on_all_ranks_with_path_and_cause() {
    let dir = Scratch::new("save");
    let inner = dir.0.join("inner");
    let ends = world(&[0, 0], |ranks| {
        let place = place(&ranks);
        let options = options(ranks, 1).checkpoints(&inner).save(Some(Period::Steps(1)));
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        step(&mut session, place).expect("a step runs");
        step(&mut session, place).expect("a step runs, and the first save has ended");
        if place.0 == 0 {
            // At once: a save that is being written would make the directory again.
            let aside = dir.0.join("aside");
            fs::write(&aside, "a file").expect("it can be written");
            renameat_with(CWD, &aside, CWD, &inner, RenameFlags::EXCHANGE).expect("they can change places");
        }
        let why = (0..10).find_map(|_| step(&mut session, place).err()).expect("it fails");
        why.to_string()
    });
    assert_eq!(ends[0], ends[1]);
    assert!(ends[0].contains("inner") && ends[0].contains("rank 0"), "{}", ends[0]);
    let whole = Checkpoints::open(dir.0.join("aside")).latest().expect("it can be read").checkpoint;
    assert!(whole.is_some_and(|found| found.verify().is_ok()), "older ones are whole");
}

/// WRITE-4 and BOUND-2: rank 0 alone removes it, after all ranks have begun.
#[test]
fn a_mark_that_cannot_be_removed_ends_all_ranks_at_the_next_boundary() {
    let dir = Scratch::new("mark");
    fs::create_dir(dir.0.join("done")).expect("it can be made");
    let ends = world(&[0, 0], |ranks| {
        let place = place(&ranks);
        let options = options(ranks, 1).checkpoints(&dir.0).save(Some(Period::Steps(1)));
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        let why = step(&mut session, place).expect_err("rank 0 has failed");
        (session.global_step(), session.should_stop(), why.to_string())
    });
    assert_eq!(ends[0], ends[1]);
    let (step, stops, why) = &ends[0];
    assert_eq!((*step, *stops), (1, true));
    assert!(why.starts_with("training stopped at step 1: the checkpoint of rank 0: "), "{why}");
    assert!(why.contains("done"), "{why}");
}

#[test]
fn checkpoints_that_do_not_fit_are_refused_on_all_ranks_and_old_ones_are_removed() {
    let dir = Scratch::new("misfit");
    world(&[0], |ranks| {
        let place = place(&ranks);
        let options = options(ranks, 1).checkpoints(&dir.0).save(Some(Period::Steps(1)));
        let options = options.keep(Keep { last: 2, every: Some(3) }).hook(StopAtStep::at(7));
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        assert_eq!(*session.origin(), StateOrigin::Anew);
        while !session.should_stop() {
            step(&mut session, place).expect("a step runs");
        }
        session.close().expect("a session ends");
    });
    assert_eq!(Checkpoints::open(&dir.0).steps().expect("it can be read"), [3, 6, 7]);
    let mut other = phalanx_graph::Builder::new();
    let build = |b: &mut phalanx_graph::Builder| {
        let x = b.feed("x", DType::F32, [phalanx_graph::BATCH, phalanx_graph::Dim::Fixed(3)])?;
        let y = b.fc(x, 7, phalanx_graph::Act::None)?;
        let loss = b.mean(y)?;
        b.named(loss, "loss")
    };
    let loss = build(&mut other).expect("the program is right");
    let mut other = other.finish().expect("the program is right");
    phalanx_graph::Optimizer::new(phalanx_graph::Rule::Sgd, 0.1)
        .minimize(&mut other, loss)
        .expect("it learns");
    let refused = world(&[0, 0], |ranks| {
        let options = options(ranks, 1).checkpoints(&dir.0).strictness(Strictness::Exact);
        Session::new(&other, "loss", options).expect_err("the checkpoint is another program's").to_string()
    });
    assert!(refused.iter().all(|why| why.contains("fc.w")), "{refused:?}");
}

/// A tensor that all ranks have, and one of this rank alone.
fn parts(rank: u32, common: &str, value: u8) -> OwnedTensors {
    let mut part = OwnedTensors::new();
    part.insert(TensorInfo::new(common, DType::U8, [4]), vec![value; 4]);
    let own = TensorInfo::new(format!("own.{rank}"), DType::U8, [2]).owned_by(rank);
    part.insert(own, vec![value + rank as u8; 2]);
    part
}

/// RESTORE-1 and RESTORE-2.
#[test]
fn each_rank_gets_its_own_back_and_what_does_not_fit_on_one_is_refused_on_all() {
    let dir = Scratch::new("private");
    world(&[0, 0, 0], |ranks| {
        let peers = Arc::new(Arc::new(ranks).peers(1));
        let mut writer =
            Writer::start(Some(&dir.0), Keep { last: 1, every: None }, ShardWriters::Each, peers.clone())
                .expect("it starts")
                .expect("there is a directory");
        let about = About { step: 6, world: 3, ..About::default() };
        writer.save(about, &parts(peers.rank.0, "all", 10)).expect("it is copied");
        writer.wait().expect("it is written");
        assert_eq!(writer.newest(), Some(6));
    });
    let seen = world(&[0, 0], |ranks| {
        let peers = Arc::new(ranks).peers(1);
        let rank = peers.rank.0;
        let mut part = parts(rank, "all", 70);
        let origin = restore(Wanted::Newest(&dir.0), &mut part, &peers, Strictness::Exact).expect("it fits");
        assert_eq!(origin.step(), 6);
        let bytes = |part: &OwnedTensors, name: &str| part.get(name).expect("it is there").to_vec();
        assert_eq!(bytes(&part, "all"), [10; 4]);
        assert_eq!(bytes(&part, &format!("own.{rank}")), [10 + rank as u8; 2]);
        // One rank has another program.
        let mut odd = parts(rank, if rank == 1 { "else" } else { "all" }, 70);
        let why = restore(Wanted::At(&dir.0), &mut odd, &peers, Strictness::Exact).expect_err("ranks differ");
        if rank == 1 {
            assert_eq!(odd, parts(rank, "else", 70), "nothing has changed");
        }
        let mut part = parts(rank, "all", 40 + rank as u8);
        let about = About { epoch: u64::from(rank), ..About::default() };
        let shared = share(about, &mut part, &peers).expect("ranks are alike");
        assert_eq!((shared.epoch, bytes(&part, "all")), (0, vec![40; 4]));
        why.to_string()
    });
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].starts_with("rank 1 cannot restore the training: it has else u8[4]"), "{}", seen[0]);
}

/// A training that is over makes no step, on all ranks.
#[test]
fn a_session_of_a_training_that_is_over_has_stopped() {
    let dir = Scratch::new("over");
    world(&[0, 0], |ranks| train(ranks, &dir.0, 1, 3, false));
    let ends = world(&[0, 0], |ranks| train(ranks, &dir.0, 1, 3, false));
    assert_eq!(ends[0].0, 3);
    assert_eq!(ends[0], ends[1]);
    assert!(dir.0.join("done").exists());
}

/// BOUND-2: what only the chief does, fails on all ranks alike.
#[test]
fn an_event_file_that_cannot_be_made_ends_the_session_on_all_ranks() {
    let dir = Scratch::new("events");
    let file = dir.0.join("file");
    fs::write(&file, "a file").expect("it can be written");
    let ends = world(&[0, 0, 1], |ranks| {
        let options = options(ranks, 1).summaries(file.join("events"));
        Session::new(&program(), "loss", options).expect_err("rank 0 cannot write there").to_string()
    });
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    let says = "training stopped at step 0: the event file of rank 0: ";
    assert!(ends[0].starts_with(says) && ends[0].contains("events"), "{}", ends[0]);
}

/// Writes more than a buffer holds, at one step.
struct Verbose {
    step: u64,
}

impl Hook for Verbose {
    fn name(&self) -> &'static str {
        "Verbose"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        let tag = if info.step == self.step { "x".repeat(1 << 16) } else { "x".into() };
        vec![HookAction::Summary { tag, value: 1.0 }]
    }
}

/// What a rank is. In the test's own process it is nothing.
#[test]
fn events_entry() {
    let Some(dir) = role() else { return };
    let ranks = Ranks::from_env().expect("the world forms");
    let place = place(&ranks);
    let options = options(ranks, 1).summaries(dir).hook(Verbose { step: 2 });
    let mut session = Session::new(&program(), "loss", options).expect("a session begins");
    let why = (0..10).find_map(|_| step(&mut session, place).err()).expect("it does not fit");
    say(&format!("error {why}"));
}

/// BOUND-2.
#[test]
fn an_event_file_that_cannot_be_written_ends_the_session_on_all_ranks() {
    let dir = Scratch::new("events-full");
    // 32 KiB a file, in units of 512 bytes.
    let limit = Some("trap '' XFSZ && ulimit -f 64");
    let role = dir.0.display().to_string();
    let mut world = World::start("session::events_entry", &["a", "b"], &role, limit);
    let mut told = Vec::new();
    for rank in &mut world.ranks {
        told.push(rank.hear("error").expect("the file is too large"));
        assert!(rank.end().success());
    }
    assert_eq!(told[0], told[1]);
    assert!(
        told[0].starts_with("error training stopped at step 2: the event file of rank 0: "),
        "{}",
        told[0]
    );
}

/// A training that failed has not ended, also if it is closed.
#[test]
fn a_session_that_failed_saves_nothing_at_its_end_and_is_not_done() {
    let dir = Scratch::new("failed");
    world(&[0, 0], |ranks| {
        let place = place(&ranks);
        let options = options(ranks, 1).checkpoints(&dir.0).hook(StopAtStep::at(5));
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        step(&mut session, place).expect("a step runs");
        session.run(&[], &[Fetch::mean("loss")]).expect_err("nothing is fed");
        session.close().expect("what failed was told");
    });
    assert!(!dir.0.join("done").exists());
    assert_eq!(Checkpoints::open(&dir.0).steps().expect("it can be read"), [0; 0], "a step that was cut off");
    // A step that runs afterwards shows that the caller has mended it.
    world(&[0, 0], |ranks| {
        let place = place(&ranks);
        let options = options(ranks, 1).checkpoints(&dir.0).hook(StopAtStep::at(2));
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        session.run(&[], &[Fetch::mean("loss")]).expect_err("nothing is fed");
        while !session.should_stop() {
            step(&mut session, place).expect("a step runs");
        }
        session.close().expect("a session ends");
    });
    assert!(dir.0.join("done").exists());
    assert_eq!(Checkpoints::open(&dir.0).steps().expect("it can be read"), [2]);
}

/// Wants one save.
struct SavesAt {
    step: u64,
}

impl Hook for SavesAt {
    fn name(&self) -> &'static str {
        "SavesAt"
    }

    fn after(&mut self, info: &StepInfo<'_>) -> Vec<HookAction> {
        if info.step == self.step { vec![HookAction::Save] } else { Vec::new() }
    }
}

/// BOUND-2 and WRITE-2: the rank is the one that could not save, not the one that tells it.
#[test]
fn a_save_that_failed_beside_the_training_names_the_rank_and_is_an_error_of_saving() {
    let dir = Scratch::new("culprit");
    let ends = world(&[0, 0, 1], |ranks| {
        let place = place(&ranks);
        let own = dir.0.join(if place.0 == 2 { "other" } else { "same" });
        let options = options(ranks, 1).checkpoints(own).save(None).hook(SavesAt { step: 1 });
        let mut session = Session::new(&program(), "loss", options).expect("a session begins");
        let why = (0..100_000).find_map(|_| step(&mut session, place).err()).expect("it cannot be saved");
        let is_over = session.should_stop();
        session.close().expect("what failed was told");
        let SessionError::Save { step, rank, why } = why else { panic!("{why}") };
        (is_over, step, rank.0, why.contains("is not visible here"))
    });
    assert!(ends.iter().all(|end| *end == (true, 1, 2, true)), "{ends:?}");
    assert!(!dir.0.join("same/done").exists());
}

/// A part that cannot be read on one rank.
struct Unread<'a>(&'a OwnedTensors);

impl Part for Unread<'_> {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.0.tensors()
    }

    fn read(&self, _: &str, _: u64, _: &mut [u8]) -> Result<(), PartError> {
        Err("it is busy".into())
    }

    fn write(&mut self, _: &str, _: u64, _: &[u8]) -> Result<(), PartError> {
        Err("it is busy".into())
    }
}

/// WRITE-2: no writer waits for the rank that has nothing to write.
#[test]
fn a_rank_that_cannot_copy_its_share_fails_the_save_on_all_ranks() {
    for shards in [ShardWriters::Each, ShardWriters::chief()] {
        for culprit in [0, 1] {
            let dir = Scratch::new("unread");
            let ends = world(&[0, 0], |ranks| {
                let peers = Arc::new(Arc::new(ranks).peers(1));
                let (rank, keep) = (peers.rank.0, Keep { last: 2, every: None });
                let mut writer = Writer::start(Some(&dir.0), keep, shards, peers)
                    .expect("it starts")
                    .expect("a directory");
                let state = parts(rank, "all", 10);
                let about = |step| About { step, world: 2, ..About::default() };
                let unread = Unread(&state);
                let part: &dyn Part = if rank == culprit { &unread } else { &state };
                writer.save(about(1), part).expect("it is told with the others");
                let why = writer.wait().expect_err("one rank cannot save");
                writer.save(about(2), &state).expect("it is copied");
                writer.wait().expect("the next one is written");
                why.to_string()
            });
            assert_eq!(ends[0], ends[1]);
            let says = format!("step 1 could not be saved: rank {culprit}: the tensor ");
            assert!(ends[0].starts_with(&says) && ends[0].ends_with("it is busy"), "{}", ends[0]);
            assert_eq!(Checkpoints::open(&dir.0).steps().expect("it can be read"), [2]);
        }
    }
}
