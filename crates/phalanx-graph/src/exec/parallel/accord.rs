//! What the processes of one executor exchange: before a run, during it, and when it fails.
//!
//! A run is a sequence of exchanges that is the same on all processes: first all processes exchange their status, then come the
//! exchanges of the graph, one after the other (SSA-3).
//! - ACCORD-1: every exchange has a name that is the same in every run and on all processes.
//! - ACCORD-2: a process that gives up a run offers `Offer::Nothing` in the next exchange of the sequence, or says so in the
//!   exchange of status. So the run fails on all processes at the same place, and all can run again.
//! - ACCORD-3: then all processes fetch the reason, which the failed process has left for them. The failed process does not
//!   wait for any other before its next run.
//! - ACCORD-4: executors of equal programs belong together in the order in which each process made them. If processes run
//!   executors that do not belong together, all get an error before anything is exchanged, and can run the right ones.

use super::{Collective, CollectiveError, collective::Data, collective::Done, collective::Offer};
use crate::exec::RunError;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
    mpsc::{Receiver, channel},
};

/// Why a process does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no more batches.
    Ended,
    /// Something went wrong, as is said.
    Failed(String),
    /// What it was asked to do is wrong.
    Wrong(String),
}

impl Refusal {
    /// For others; 0 is who has none.
    fn code(&self) -> u8 {
        match self {
            Refusal::Wrong(_) => 1,
            Refusal::Failed(_) => 2,
            Refusal::Ended => 3,
        }
    }

    fn text(&self) -> &str {
        match self {
            Refusal::Wrong(why) | Refusal::Failed(why) => why,
            Refusal::Ended => "",
        }
    }
}

/// How a process stands before a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Samples, and replicas that have some.
    pub samples: usize,
    pub busy: usize,
    /// Whether its store has not begun with the others yet.
    pub is_new: bool,
    /// Whether it will run, and not only prepare.
    pub runs: bool,
    /// Whether it wants what owners have.
    pub gathers: bool,
    /// What it will exchange, as a number: see [`digest`].
    pub digest: u64,
    /// What was written from outside since the last run, as a number: see [`super::outside`].
    pub written: u64,
}

/// Words of a standing; the last one says whether the process refuses.
const WORDS: usize = 9;

impl Standing {
    fn words(&self, number: u64, refuses: bool) -> Vec<i64> {
        let numbers = [self.samples as u64, self.busy as u64, self.digest, self.written, number];
        let flags = [self.is_new, self.runs, self.gathers, refuses].map(u64::from);
        numbers.into_iter().chain(flags).map(|word| word as i64).collect()
    }

    fn of(words: &[i64; WORDS]) -> Told {
        let [samples, busy, digest, written, number, flags @ ..] = words.map(|word| word as u64);
        let [is_new, runs, gathers, refuses] = flags.map(|flag| flag != 0);
        let (samples, busy) = (samples as usize, busy as usize);
        let standing = Standing { samples, busy, is_new, runs, gathers, digest, written };
        Told { standing, number, refuses }
    }
}

/// What a process says before a run.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    standing: Standing,
    /// Its executor's number among those of the same program.
    number: u64,
    /// Whether it does not run.
    refuses: bool,
}

/// One number for a list of words.
pub(super) fn digest<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    for word in words {
        word.iter().copied().chain((word.len() as u64).to_le_bytes()).for_each(&mut add);
    }
    hash
}

/// What will come of an exchange. The thread that has started it tells, if only by going away.
type Pending = Receiver<Result<Vec<Data>, CollectiveError>>;

#[derive(Debug)]
pub(super) struct Accord {
    pub collective: Arc<dyn Collective>,
    label: String,
    /// Counts this process's executors of the same program, in the order in which they were made.
    number: u64,
    /// Known from the first run on (ACCORD-1).
    names: Option<Arc<Names>>,
    n_exchanges: usize,
    /// The next exchange of this pass. Written by the worker that starts one, read between runs and by the thread that starts the
    /// next one, after the schedule has ordered both: relaxed.
    next: AtomicUsize,
    /// Passes of this run after the present one.
    n_passes_left: usize,
    /// What this process has left behind where it gave up. A lock only because receivers are not shared; nobody but the
    /// executor has a look.
    left: Mutex<Vec<Pending>>,
}

#[derive(Debug)]
struct Names {
    base: String,
    exchanges: Vec<String>,
}

impl Accord {
    pub(super) fn new(
        collective: Arc<dyn Collective>,
        label: &str,
        number: u64,
        n_exchanges: usize,
    ) -> Accord {
        Accord {
            number,
            collective,
            label: label.to_string(),
            names: None,
            n_exchanges,
            next: AtomicUsize::new(0),
            n_passes_left: 0,
            left: Mutex::default(),
        }
    }

    pub(super) fn is_alone(&self) -> bool {
        self.collective.processes() == 1
    }

