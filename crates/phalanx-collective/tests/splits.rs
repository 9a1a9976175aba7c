//! How many communicators there can be, and what happens when there is no room for another.

use crate::support::run_owners;
use phalanx_collective::Communicator;
use phalanx_core::{Rank, ReduceOp};

/// More than there is room for.
const MANY: usize = 1200;

/// Each rank's group in the split number `i`; rank 2 is in every eighth only.
fn group(i: usize, me: u32) -> Vec<Rank> {
    let members = if i.is_multiple_of(8) { vec![Rank(2), Rank(0)] } else { vec![Rank(0), Rank(1)] };
    if members.contains(&Rank(me)) { members } else { vec![] }
}

fn sum(comm: &mut Communicator) -> f32 {
    let mut data = [comm.rank().0 as f32 + 1.0; 3];
    comm.allreduce(&mut data, ReduceOp::Sum).unwrap();
    data[2]
}

/// Splits until there is no room; how many were made, and why not another one.
fn fill(comm: &mut Communicator, kept: &mut Vec<Option<Communicator>>) -> (usize, String) {
    let me = comm.rank().0;
    for i in 0..MANY {
        match comm.split(&group(i, me)) {
            Ok(made) => kept.push(made),
            Err(why) => return (i, why.to_string()),
        }
    }
    panic!("there is always room");
}

#[test]
fn all_ranks_are_told_alike_when_there_is_no_room_and_dropping_makes_room() {
    // On two hosts groups of rank 0 and rank 2 need no shared memory, hence no room.
    for (hosts, n_made) in [(&[3u32][..], 1023), (&[2, 1], 1170)] {
        let told = run_owners(hosts, &[], |mut comm| {
            let (me, mut kept) = (comm.rank().0, Vec::new());
            let (n, why) = fill(&mut comm, &mut kept);
            // One of ranks 2 and 0, and one of ranks 0 and 1.
            drop(kept.drain(..2));
            for i in 0..4 {
                // They come and go, where others were.
                let made = comm.split(&group(i, me)).map(|c| c.map(|mut c| sum(&mut c)));
                assert_eq!(made.unwrap(), (!group(i, me).is_empty()).then_some(3.0), "TENANT-1");
            }
            let again = fill(&mut comm, &mut kept);
            // Not while one of its members still has it.
            let mut last = kept.swap_remove(1);
            assert_eq!(last.is_some(), me < 2);
            if me == 1 {
                last = None;
            }
            let late = comm.split(&group(1, me)).unwrap_err().to_string();
            drop(last);
            let then = comm.split(&group(1, me)).unwrap().map(|mut c| sum(&mut c));
            assert_eq!(then, (me < 2).then_some(3.0));
            assert!(kept.iter_mut().flatten().all(|c| sum(c) == 3.0), "TENANT-1");
            (n, why, again, late)
        });
        let text = "too many communicators: ranks of one host can have 1023 at a time, besides that of all ranks. \
                    Drop communicators that are not needed any more, on all of their ranks";
        assert_eq!(told[0].0, n_made);
        assert!(told.iter().all(|t| *t == told[0]), "{:?}", told.iter().map(|t| t.0).collect::<Vec<_>>());
        for why in [&told[0].1, &told[0].2.1, &told[0].3] {
            assert!(why.starts_with(text), "{why}");
        }
    }
}

/// Two threads of each rank split a communicator each, at once: what is made works, and what is refused is refused on all ranks.
#[test]
fn splits_at_the_same_time_work_or_are_refused_on_all_ranks() {
    let told = run_owners(&[2], &[], |mut comm| {
        let all = [Rank(0), Rank(1)];
        let pair = [comm.split(&all).unwrap().unwrap(), comm.split(&all).unwrap().unwrap()];
        let split_often = |mut comm: Communicator| -> Vec<Result<f32, String>> {
            let split = |_| comm.split(&all).map(|made| sum(&mut made.unwrap())).map_err(|e| e.to_string());
            (0..100).map(split).collect()
        };
        let outcomes = std::thread::scope(|scope| {
            pair.map(|comm| scope.spawn(|| split_often(comm))).map(|thread| thread.join().unwrap())
        });
        comm.barrier().unwrap();
        outcomes
    });
    assert_eq!(told[0], told[1]);
    for outcome in told[0].iter().flatten() {
        match outcome {
            Ok(sum) => assert_eq!(*sum, 3.0),
            Err(why) => assert!(why.contains("split communicators at the same time"), "{why}"),
        }
    }
}
