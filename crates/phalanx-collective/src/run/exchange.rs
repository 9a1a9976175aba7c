//! Runs the link steps of a plan: several transfers at once, segmented, reduced as they arrive.
//!
//! Every message begins with a header that repeats what the sender calls, so that ranks that disagree find out before any
//! element is used.

use super::{Stop, ear::Ear, memory::Buffers};
use crate::call::CallSignature;
use crate::plan::step::{Fold, Recv, Send, Span};
use phalanx_core::{Rank, kernel::ReduceKernel};
use phalanx_net::{
    Link, NetError, World,
    arena::Patience,
    lost::{Cause, Lost},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io::{self, IoSlice},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Magic, what, count, call, payload bytes, factors before and after.
const HEADER: usize = 56;
const MAGIC: u64 = u64::from_le_bytes(*b"PHLXdat2");
/// One system call moves at most this much, so that sending and receiving take turns.
const SEGMENT: usize = 1 << 20;
/// How long to wait for the verdict on a peer whose link broke, before the broken link is all that can be said.
const VERDICT: Duration = Duration::from_millis(250);
/// After this long a waiting rank says whom it waits for.
const STALL: Duration = Duration::from_secs(10);
/// Nothing is awaited this long without a look around.
const NAP: Duration = Duration::from_secs(1);
/// Where something has happened already, the end is near.
const SHORT_NAP: Duration = Duration::from_millis(10);

/// What the link steps of one call need.
pub(crate) struct LinkRun<'a> {
    pub world: &'a Arc<World>,
    /// Opened when a call first sleeps.
    pub ear: &'a mut Option<Ear>,
    /// The world rank of each rank of the communicator.
    pub members: &'a [Rank],
    pub words: CallSignature,
    pub call: u64,
    /// The communicator's number: its links are its own.
    pub stream: u32,
    /// Where arriving elements wait to be reduced.
    pub staging: &'a mut Vec<u8>,
    pub patience: Patience,
    pub timeout: Duration,
    /// Whether a person was told that this call waits.
    pub told: bool,
    /// For tests.
    pub fault: Option<&'a WireFault>,
}

/// For tests: one bit of the next message that a rank sends is turned on its way.
#[derive(Debug, Default)]
pub struct WireFault {
    /// One more than the number of the bit, counted round the message; 0: none.
    bit: AtomicU64,
}

impl WireFault {
    pub fn turn(&self, bit: u64) {
        self.bit.store(bit + 1, Ordering::SeqCst);
    }

    /// Whether it has happened.
    pub fn is_done(&self) -> bool {
        self.bit.load(Ordering::SeqCst) == 0
    }

    /// The payload with a bit turned, and the byte that has it.
    fn turned(&self, payload: &[u8]) -> Option<(Vec<u8>, usize)> {
        let bit = self.bit.load(Ordering::SeqCst).checked_sub(1)?;
        let mut turned = payload.to_vec();
        let at = (bit / 8) as usize % payload.len();
        turned[at] ^= 1 << (bit % 8);
        Some((turned, at))
    }
}

struct Outgoing {
    link: Arc<Link>,
    header: [u8; HEADER],
    span: Span,
    done: usize,
    total: usize,
}

struct Incoming {
    link: Arc<Link>,
    rank: Rank,
    header: [u8; HEADER],
    span: Span,
    fold: Fold,
    /// Bytes of header and payload that arrived.
    done: usize,
    total: usize,
    /// Bytes of an element that has only partly arrived, kept at the start of the staging area of this transfer.
    partial: usize,
    staging_at: usize,
}