    /// Every process says how it stands; fails alike on all processes if somebody refuses or has another program.
    pub(super) fn agree(&mut self, own: &Standing) -> Result<Vec<Standing>, RunError> {
        self.settle();
        let all = wait(&self.stand(own, false))?;
        // Whatever fails from here on, it is before the first exchange.
        self.begin_pass(0);
        let Some(Data::I64(words)) = all.first() else { return Err(nothing("standing").into()) };
        let (words, _) = words.as_chunks::<WORDS>();
        let told: Vec<Told> = words.iter().map(Standing::of).collect();
        if told.iter().any(|told| told.refuses) {
            let reasons = self.reasons(None);
            return Err(self.told(&reasons, || nothing("reasons").into()));
        }
        let kind = |s: &Standing| (s.digest, s.runs, s.gathers);
        let first = told.first().ok_or_else(|| nothing("standing"))?;
        if let Some(process) = told.iter().position(|t| kind(&t.standing) != kind(&first.standing)) {
            self.withdraw();
            return Err(CollectiveError::Different { process }.into());
        }
        if let Some(process) = told.iter().position(|t| t.number != first.number) {
            let (number, first) = (told[process].number, first.number);
            self.withdraw();
            return Err(CollectiveError::Order { process, number, first }.into());
        }
        Ok(told.into_iter().map(|told| told.standing).collect())
    }

    /// ACCORD-4: executors that do not belong together begin anew, so that all processes can run the right ones.
    fn withdraw(&mut self) {
        if let Some(names) = self.names.take() {
            self.collective.withdraw(&self.label, &names.base);
        }
    }

    /// Compares numbers that all processes should have alike: the first process that has another one than the first,
    /// and which it is.
    pub(super) fn compare(&mut self, own: Vec<i64>) -> Result<Option<(usize, usize)>, CollectiveError> {
        let n = own.len().max(1);
        let all = self.join("values", own)?;
        let mut processes = all.chunks(n).enumerate();
        let differing = |of: &[i64]| of.iter().zip(&all).position(|(a, b)| a != b);
        Ok(processes.find_map(|(process, of)| differing(of).map(|at| (process, at))))
    }

    /// The numbers of all processes, one process behind the other.
    pub(super) fn join(&mut self, what: &str, own: Vec<i64>) -> Result<Vec<i64>, CollectiveError> {
        match wait(&self.start(what, Offer::Join(vec![Data::I64(own)])))?.pop() {
            Some(Data::I64(all)) => Ok(all),
            _ => Err(nothing(what)),
        }
    }

    /// Says, where others say how they stand, that this process does not run.
    pub(super) fn refuse(&mut self, why: &Refusal) {
        self.settle();
        self.say_no(why);
    }

    fn say_no(&mut self, why: &Refusal) {
        let own = self.stand(&Standing::default(), true);
        let reasons = self.reasons(Some(why));
        self.leave([own, reasons]);
    }

    fn stand(&mut self, own: &Standing, refuses: bool) -> Pending {
        let words = Data::I64(own.words(self.number, refuses));
        self.start("samples", Offer::Join(vec![words]))
    }

    /// Every process gets the bytes of one of them.
    pub(super) fn broadcast(
        &mut self,
        what: &str,
        root: usize,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let data = Data::U8(bytes.to_vec());
        let all = wait(&self.start(what, Offer::Broadcast { data, root }))?;
        match all.first() {
            Some(Data::U8(all)) if all.len() == bytes.len() => bytes.copy_from_slice(all),
            _ => return Err(nothing(what)),
        }
        Ok(())
    }

    /// The exchanges of the graph begin, and this many times more after this one.
    pub(super) fn begin_pass(&mut self, n_left: usize) {
        *self.next.get_mut() = 0;
        self.n_passes_left = n_left;
    }

    /// Starts an exchange of the graph, from any worker.
    pub(super) fn bring(&self, exchange: usize, offer: Offer, memory: Vec<Data>, done: Done) {
        let names = self.names.as_ref().expect("everybody has agreed to this run");
        self.next.store(exchange + 1, Ordering::Relaxed);
        self.collective.start_again(&names.exchanges[exchange], offer, memory, done);
    }

    /// Whether this process has begun every exchange of the pass: no other one waits for it then.
    pub(super) fn has_brought_all(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.n_exchanges
    }

    /// A run has failed after every process agreed to it: nobody waits for this process in vain (ACCORD-2). Gives what the
    /// caller is told. `is_known` says that an exchange did not fit, so that every process knows already. This is the only
    /// place where a process gives up what others count on.
    pub(super) fn fail(&mut self, error: RunError, is_known: bool) -> RunError {
        let own = match &error {
            RunError::Collective(_) => None,
            other => Some(Refusal::Failed(other.to_string())),
        };
        match own {
            // Somebody else gave up; this process may have failed besides.
            own if is_known => {
                let reasons = self.reasons(own.as_ref());
                if own.is_none() {
                    return self.told(&reasons, || error);
                }
                self.leave([reasons]);
            }
            // The collective itself fails, for all.
            None => {}
            Some(why) => {
                let next = *self.next.get_mut();
                let next = if next < self.n_exchanges { Some(next) } else { self.first_of_next_pass() };
                match next {
                    Some(exchange) => {
                        let names = self.names();
                        let nothing = self.start_named(&names.exchanges[exchange], Offer::Nothing);
                        let reasons = self.reasons(Some(&why));
                        self.leave([nothing, reasons]);
                    }
                    // Nobody misses it before the next run.
                    None => self.say_no(&why),
                }
            }
        }
        error
    }

