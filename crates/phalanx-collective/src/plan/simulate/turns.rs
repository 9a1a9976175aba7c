//! Which turns have been published and released in each arena.

use super::super::step::{N_SLOTS, Step};
use phalanx_core::Rank;

/// All arenas of a world.
pub(super) struct Turns<'a> {
    /// The arena and the place in it of each rank; none for ranks that use none.
    seat: Vec<Option<(usize, usize)>>,
    arenas: Vec<SimulatedArena<'a>>,
}

struct SimulatedArena<'a> {
    group: &'a [Rank],
    /// How many ranks have published and released each turn.
    n_published: Vec<u32>,
    n_released: Vec<u32>,
    last_published: Vec<i64>,
    last_released: Vec<i64>,
    waiters: Vec<Rank>,
}

impl<'a> Turns<'a> {
    pub fn new(n_ranks: u32) -> Turns<'a> {
        Turns { seat: vec![None; n_ranks as usize], arenas: Vec::new() }
    }

    /// A rank says which arena it uses. The first of a group makes it.
    pub fn join(&mut self, me: Rank, group: &'a [Rank], n_turns: u32) {
        let Some(place) = group.iter().position(|&r| r == me) else { return };
        let arena = if place == 0 {
            self.arenas.push(SimulatedArena {
                group,
                n_published: vec![0; n_turns as usize],
                n_released: vec![0; n_turns as usize],
                last_published: vec![-1; group.len()],
                last_released: vec![-1; group.len()],
                waiters: Vec::new(),
            });
            self.arenas.len() - 1
        } else {
            self.seat[group[0].index()].expect("a group begins with its lowest rank, which joined before").0
        };
        self.seat[me.index()] = Some((arena, place));
    }

    pub fn group_len(&self, me: Rank) -> usize {
        self.seat[me.index()].map_or(1, |(arena, _)| self.arenas[arena].group.len())
    }

    pub fn publish(&mut self, me: Rank, turn: u32) {
        let (arena, place) = self.arena(me);
        arena.n_published[turn as usize] += 1;
        arena.last_published[place] = i64::from(turn);
    }

    pub fn release(&mut self, me: Rank, turn: u32) {
        let (arena, place) = self.arena(me);
        let from = (arena.last_released[place] + 1) as usize;
        arena.n_released[from..=turn as usize].iter_mut().for_each(|n| *n += 1);
        arena.last_released[place] = i64::from(turn);
    }

    /// The end of a plan releases all.
    pub fn release_all(&mut self, me: Rank) {
        if self.seat[me.index()].is_some() {
            let (arena, _) = self.arena(me);
            let last = arena.n_released.len() as u32 - 1;
            self.release(me, last);
        }
    }

    /// Whether the step has all it waits for.
    pub fn is_ready(&self, me: Rank, step: &Step) -> bool {
        let (arena, place) = self.seat[me.index()].expect("an arena step belongs to a group");
        let arena = &self.arenas[arena];
        match step {
            Step::Publish { turn, .. } => arena.is_free(*turn),
            Step::Sync { turn } => arena.is_published(*turn),
            Step::ReduceFrom { turn, publish, .. } => {
                let own = u32::from(arena.last_published[place] >= i64::from(*turn));
                let others = arena.n_published[*turn as usize] - own;
                others as usize + 1 >= arena.group.len()
                    && publish.is_none_or(|(turn, _)| arena.is_free(turn))
            }
            Step::Fetch { turn, peer, .. } => {
                let peer = self.seat[peer.index()].expect("a peer is in the group").1;
                arena.last_published[peer] >= i64::from(*turn)
            }
            _ => true,
        }
    }

    pub fn wait(&mut self, me: Rank) {
        self.arena(me).0.waiters.push(me);
    }

    /// Every rank that waits in this rank's arena, to be asked again.
    pub fn take_waiters(&mut self, me: Rank) -> Vec<Rank> {
        match self.seat[me.index()] {
            Some((arena, _)) => std::mem::take(&mut self.arenas[arena].waiters),
            None => Vec::new(),
        }
    }

    fn arena(&mut self, me: Rank) -> (&mut SimulatedArena<'a>, usize) {
        let (arena, place) = self.seat[me.index()].expect("an arena step belongs to a group");
        (&mut self.arenas[arena], place)
    }
}

impl SimulatedArena<'_> {
    fn is_published(&self, turn: u32) -> bool {
        self.n_published[turn as usize] as usize == self.group.len()
    }

    /// ARENA-2.
    fn is_free(&self, turn: u32) -> bool {
        turn < N_SLOTS || self.n_released[(turn - N_SLOTS) as usize] as usize == self.group.len()
    }
}