impl LinkRun<'_> {
    pub fn exchange(
        &mut self,
        sends: &[Send],
        recvs: &[Recv],
        buffers: &mut Buffers<'_>,
        reduction: Option<&ReduceKernel>,
    ) -> Result<(), Stop> {
        let size = buffers.elem_bytes();
        let mut outgoing = Vec::with_capacity(sends.len());
        for send in sends.iter().filter(|s| s.src.len > 0) {
            let bytes = send.src.len as usize * size;
            let link = self.link(send.to)?;
            outgoing.push(Outgoing {
                link,
                header: self.header(bytes),
                span: send.src,
                done: 0,
                total: HEADER + bytes,
            });
        }
        let mut incoming = Vec::with_capacity(recvs.len());
        let mut staging_len = 0;
        for recv in recvs.iter().filter(|r| r.dst.len > 0) {
            let bytes = recv.dst.len as usize * size;
            let staging_at = staging_len;
            if recv.fold != Fold::Store {
                staging_len += bytes.min(SEGMENT) + size;
            }
            incoming.push(Incoming {
                link: self.link(recv.from)?,
                rank: self.members[recv.from.index()],
                header: [0; HEADER],
                span: recv.dst,
                fold: recv.fold,
                done: 0,
                total: HEADER + bytes,
                partial: 0,
                staging_at,
            });
        }
        if self.staging.len() < staging_len {
            self.staging.resize(staging_len, 0);
        }
        self.drive(&mut outgoing, &mut incoming, buffers, reduction)
    }

    fn drive(
        &mut self,
        outgoing: &mut [Outgoing],
        incoming: &mut [Incoming],
        buffers: &mut Buffers<'_>,
        reduction: Option<&ReduceKernel>,
    ) -> Result<(), Stop> {
        let mut idle_since: Option<Instant> = None;
        loop {
            let mut moved = false;
            let mut pending = false;
            for i in 0..outgoing.len() {
                // One peer's messages go in order: wait for the earlier ones to the same peer.
                let blocked = outgoing[..i]
                    .iter()
                    .any(|o| o.done < o.total && o.link.peer() == outgoing[i].link.peer());
                let out = &mut outgoing[i];
                if out.done < out.total {
                    pending = true;
                    moved |= !blocked && self.push(out, buffers)?;
                } else if out.link.holds() {
                    // Before the call is over: no other call would send it (CHAN-1).
                    let is_sent = out.link.flush().map_err(|e| self.broken(out.link.peer(), &e))?;
                    pending |= !is_sent;
                }
            }
            for i in 0..incoming.len() {
                let blocked = incoming[..i].iter().any(|o| o.done < o.total && o.rank == incoming[i].rank);
                let inc = &mut incoming[i];
                if inc.done < inc.total {
                    pending = true;
                    moved |= !blocked && self.pull(inc, buffers, reduction)?;
                }
            }
            if !pending {
                return Ok(());
            }
            if moved {
                idle_since = None;
                continue;
            }
            let start = *idle_since.get_or_insert_with(Instant::now);
            let idle = start.elapsed();
            if idle < self.patience.spin_for {
                std::hint::spin_loop();
            } else if idle < self.patience.spin_for + self.patience.yield_for {
                rustix::thread::sched_yield();
            } else {
                self.sleep(outgoing, incoming, start)?;
            }
        }
    }

    /// Sends what goes now.
    fn push(&mut self, out: &mut Outgoing, buffers: &Buffers<'_>) -> Result<bool, Stop> {
        let turned = self.fault.and_then(|fault| fault.turned(buffers.read(out.span)));
        let payload = turned.as_ref().map_or(buffers.read(out.span), |(bytes, _)| bytes.as_slice());
        let sent = if out.done < HEADER {
            let end = payload.len().min(SEGMENT);
            out.link.send_some(&[IoSlice::new(&out.header[out.done..]), IoSlice::new(&payload[..end])])
        } else {
            let at = out.done - HEADER;
            out.link.send_some(&[IoSlice::new(&payload[at..payload.len().min(at + SEGMENT)])])
        };
        let n = sent.map_err(|e| self.broken(out.link.peer(), &e))?;
        if let (Some((_, at)), Some(fault)) = (turned, self.fault)
            && (out.done..out.done + n).contains(&(HEADER + at))
        {
            fault.bit.store(0, Ordering::SeqCst);
        }
        out.done += n;
        Ok(n > 0)
    }

    /// Takes what has arrived.
    fn pull(
        &mut self,
        inc: &mut Incoming,
        buffers: &mut Buffers<'_>,
        reduction: Option<&ReduceKernel>,
    ) -> Result<bool, Stop> {
        if inc.done < HEADER {
            let n = inc.link.recv_some(&mut inc.header[inc.done..]).map_err(|e| self.broken(inc.rank, &e))?;
            inc.done += n;
            if inc.done < HEADER {
                return Ok(n > 0);
            }
            self.check(inc)?;
        }
        let size = buffers.elem_bytes();
        let at = inc.done - HEADER;
        let left = inc.total - inc.done;
        if inc.fold == Fold::Store {
            let into = &mut buffers.write(inc.span)[at..];
            let end = into.len().min(SEGMENT);
            let n = inc.link.recv_some(&mut into[..end]).map_err(|e| self.broken(inc.rank, &e))?;
            inc.done += n;
            return Ok(n > 0);
        }
        let start = inc.staging_at;
        let room = &mut self.staging[start + inc.partial..start + inc.partial + left.min(SEGMENT)];
        let n = inc.link.recv_some(room);
        let n = n.map_err(|e| self.broken(inc.rank, &e))?;
        let have = inc.partial + n;
        let whole = have / size * size;
        if whole > 0 {
            let first = (at - inc.partial) / size;
            let dst = Span { at: inc.span.at + first as u64, len: (whole / size) as u64, ..inc.span };
            let reduction =
                reduction.expect("only reductions fold").only(false, inc.fold == Fold::ReduceLast);
            buffers.fold(&reduction, &self.staging[start..start + whole], dst);
            self.staging.copy_within(start + whole..start + have, start);
        }
        inc.partial = have - whole;
        inc.done += n;
        Ok(n > 0)
    }

    /// The header must say what this rank calls, too.
    fn check(&self, inc: &Incoming) -> Result<(), Stop> {
        judge(&inc.header, self.words, self.call, (inc.total - HEADER) as u64).map_err(|b_call| {
            Stop::Net(NetError::Mismatch {
                a: self.world.rank(),
                a_call: format!("{} (call {})", self.words.describe(), self.call),
                b: inc.rank,
                b_call,
            })
        })
    }

    fn sleep(&mut self, outgoing: &[Outgoing], incoming: &[Incoming], start: Instant) -> Result<(), Stop> {
        // Before the last look at what is known.
        self.listen()?;
        let wants_out = outgoing.iter().filter(|o| o.done < o.total || o.link.holds());
        let wants_in = incoming.iter().filter(|i| i.done < i.total);
        let mut whom: Vec<Rank> = wants_in.clone().map(|i| i.rank).collect();
        whom.extend(wants_out.clone().map(|o| o.link.peer()));
        self.verdict(&whom, start.elapsed())?;
        let mut fds: Vec<PollFd<'_>> =
            wants_out.map(|o| PollFd::from_borrowed_fd(o.link.as_fd(), PollFlags::OUT)).collect();
        fds.extend(wants_in.map(|i| PollFd::from_borrowed_fd(i.link.as_fd(), PollFlags::IN)));
        let nap = if self.world.casualties().any() { SHORT_NAP } else { NAP };
        let _ = self.listen()?.sleep(fds, nap);
        let waited = start.elapsed();
        if waited > self.timeout {
            let rank = whom[0];
            return Err(Stop::Net(NetError::Late { rank, waited_s: waited.as_secs_f64() }));
        }
        if waited > STALL && !self.told {
            self.told = true;
            let ranks: Vec<String> = whom.iter().map(ToString::to_string).collect();
            phalanx_net::voice::warn(&format!(
                "rank {} has waited {} s for ranks {}, which are alive but have not made the call",
                self.world.rank(),
                waited.as_secs(),
                ranks.join(", ")
            ));
        }
        Ok(())
    }

    /// Opens this communicator's ear, unless it is open.
    fn listen(&mut self) -> Result<&Ear, Stop> {
        if self.ear.is_none() {
            let ear = Ear::open(self.world).map_err(|error| {
                Stop::Net(NetError::System { what: "cannot make an event counter", error })
            })?;
            *self.ear = Some(ear);
        }
        Ok(self.ear.as_ref().expect("it was opened just now"))
    }

    /// What is known against waiting for these ranks any longer, `idle` after anything last moved.
    fn verdict(&self, whom: &[Rank], idle: Duration) -> Result<(), Stop> {
        let casualties = self.world.casualties();
        if !casualties.any() {
            return Ok(());
        }
        if let Some(doom) = casualties.doomed() {
            return Err(Stop::Net(doom.into()));
        }
        for &rank in whom {
            let Some(cause) = casualties.cause(rank) else { continue };
            // A process that is gone may have sent all it owed (LOST-1): its link ends by itself once that is read.
            let gone = matches!(cause, Cause::Left | Cause::Ended(_) | Cause::Disconnected);
            if !gone || idle > VERDICT {
                return Err(Stop::Net(NetError::PeerLost { rank, cause }));
            }
        }
        Ok(())
    }

    /// Why a link broke: the rank that broke it may have failed because of another one, so give the verdict a moment.
    fn broken(&mut self, peer: Rank, error: &io::Error) -> Stop {
        let deadline = Instant::now() + VERDICT;
        while Instant::now() < deadline {
            if let Err(stop) = self.verdict(&[peer], VERDICT * 2) {
                return stop;
            }
            match self.listen() {
                Ok(ear) => drop(ear.sleep(Vec::new(), SHORT_NAP)),
                Err(_) => break,
            }
        }
        let cause = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                Cause::Unreachable
            }
            _ => Cause::Disconnected,
        };
        let Lost { rank, cause } = self.world.casualties().suspect(peer, cause);
        Stop::Net(NetError::PeerLost { rank, cause })
    }

    fn link(&self, peer: Rank) -> Result<Arc<Link>, Stop> {
        self.world.link(self.members[peer.index()], self.stream).map_err(Stop::Net)
    }

    fn header(&self, bytes: usize) -> [u8; HEADER] {
        let [pre, post] = self.words.factors;
        let words = [MAGIC, self.words.what, self.words.count, self.call, bytes as u64, pre, post];
        let mut header = [0; HEADER];
        for (place, word) in header.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        header
    }
}