    fn first_of_next_pass(&self) -> Option<usize> {
        (self.n_passes_left > 0 && self.n_exchanges > 0).then_some(0)
    }

    /// ACCORD-3: every process's reason, if it has one: a code, a length and a text.
    fn reasons(&mut self, own: Option<&Refusal>) -> Pending {
        let (code, why) = own.map_or((0, ""), |own| (own.code(), own.text()));
        let mut bytes = vec![code];
        bytes.extend((why.len() as u32).to_le_bytes());
        bytes.extend(why.as_bytes());
        self.start("reasons", Offer::Join(vec![Data::U8(bytes)]))
    }

    /// What the first process with a reason says.
    fn told(&self, reasons: &Pending, otherwise: impl FnOnce() -> RunError) -> RunError {
        let all = match wait(reasons) {
            Ok(all) => all,
            Err(error) => return error.into(),
        };
        let first = match all.first() {
            Some(Data::U8(bytes)) => first_reason(bytes, self.collective.processes()),
            _ => None,
        };
        first.unwrap_or_else(otherwise)
    }

    /// Waits until every process has come to where this process gave up: names are free again then.
    fn settle(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pending in std::mem::take(left) {
            // However it ended, it is over.
            let _ = wait(&pending);
        }
    }

    fn leave(&mut self, some: impl IntoIterator<Item = Pending>) {
        self.left.get_mut().unwrap_or_else(PoisonError::into_inner).extend(some);
    }

    fn start(&mut self, what: &str, offer: Offer) -> Pending {
        let name = format!("{}, {what}", self.names().base);
        self.start_named(&name, offer)
    }

    fn names(&mut self) -> Arc<Names> {
        let enroll = || {
            let base = self.collective.enroll(&self.label);
            let exchanges = (0..self.n_exchanges).map(|i| format!("{base}, gradients {i}")).collect();
            Arc::new(Names { base, exchanges })
        };
        self.names.get_or_insert_with(enroll).clone()
    }

    fn start_named(&self, name: &str, offer: Offer) -> Pending {
        let (tell, pending) = channel();
        // Nobody may be left to hear it.
        let done = Box::new(move |answer| drop(tell.send(answer)));
        self.collective.start(name, offer, done);
        pending
    }
}

/// Waits for an answer: the collective gives one to every exchange, if only by its failure.
fn wait(pending: &Pending) -> Result<Vec<Data>, CollectiveError> {
    pending.recv().unwrap_or_else(|_| Err(nothing("exchange")))
}

fn nothing(call: &str) -> CollectiveError {
    let why = "nothing came back".to_string();
    CollectiveError::Failed { call: call.to_string(), why }
}

fn first_reason(mut rest: &[u8], processes: usize) -> Option<RunError> {
    for process in 0..processes {
        let (&code, after) = rest.split_first()?;
        let (length, after) = after.split_first_chunk()?;
        let (why, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let why = || String::from_utf8_lossy(why).into_owned();
        match code {
            0 => rest = after,
            1 => return Some(RunError::Elsewhere { process, why: why() }),
            3 => return Some(CollectiveError::Ended { process }.into()),
            _ => return Some(CollectiveError::Aborted { process, why: why() }.into()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_comes_back_as_it_went() {
        let (digest, written) = (u64::MAX - 3, u64::MAX - 5);
        let (is_new, runs, gathers) = (true, false, true);
        let standing = Standing { samples: 7, busy: 2, is_new, runs, gathers, digest, written };
        let words = standing.words(9, true);
        let told = Told { standing, number: 9, refuses: true };
        assert_eq!(Standing::of(words.as_slice().try_into().unwrap()), told);
    }

    #[test]
    fn the_first_reason_counts_and_what_is_cut_off_is_none() {
        let told = |code: u8, why: &str| {
            let length = (why.len() as u32).to_le_bytes();
            [&[code], &length[..], why.as_bytes()].concat()
        };
        let all = [told(0, ""), told(2, "no disk"), told(3, "")].concat();
        let wanted = CollectiveError::Aborted { process: 1, why: "no disk".into() };
        assert_eq!(first_reason(&all, 3), Some(wanted.into()), "ACCORD-3");
        assert_eq!(first_reason(&all[..8], 3), None);
        let digests = [digest([&b"ab"[..], b"c"]), digest([&b"a"[..], b"bc"])];
        assert_ne!(digests[0], digests[1]);
    }
}
