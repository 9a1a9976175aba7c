//! Runs the arena steps of a plan.
//!
//! - RUN-1: no step changes a buffer before this rank has seen that every rank of the group makes the same call.
//! - RUN-2: after a disagreement every rank of the group skips the same number of turns, so that the lane stays usable.

use super::{Stop, memory::Buffers, memory::reduce};
use crate::call::CallSignature;
use crate::plan::{
    Memory,
    step::{Plan, Span, Step},
};
use phalanx_core::{Rank, kernel::ReduceKernel};
use phalanx_net::{
    NetError,
    arena::{CallHeader, INLINE_BYTES, Lane, N_SLOTS, SLOT_BYTES},
    ending::End,
    lost::Cause,
};
use smallvec::SmallVec;

/// What the arena steps of one call need.
pub(crate) struct ArenaRun<'a> {
    pub lane: &'a mut Lane,
    pub words: CallSignature,
    pub call: u64,
    /// Everything fits beside the sequence words.
    pub inline: bool,
    /// Position in the lane of each rank of the communicator that is in it.
    pub seats: &'a [Option<u16>],
    /// Every rank's headers, once seen.
    pub headers: &'a mut Vec<CallHeader>,
    pub agreed: bool,
    pub introduced: bool,
}

const NO_SUCH_PROCESS: i32 = rustix::io::Errno::SRCH.raw_os_error();

type Pointers<T> = SmallVec<[T; 8]>;

