//! The only path from a call to the executor: check, plan, run, and turn a failure into the error that every rank reports.

use crate::{
    cache::{Key, Made},
    call::CallSignature,
    communicator::{Communicator, Scale},
    error::Error,
    explore,
    plan::{
        self, Algorithm, Memory, PlanRequest, Wiring,
        step::{CollectiveOp, Layout},
    },
    run::{self, Clock, Stop, arena::ArenaRun, exchange::LinkRun, memory::Buffers},
};
use phalanx_core::{DType, ReduceOp, Transport, Way, kernel::ReduceKernel};
use phalanx_net::{
    NetError,
    arena::{Lane, SLOT_BYTES},
};
use std::{ops::Range, sync::Arc};

/// The caller's memory.
pub(crate) enum Hands<'a> {
    Apart { input: &'a [u8], output: &'a mut [u8] },
    Together { memory: &'a mut [u8], input: Range<usize>, output: Range<usize> },
}

/// One call, checked.
pub(crate) struct Ask {
    pub op: CollectiveOp,
    pub layout: Layout,
    pub dtype: DType,
    pub reduce: Option<(ReduceOp, Scale)>,
}

impl Ask {
    /// Of the whole vector.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.len() * self.dtype.size() as u64
    }
}

impl Communicator {
    /// The one way into the executor.
    pub(crate) fn call(&mut self, ask: Ask, mut hands: Hands<'_>) -> Result<(), Error> {
        let reduction = match ask.reduce {
            Some((op, scale)) => Some(ReduceKernel::new(ask.dtype, op, scale.pre, scale.post, self.size())?),
            None => None,
        };
        if let Some(doom) = self.world.casualties().any().then(|| self.world.casualties().doomed()).flatten()
        {
            return Err(NetError::from(doom).into());
        }
        let trial = self.begin_trial(&ask)?;
        self.calls += 1;
        // Bytes that another rank writes into memory that a failed call gave back to its owner must not be able to become an invalid bool.
        let is_private = ask.dtype == DType::Bool || self.leaves_the_arena();
        let memory = if is_private { Memory::Private } else { self.memory_of(&hands) };
        let mut outcome = self.attempt(&ask, memory, reduction.as_ref(), &mut hands);
        if matches!(outcome, Err(Stop::MixedMemory)) {
            outcome = self.attempt(&ask, Memory::Private, reduction.as_ref(), &mut hands);
        }
        outcome.map_err(|stop| self.stopped(stop))?;
        match trial {
            Some(began) => self.end_trial(&ask, began),
            None => Ok(()),
        }
    }

    pub(crate) fn stopped(&mut self, stop: Stop) -> Error {
        match stop {
            Stop::Net(error) => {
                let mine = error.doom(self.world.rank());
                let agreed = self.world.doom(mine.clone());
                if agreed == mine { error.into() } else { NetError::from(agreed).into() }
            }
            Stop::Disagreed { a, a_call, b, b_call } => {
                let error = NetError::Mismatch { a, a_call, b, b_call };
                if self.topology.n_hosts() > 1 {
                    self.world.doom(error.doom(self.world.rank()));
                }
                error.into()
            }
            Stop::MixedMemory => unreachable!("private memory is never mixed"),
        }
    }

    fn attempt(
        &mut self,
        ask: &Ask,
        memory: Memory,
        reduction: Option<&ReduceKernel>,
        hands: &mut Hands<'_>,
    ) -> Result<(), Stop> {
        let elem_bytes = ask.dtype.size();
        let in_place = matches!(hands, Hands::Together { .. });
        let made = self.plan(ask, memory, in_place);
        let plan = &made.plan;
        self.last_plan = plan.name;
        let scratch_bytes = plan.scratch_len as usize * elem_bytes;
        if self.scratch.len() < scratch_bytes {
            self.scratch.resize(scratch_bytes, 0);
        }
        let scratch = &mut self.scratch[..scratch_bytes];
        let mut buffers = match hands {
            Hands::Apart { input, output } => Buffers::out_of_place(input, output, scratch, elem_bytes),
            Hands::Together { memory, input, output } => {
                Buffers::in_place(memory, input.clone(), output.clone(), scratch, elem_bytes)
            }
        };
        let factors = ask.reduce.map_or((1.0, 1.0), |(_, s)| (s.pre, s.post));
        let words =
            CallSignature::of(ask.op, &ask.layout, ask.dtype, ask.reduce.map(|r| r.0), factors, memory);
        let arena = self.lane.as_mut().map(|lane| ArenaRun {
            lane,
            words,
            call: self.calls,
            inline: made.inline,
            seats: &self.seats,
            headers: &mut self.headers,
            agreed: false,
            introduced: false,
        });
        let mut links = LinkRun {
            world: &self.world,
            ear: &mut self.ear,
            members: &self.members,
            words,
            call: self.calls,
            stream: self.number,
            staging: &mut self.staging,
            patience: self.world.patience(),
            timeout: self.world.config().timeout,
            told: false,
            fault: self.fault.as_deref(),
        };
        let clock = self.meter.is_timing().then_some(Clock { meter: &self.meter, tiers: &made.tiers });
        run::run(plan, &mut buffers, reduction, (arena, &mut links), clock)?;
        self.meter.count(&made.sent);
        Ok(())
    }

