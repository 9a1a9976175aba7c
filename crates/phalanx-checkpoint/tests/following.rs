//! Readers beside a writer.

use crate::support::{TempDir, about, empty, state};
use phalanx_checkpoint::{
    Checkpoint, Checkpoints, Follow, Followed, Keep, Newest, Strictness, mark_done, unmark_done,
};
use std::{
    fs, thread,
    time::{Duration, Instant, SystemTime},
};

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn next(follow: &mut Follow) -> Checkpoint {
    match follow.next(deadline()).unwrap() {
        Followed::Checkpoint(checkpoint) => *checkpoint,
        other => panic!("{other:?}"),
    }
}

/// FOLLOW-1, FOLLOW-2.
#[test]
fn a_follower_gets_along_with_a_writer_that_deletes() {
    const N: u64 = 300;
    for newest in [Newest::Each, Newest::Only] {
        let dir = TempDir::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let checkpoints = Checkpoints::create(dir.path()).unwrap();
                for step in 1..=N {
                    checkpoints.save(about(step), &state(step)).unwrap();
                    checkpoints.retain(&Keep { last: 2, every: Some(100) }).unwrap();
                }
                mark_done(dir.path()).unwrap();
            });
            let mut follow = Follow::new(dir.path(), newest);
            let (mut last, mut n_loaded) = (0, 0);
            loop {
                let checkpoint = match follow.next(deadline()).unwrap() {
                    Followed::Checkpoint(checkpoint) => checkpoint,
                    Followed::Done => break,
                    Followed::TimedOut => panic!("after step {last}"),
                };
                assert!(checkpoint.step() > last, "{} after {last}", checkpoint.step());
                last = checkpoint.step();
                let mut got = empty();
                match checkpoint.load(&mut got, Strictness::Exact) {
                    Ok(_) => {
                        assert!(got == state(last), "step {last}");
                        n_loaded += 1;
                    }
                    Err(error) => assert!(error.is_gone(), "step {last}: {error}"),
                }
            }
            assert_eq!(last, N);
            assert!(n_loaded > 0 && follow.take_skipped().is_empty());
        });
    }
}

/// FOLLOW-1.
#[test]
fn each_checkpoint_comes_once_or_only_the_newest() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::open(dir.path());
    let mut each = Follow::new(dir.path(), Newest::Each);
    let mut only = Follow::new(dir.path(), Newest::Only);
    assert!(matches!(each.next(Instant::now()).unwrap(), Followed::TimedOut));
    for step in [3, 1, 2] {
        checkpoints.save(about(step), &state(step)).unwrap();
    }
    assert_eq!([next(&mut each).step(), next(&mut each).step()], [1, 2]);
    assert_eq!(next(&mut only).step(), 3);
    assert!(matches!(only.next(Instant::now()).unwrap(), Followed::TimedOut));
    // The same step, saved again with other content, is another checkpoint.
    checkpoints.save(about(2), &state(7)).unwrap();
    assert_eq!([next(&mut each).step(), next(&mut each).step()], [2, 3]);
    mark_done(dir.path()).unwrap();
    assert!(matches!(each.next(deadline()).unwrap(), Followed::Done));
    // A training that goes on removes the mark.
    unmark_done(dir.path()).unwrap();
    assert!(matches!(each.next(Instant::now()).unwrap(), Followed::TimedOut));
    checkpoints.save(about(4), &state(4)).unwrap();
    assert_eq!((next(&mut each).step(), next(&mut only).step()), (4, 4));
}

/// FOLLOW-3.
#[test]
fn the_mark_of_an_earlier_training_does_not_end_a_follower_that_knows_its_job() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    checkpoints.save(about(1), &state(1)).unwrap();
    mark_done(dir.path()).unwrap();
    let job_began = SystemTime::now();
    let mut ours = Follow::new(dir.path(), Newest::Each).of_job(job_began);
    let mut any = Follow::new(dir.path(), Newest::Each);
    assert!(ours.ended().is_some_and(|(at, is_ours)| at < job_began && !is_ours));
    assert_eq!((next(&mut ours).step(), next(&mut any).step()), (1, 1));
    assert!(matches!(any.next(deadline()).unwrap(), Followed::Done));
    assert!(matches!(ours.next(Instant::now()).unwrap(), Followed::TimedOut), "the training has not begun");
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    assert!(ours.ended().is_some(), "a training that is about to begin may fail");
    unmark_done(dir.path()).unwrap();
    assert_eq!(ours.ended(), None);
    checkpoints.save(about(2), &state(2)).unwrap();
    assert_eq!(next(&mut ours).step(), 2);
    mark_done(dir.path()).unwrap();
    assert!(matches!(ours.next(deadline()).unwrap(), Followed::Done));
    // A mark without a time has that of its file.
    fs::write(dir.path().join("done"), "").unwrap();
    assert!(ours.ended().is_some_and(|(_, is_ours)| is_ours));
    let later = SystemTime::now() + Duration::from_secs(3600);
    let mut later = Follow::new(dir.path(), Newest::Only).of_job(later);
    assert_eq!(next(&mut later).step(), 2);
    assert!(matches!(later.next(Instant::now()).unwrap(), Followed::TimedOut));
}

#[test]
fn one_that_is_not_whole_is_told_once_and_seen_when_it_is() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    checkpoints.save(about(1), &state(1)).unwrap();
    checkpoints.save(about(2), &state(2)).unwrap();
    let shard = dir.path().join("checkpoint-2/shard-0-of-1.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, "").unwrap();
    let mut follow = Follow::new(dir.path(), Newest::Only);
    assert_eq!(next(&mut follow).step(), 1);
    assert!(matches!(follow.next(Instant::now()).unwrap(), Followed::TimedOut));
    let skipped = follow.take_skipped();
    assert_eq!(skipped.iter().map(|s| s.step).collect::<Vec<_>>(), [2]);
    fs::write(&shard, bytes).unwrap();
    assert_eq!(next(&mut follow).step(), 2);
    assert!(follow.take_skipped().is_empty());
}

#[test]
fn a_local_checkpoint_is_seen_without_waiting_for_the_next_look() {
    let dir = TempDir::new();
    let checkpoints = Checkpoints::create(dir.path()).unwrap();
    let mut follow = Follow::new(dir.path(), Newest::Each);
    let mut delays = Vec::new();
    for step in 1..=5 {
        let saved = thread::scope(|scope| {
            let saver = scope.spawn(|| {
                checkpoints.save(about(step), &state(step)).unwrap();
                Instant::now()
            });
            assert_eq!(next(&mut follow).step(), step);
            let seen = Instant::now();
            seen.saturating_duration_since(saver.join().unwrap())
        });
        delays.push(saved);
    }
    delays.sort();
    println!("seen after {delays:?}");
    assert!(delays[2] < Duration::from_millis(500), "{delays:?}");
}