impl ArenaRun<'_> {
    pub fn step(
        &mut self,
        step: &Step,
        buffers: &mut Buffers<'_>,
        reduction: Option<&ReduceKernel>,
    ) -> Result<(), Stop> {
        match step {
            Step::Publish { turn, parts } => {
                self.acquire(*turn)?;
                for (span, slot_at) in parts {
                    let to = self.slot(self.lane.me(), *turn, *slot_at, *span, buffers);
                    buffers.copy_out(*span, to);
                }
                self.publish(*turn, buffers);
                Ok(())
            }
            Step::ReduceFrom { turn, slot_at, own, dst, publish, last } => {
                self.agree()?;
                let reduction = reduction.expect("only reductions have reducing steps").only(true, *last);
                self.reduce_from(*turn, *slot_at, *own, *dst, *publish, buffers, &reduction)
            }
            Step::Fetch { turn, peer, slot_at, dst } => {
                self.agree()?;
                let seat = self.seat(*peer);
                self.await_turn(seat, *turn)?;
                let from = self.slot(seat, *turn, *slot_at, *dst, buffers);
                buffers.copy_in(from, *dst);
                Ok(())
            }
            Step::Release { turn } => {
                self.agree()?;
                self.lane.release(*turn);
                Ok(())
            }
            Step::Sync { turn } => {
                self.acquire(*turn)?;
                self.publish(*turn, buffers);
                self.agree()?;
                (0..self.lane.n_members()).try_for_each(|seat| self.await_turn(seat, *turn))
            }
            Step::ReduceDirect { at, len, last } => {
                self.agree()?;
                let reduction = reduction.expect("only reductions have reducing steps").only(true, *last);
                self.reduce_direct(*at, *len, buffers, &reduction)
            }
            Step::FetchDirect { peer, at, dst } => {
                self.agree()?;
                self.fetch_direct(self.seat(*peer), *at, *dst, buffers)
            }
            Step::Copy { .. } | Step::Scale { .. } | Step::Exchange { .. } => {
                unreachable!("run() does these itself")
            }
        }
    }

    /// Publishes an empty first turn, with what this rank calls, and sees what the others call.
    pub fn introduce(&mut self, buffers: &Buffers<'_>) -> Result<(), Stop> {
        self.acquire(0)?;
        self.publish(0, buffers);
        self.agree()
    }

    /// Ends the call: every rank has been seen in it, every slot is free again.
    pub fn finish(&mut self, plan: &Plan) -> Result<(), Stop> {
        self.agree()?;
        self.lane.finish(plan.n_turns.max(1));
        Ok(())
    }

    fn acquire(&mut self, turn: u32) -> Result<(), Stop> {
        self.lane.acquire(turn).map_err(|(rank, unmet)| Stop::Net(NetError::of(rank, unmet)))
    }

    fn await_turn(&mut self, seat: usize, turn: u32) -> Result<(), Stop> {
        if seat == self.lane.me() {
            return Ok(());
        }
        self.lane.await_turn(seat, turn).map_err(|(rank, unmet)| Stop::Net(NetError::of(rank, unmet)))
    }

    fn publish(&mut self, turn: u32, buffers: &Buffers<'_>) {
        if !self.introduced {
            self.introduced = true;
            let arena = self.lane.arena();
            let (input, input_len) = buffers.input();
            let (output, output_len) = buffers.output();
            let shared = |address: *const u8, len| match self.words.memory() {
                Memory::Readable => address as u64,
                _ => arena.offset_in_heap(address, len).unwrap_or(u64::MAX),
            };
            let header = CallHeader {
                what: self.words.what,
                count: self.words.count,
                input: shared(input, input_len),
                output: shared(output.cast_const(), output_len),
                call: self.call,
            };
            self.lane.write_header(turn, header);
            if self.words.is_scaled() {
                self.lane.write_factors(turn, self.words.factors);
            }
        }
        self.lane.publish(turn);
    }

    /// RUN-1: waits for every rank's first turn and compares.
    #[inline]
    fn agree(&mut self) -> Result<(), Stop> {
        if self.agreed {
            return Ok(());
        }
        assert!(self.introduced, "PLAN-3: every rank publishes turn 0 first");
        self.headers.clear();
        let mine = self.lane.header(self.lane.me(), 0);
        let mut odd = None;
        let mut mixed = false;
        for seat in 0..self.lane.n_members() {
            self.await_turn(seat, 0)?;
            let header = self.lane.header(seat, 0);
            let mut theirs = CallSignature { what: header.what, count: header.count, factors: [0; 2] };
            if theirs.is_scaled() {
                theirs.factors = self.lane.factors(seat, 0);
            }
            if !self.words.same_call(theirs) || header.call != mine.call {
                odd = odd.or(Some((seat, theirs)));
            }
            mixed |= self.words.memory() != theirs.memory();
            self.headers.push(header);
        }
        self.agreed = true;
        if odd.is_none() && !mixed {
            return Ok(());
        }
        // RUN-2: nobody has published as many turns as the ring has slots without coming here first.
        self.lane.finish(N_SLOTS);
        Err(match odd {
            None => Stop::MixedMemory,
            Some((seat, theirs)) => {
                let (a, b) = (self.lane.member(self.lane.me()), self.lane.member(seat));
                Stop::Disagreed { a, a_call: self.words.describe(), b, b_call: theirs.describe() }
            }
        })
    }

    fn seat(&self, rank: Rank) -> usize {
        usize::from(self.seats[rank.index()].expect("a plan's group shares the lane"))
    }

    #[inline]
    fn slot(&self, seat: usize, turn: u32, slot_at: u64, span: Span, buffers: &Buffers<'_>) -> *mut u8 {
        let size = buffers.elem_bytes();
        let room = if self.inline { INLINE_BYTES } else { SLOT_BYTES };
        let at = slot_at as usize * size;
        assert!(at + span.len as usize * size <= room, "a plan keeps within its slots");
        self.lane.data(seat, turn, self.inline).wrapping_add(at)
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of one step")]
    fn reduce_from(
        &mut self,
        turn: u32,
        slot_at: u64,
        own: Span,
        dst: Span,
        publish: Option<(u32, u64)>,
        buffers: &mut Buffers<'_>,
        reduction: &ReduceKernel,
    ) -> Result<(), Stop> {
        if let Some((result_turn, _)) = publish {
            self.acquire(result_turn)?;
        }
        let me = self.lane.me();
        let mut srcs: Pointers<*const u8> = SmallVec::new();
        for seat in 0..self.lane.n_members() {
            if seat == me {
                srcs.push(buffers.bytes(own).0.cast_const());
            } else {
                self.await_turn(seat, turn)?;
                srcs.push(self.slot(seat, turn, slot_at, dst, buffers).cast_const());
            }
        }
        let mut dsts: Pointers<*mut u8> = SmallVec::new();
        dsts.push(buffers.bytes(dst).0);
        if let Some((result_turn, at)) = publish {
            dsts.push(self.slot(me, result_turn, at, dst, buffers));
        }
        reduce(reduction, &dsts, &srcs, dst.len as usize);
        if let Some((result_turn, _)) = publish {
            self.publish(result_turn, buffers);
        }
        Ok(())
    }

    fn peer_range(&self, base: u64, at: u64, len: u64, buffers: &Buffers<'_>) -> Result<*mut u8, Stop> {
        let size = buffers.elem_bytes() as u64;
        let found = base
            .checked_add(at * size)
            .and_then(|offset| self.lane.arena().peer_bytes(offset, (len * size) as usize));
        found.ok_or(Stop::MixedMemory)
    }

    fn fetch_direct(&self, seat: usize, at: u64, dst: Span, buffers: &mut Buffers<'_>) -> Result<(), Stop> {
        let base = self.headers[seat].input;
        if self.words.memory() == Memory::Arena {
            let from = self.peer_range(base, at, dst.len, buffers)?;
            buffers.copy_in(from, dst);
            return Ok(());
        }
        let rank = self.lane.member(seat);
        let from = base.wrapping_add(at * buffers.elem_bytes() as u64);
        let into = buffers.write(dst);
        self.lane.arena().peek(rank, from, into.as_mut_ptr(), into.len()).map_err(|error| {
            Stop::Net(match error.raw_os_error() {
                Some(NO_SUCH_PROCESS) => NetError::PeerLost { rank, cause: Cause::Ended(End::Untold) },
                _ => NetError::System { what: "cannot read another rank's memory", error },
            })
        })
    }

    fn reduce_direct(
        &self,
        at: u64,
        len: u64,
        buffers: &mut Buffers<'_>,
        reduction: &ReduceKernel,
    ) -> Result<(), Stop> {
        // In blocks that stay in the first-level cache while several destinations are written.
        let size = buffers.elem_bytes() as u64;
        let block = if self.lane.n_members() > 2 { (8 << 10) / size } else { len.max(1) };
        let mut done = 0;
        while done < len {
            let n = block.min(len - done);
            let mut srcs: Pointers<*const u8> = SmallVec::new();
            let mut dsts: Pointers<*mut u8> = SmallVec::new();
            for header in self.headers.iter() {
                srcs.push(self.peer_range(header.input, at + done, n, buffers)?.cast_const());
                dsts.push(self.peer_range(header.output, at + done, n, buffers)?);
            }
            reduce(reduction, &dsts, &srcs, n as usize);
            done += n;
        }
        Ok(())
    }
}