    fn plan(&mut self, ask: &Ask, memory: Memory, in_place: bool) -> Arc<Made> {
        let elem_bytes = ask.dtype.size() as u32;
        let tried = self.explored(ask).map(|(number, ways)| (number, ways.to_vec()));
        let ways = tried.as_ref().map_or(0, |(number, _)| *number);
        let key = Key { op: ask.op, layout: ask.layout.clone(), elem_bytes, in_place, memory, ways };
        if let Some(plan) = self.cache.get(&key) {
            return plan.clone();
        }
        let tiers = match (&self.wiring, tried) {
            (Some(Wiring { grid, .. }), Some((_, ways))) => Some(Wiring { grid: grid.clone(), ways }),
            (wiring, _) => wiring.clone(),
        };
        let request = PlanRequest {
            op: ask.op,
            layout: ask.layout.clone(),
            topology: self.topology.clone(),
            tiers,
            elem_bytes,
            in_place,
            memory,
            slot_bytes: SLOT_BYTES as u64,
            segment_bytes: self.segment_bytes,
            links_only: self.world.config().transport == Transport::Tcp,
        };
        let algorithm = self.algorithm(&request);
        let made = Arc::new(Made::new(plan::build(algorithm, &request, self.me), &request, self.me));
        tracing::info!(
            rank = %self.me, communicator = self.number, op = ?ask.op, elem_bytes, algorithm = made.plan.name, "algorithm chosen"
        );
        self.cache.put(key, made.clone());
        made
    }

    fn algorithm(&self, request: &PlanRequest) -> Algorithm {
        self.forced.filter(|a| a.supports(request)).unwrap_or_else(|| plan::select(request))
    }

    /// What tells ways apart for an allreduce of this size: those with the same label run the same plan. The same on every rank.
    pub(crate) fn label(&self, bytes: u64, ways: &[Way]) -> (Algorithm, Vec<Way>) {
        let wiring = self.wiring.as_ref().map(|w| Wiring { grid: w.grid.clone(), ways: ways.to_vec() });
        // Ranks of one host leave its memory only where they are told to.
        let wiring = if self.topology.n_hosts() == 1 { self.wiring.clone() } else { wiring };
        let request = PlanRequest {
            op: CollectiveOp::Allreduce,
            layout: Layout::Whole { len: explore::bucket(bytes) },
            topology: self.topology.clone(),
            tiers: wiring,
            elem_bytes: 1,
            in_place: true,
            memory: Memory::Private,
            slot_bytes: SLOT_BYTES as u64,
            segment_bytes: self.segment_bytes,
            links_only: self.world.config().transport == Transport::Tcp,
        };
        let algorithm = self.algorithm(&request);
        let by_ways = matches!(algorithm.name(), "tiers" | "tiers-pipelined" | "tiers-overlapped");
        (algorithm, if by_ways { ways.to_vec() } else { Vec::new() })
    }

    /// Whether ranks that share a host were told to use links all the same.
    fn leaves_the_arena(&self) -> bool {
        let wiring = self.wiring.as_ref().filter(|_| self.topology.n_hosts() == 1);
        wiring.is_some_and(|wiring| wiring.n_arena_tiers(&self.topology) == 0)
    }

    /// Whether this rank's buffers are where every rank of the communicator could reach them.
    fn memory_of(&self, hands: &Hands<'_>) -> Memory {
        let Some(arena) = self.lane.as_ref().map(Lane::arena).filter(|_| self.topology.n_hosts() == 1) else {
            return Memory::Private;
        };
        let inside = |bytes: &[u8]| arena.offset_in_heap(bytes.as_ptr(), bytes.len()).is_some();
        let shared = match hands {
            Hands::Apart { input, output } => {
                (inside(input) || input.is_empty()) && (inside(output) || output.is_empty())
            }
            Hands::Together { memory, .. } => inside(memory),
        };
        match shared {
            true => Memory::Arena,
            false if arena.can_peek() => Memory::Readable,
            false => Memory::Private,
        }
    }
}
