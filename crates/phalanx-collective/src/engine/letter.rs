//! The messages between the control threads of two ranks, and how invalid bytes are handled.

use super::negotiate::message::Message;
use serde::{Deserialize, Serialize};

/// Messages are small; the largest hold the descriptions of a few hundred tensors.
pub const MAX_FRAME: usize = 16 << 20;

/// A message and the set whose it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Letter {
    /// The number of the set's communicator.
    pub set: u32,
    /// The sender's place in it.
    pub from: u32,
    pub message: Message,
}

/// For the fuzz target, and the tests below.
pub mod fuzzing {
    use super::{Letter, MAX_FRAME};
    use crate::engine::{
        negotiate::{Input, Negotiator, NegotiatorSetup, fuse::FusionLimits},
        spec::{Form, Kind, Spec},
    };
    use phalanx_core::{DType, Rank};
    use phalanx_net::frame::{self, Decoder};

    /// Members of the set that hears the letters: place 1 has place 0 above it and place 5 below.
    const N: usize = 6;

    fn node(me: usize) -> Negotiator {
        let mut node = Negotiator::new(NegotiatorSetup {
            me,
            members: (0..N).map(Rank::at).collect(),
            limits: FusionLimits { fusion_bytes: 1 << 20, alone_bytes: 1 << 18 },
            cache_capacity: 4,
            board: false,
            replay: true,
            stall_ms: Some(1000),
            abort_ms: None,
            says_where: false,
        });
        // Something that others can complete.
        let form = Form { dtype: DType::F32, shape: vec![3, 4] };
        let spec = Spec::new(Kind::Allgather, vec![form]);
        node.step(0, Input::Submit { name: "gradient".into(), spec }, &mut Vec::new());
        node
    }

    /// Takes a stream of letters as the control thread does, until one cannot be read. The root hears those to even sets, a node within the tree the
    /// others. Gives how many were understood, and how many nodes took one for garbage (CHECK-1).
    pub fn letters(bytes: &[u8]) -> (usize, usize) {
        let mut decoder = Decoder::new(MAX_FRAME);
        decoder.feed(bytes);
        let mut nodes = [node(0), node(1)];
        let (mut n_heard, mut now_us, mut out) = (0, 0, Vec::new());
        while let Ok(Some(letter)) = decoder.take::<Letter>() {
            frame::encode(&letter).expect("what was understood can be said again");
            n_heard += 1;
            now_us += 400_000;
            let (from, node) = (letter.from as usize, &mut nodes[letter.set as usize % 2]);
            // The control thread knows from whom it is.
            if from < N {
                node.step(now_us, Input::Heard { from, message: letter.message }, &mut out);
                node.step(now_us, Input::Flush, &mut out);
            }
            out.clear();
        }
        (n_heard, nodes.iter().filter(|node| node.garbage().is_some()).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        negotiate::message::{Agreed, Announce, Announced, Item, Merged, RankStatus, Response},
        spec::{Form, Kind, Spec},
        whereabouts::Spot,
    };
    use phalanx_core::{DType, Rank};
    use phalanx_net::frame;

    /// What the root may hear from those below (set 0), and place 1 from above and below (set 1).
    fn some() -> Vec<(u32, u32, Message)> {
        let spec = || Spec::new(Kind::Allgather, vec![Form { dtype: DType::F32, shape: vec![3, 4] }]);
        let announce = |places: &[u32]| {
            let rows = places.iter().map(|p| (*p, vec![3])).collect();
            let merged = Merged {
                name: "gradient".into(),
                first: places[0],
                spec: spec(),
                conflict: None,
                rows,
                absent: vec![],
            };
            let submitted = vec![Announced::Full(Box::new(merged))];
            Message::Announce(Announce { generation: 0, submitted, joined: vec![], leaving: None })
        };
        let known = vec![Announced::Known { table: 0, id: 0 }];
        let leaving = Announce { generation: 0, submitted: known, joined: vec![5], leaving: Some(Rank(2)) };
        let agreed =
            Agreed { name: "gradient".into(), spec: spec(), rows: vec![vec![3]; 6], absent: vec![2] };
        let responses = vec![
            Response::NewTable,
            Response::Run(vec![Item::New { agreed: Box::new(agreed), remember: Some(1) }, Item::Known(1)]),
            Response::AllJoined { last: 3 },
            Response::Replay { batches: vec![vec![1], vec![1]] },
        ];
        let status = RankStatus {
            place: 3,
            waiting: vec![("w".into(), 12)],
            last: Some(("v".into(), 3)),
            says_where: true,
        };
        let ready = |count| Message::Ready { generation: 1, count, frozen: true };
        vec![
            (0, 1, announce(&[1, 5])),
            (0, 2, announce(&[2])),
            (0, 3, announce(&[3])),
            (0, 4, announce(&[4])),
            (1, 5, announce(&[5])),
            (1, 5, Message::Announce(leaving)),
            (1, 0, Message::Respond { generation: 0, responses }),
            (0, 3, Message::Waiting(vec![status])),
            (1, 0, Message::Roll),
            (1, 0, Message::Freeze { generation: 1 }),
            (0, 3, ready(5)),
            (1, 5, ready(2)),
            (1, 0, Message::Commit { generation: 1, count: 9 }),
            (0, 4, Message::Final { generation: 1, count: 2 }),
            (1, 0, Message::Stop { generation: 1, count: 7 }),
            (1, 5, Message::Located(vec![(5, Spot::default())])),
        ]
    }

    #[test]
    fn letters_that_were_tampered_with_make_no_node_panic() {
        let all: Vec<Vec<u8>> = some()
            .into_iter()
            .map(|(set, from, message)| frame::encode(&Letter { set, from, message }).unwrap())
            .collect();
        let (mut state, mut n_heard, mut n_garbage) = (7u64, 0, 0);
        let mut chance = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for _ in 0..60_000 {
            let mut bytes = Vec::new();
            for _ in 0..1 + chance(6) {
                let mut letter = all[chance(all.len())].clone();
                // Behind the frame's header, which the tests of frames have tampered with.
                for _ in 0..chance(3) {
                    let at = frame::HEADER + chance(letter.len() - frame::HEADER);
                    letter[at] = [letter[at] ^ 1 << chance(8), chance(256) as u8, 0xff][chance(3)];
                }
                bytes.extend(letter);
            }
            let (heard, garbage) = fuzzing::letters(&bytes);
            (n_heard, n_garbage) = (n_heard + heard, n_garbage + garbage);
        }
        assert!(n_heard > 30_000 && n_garbage > 1000, "CHECK-1: {n_heard} heard, {n_garbage} refused");
    }
}