/// Whether the header of a message says that its sender calls this, and sends this number of bytes; if not, what it does call.
pub(crate) fn judge(header: &[u8; HEADER], mine: CallSignature, call: u64, bytes: u64) -> Result<(), String> {
    let word = |i: usize| {
        u64::from_le_bytes(header[i * 8..i * 8 + 8].try_into().expect("seven words of eight bytes"))
    };
    let theirs = CallSignature { what: word(1), count: word(2), factors: [word(5), word(6)] };
    if word(0) != MAGIC {
        return Err("bytes that are not a message".into());
    }
    if mine.same_call(theirs) && word(3) == call && word(4) == bytes {
        return Ok(());
    }
    Err(format!("{} (call {})", theirs.describe(), word(3)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rank says of its memory; the only bits of a header that may differ.
    const MEMORY: [u8; HEADER] = {
        let mut bits = [0; HEADER];
        bits[9] = 3 << 4;
        bits
    };

    #[test]
    fn a_million_headers_of_any_bytes_are_judged_and_only_the_right_one_fits() {
        let mine = CallSignature {
            what: 0x0000_0002_0002_0153,
            count: 1000,
            factors: [0.5f64, 2.0].map(f64::to_bits),
        };
        let words = [MAGIC, mine.what, mine.count, 7, 4000, mine.factors[0], mine.factors[1]];
        let mut right = [0; HEADER];
        for (place, word) in right.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        assert_eq!(judge(&right, mine, 7, 4000), Ok(()));
        let (mut state, mut n_fit) = (1u64, 0);
        for _ in 0..1_000_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut header = right;
            // One bit, or one word, anywhere behind the magic or in it.
            let at = (state >> 33) as usize % HEADER;
            match state >> 62 {
                0 => header[at / 8 * 8..at / 8 * 8 + 8].copy_from_slice(&state.to_le_bytes()),
                1 => header.iter_mut().for_each(|b| *b = b.rotate_left(1) ^ (state >> 40) as u8),
                _ => header[at] ^= 1 << (state >> 59 & 7),
            }
            // Told byte by byte, not by what the code makes of them.
            let fits = (0..HEADER).all(|i| header[i] & !MEMORY[i] == right[i] & !MEMORY[i]);
            n_fit += u32::from(fits);
            assert_eq!(judge(&header, mine, 7, 4000).is_ok(), fits, "CALL-1: {header:x?}");
        }
        assert!(n_fit > 0, "ranks whose memory lies elsewhere fit");
    }
}
