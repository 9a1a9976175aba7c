//! PMI 2: the protocol of `srun --mpi=pmi2` over `PMI_FD`. Private to the job: slurmstepd made the socket.
//!
//! A message is its length in six characters, then `cmd=...;name=value;...`. What ranks of other hosts put is visible after the next fence.
//! Slurm answers one `init` for each process: after this session has begun, an MPI library of the same process cannot begin another one, and
//! the other way round. So ranks that have a secret meet at the step's first node instead (DISC-5), and MPI keeps PMI.

use super::{
    Notices, Wait,
    answer::PmiAnswer,
    mpi, process,
    wire::{MAX_ANSWER, Wire, nonsense},
};
use crate::error::BoardError;
use phalanx_core::Rank;
use std::time::Duration;

/// How long the launcher may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);
const HEADER: usize = 6;
/// What the protocol promises to take, ends of strings included.
const LONGEST_VALUE: usize = 1024;
const LAUNCHER: &str = "an answer of slurmstepd";

#[derive(Debug)]
pub struct Pmi2 {
    wire: Wire,
    fd: i32,
    job: String,
}

impl Pmi2 {
    pub fn open(fd: i32, job: &str, rank: Rank, wait: Wait) -> Result<Pmi2, BoardError> {
        if mpi::is_running() {
            return Err(BoardError::MpiFirst);
        }
        Pmi2::greet(Wire::new(process::inherited_socket(fd)?), fd, job, rank, wait)
    }

    pub(super) fn greet(wire: Wire, fd: i32, job: &str, rank: Rank, wait: Wait) -> Result<Pmi2, BoardError> {
        wire.send(b"cmd=init pmi_version=2 pmi_subversion=0\n")?;
        PmiAnswer::expect(&wire.line(wait, LAUNCHER)?, ' ', "response_to_init")?.succeeded()?;
        let board = Pmi2 { wire, fd, job: job.to_string() };
        let question = format!("cmd=fullinit;pmijobid={job};pmirank={rank};threaded=FALSE;");
        board.ask(&question, "fullinit-response", wait, LAUNCHER)?.succeeded()?;
        Ok(board)
    }

    fn ask(&self, question: &str, answer: &str, wait: Wait, whom: &str) -> Result<PmiAnswer, BoardError> {
        self.wire.send(format!("{:HEADER$}{question}", question.len()).as_bytes())?;
        let header = self.wire.text(HEADER, wait, whom)?;
        let n: usize = header.trim().parse().map_err(|_| nonsense(&header))?;
        if n > MAX_ANSWER {
            return Err(nonsense(&header));
        }
        PmiAnswer::expect(&self.wire.text(n, wait, whom)?, ';', answer)
    }
}

impl Notices for Pmi2 {
    fn publish(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        if text.len() > self.longest() {
            return Err(BoardError::TooLong { key: key.into(), n: text.len(), longest: self.longest() });
        }
        self.ask(&format!("cmd=kvs-put;key={key};value={text};"), "kvs-put-response", wait, LAUNCHER)?
            .succeeded()
    }

    fn replace(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        self.publish(key, text, wait)
    }

    fn settle(&mut self, wait: Wait) -> Result<(), BoardError> {
        let whom = "all ranks (PMI does not say which are missing)";
        self.ask("cmd=kvs-fence;", "kvs-fence-response", wait, whom)?.succeeded()
    }

    fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError> {
        let question = format!("cmd=kvs-get;jobid={};srcid=-1;key={key};", self.job);
        let answer = self.ask(&question, "kvs-get-response", wait, LAUNCHER)?;
        answer.succeeded()?;
        match answer.get("found") {
            Some("TRUE") => answer.word("value"),
            _ => Err(BoardError::Missing { rank: by, key: key.into() }),
        }
    }

    fn longest(&self) -> usize {
        LONGEST_VALUE - 1
    }

    fn finish(&mut self) {
        if process::still_has(self.fd, self.wire.socket()) {
            let _ = self.ask("cmd=finalize;", "finalize-response", Wait::within(FAREWELL), LAUNCHER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{
        collections::BTreeMap,
        io::{BufRead, BufReader, Read, Write},
        os::{fd::OwnedFd, unix::net::UnixStream},
        thread::JoinHandle,
    };

    const SOON: Duration = Duration::from_secs(5);

    fn wire(here: UnixStream) -> Wire {
        Wire::new(OwnedFd::from(here).into())
    }

    fn framed(text: &str) -> Vec<u8> {
        format!("{:6}{text}", text.len()).into_bytes()
    }

    /// Answers like Slurm's plugin for one rank.
    fn slurm(there: UnixStream) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let (mut out, mut kept) = (there.try_clone().unwrap(), BTreeMap::new());
            let (mut from, mut first, mut heard) = (BufReader::new(there), String::new(), Vec::new());
            from.read_line(&mut first).unwrap();
            assert_eq!(first, "cmd=init pmi_version=2 pmi_subversion=0\n");
            out.write_all(b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n").unwrap();
            let mut header = [0; HEADER];
            while from.read_exact(&mut header).is_ok() {
                let n = std::str::from_utf8(&header).unwrap().trim().parse().unwrap();
                let mut text = vec![0; n];
                from.read_exact(&mut text).unwrap();
                let asked = PmiAnswer::parse(std::str::from_utf8(&text).unwrap(), ';').unwrap();
                let word = |name: &str| asked.word(name).unwrap();
                let answer = match word("cmd").as_str() {
                    "fullinit" => "cmd=fullinit-response;rc=0;rank=0;size=4;appnum=-1;".to_string(),
                    "kvs-put" => {
                        kept.insert(word("key"), word("value"));
                        "cmd=kvs-put-response;rc=0;".into()
                    }
                    "kvs-fence" => "cmd=kvs-fence-response;rc=0;".into(),
                    "kvs-get" => match kept.get(&word("key")) {
                        Some(value) => format!("cmd=kvs-get-response;rc=0;found=TRUE;value={value};"),
                        None => "cmd=kvs-get-response;rc=0;found=FALSE;".into(),
                    },
                    "finalize" => "cmd=finalize-response;rc=0;".into(),
                    other => panic!("{other}"),
                };
                out.write_all(&framed(&answer)).unwrap();
                heard.push(word("cmd"));
            }
            heard
        })
    }

    #[test]
    fn what_is_put_can_be_got_after_the_fence() {
        use std::os::fd::AsRawFd;
        let (here, there) = UnixStream::pair().unwrap();
        let server = slurm(there);
        let wait = Wait::within(SOON);
        let number = here.as_raw_fd();
        let mut board = Pmi2::greet(wire(here.try_clone().unwrap()), number, "7.0", Rank(0), wait).unwrap();
        board.publish("k", "10.0.0.1:5,[::1]:6", wait).unwrap();
        board.settle(wait).unwrap();
        assert_eq!(board.look(Rank(0), "k", wait).unwrap(), "10.0.0.1:5,[::1]:6");
        assert!(matches!(board.look(Rank(3), "other", wait), Err(BoardError::Missing { rank: Rank(3), .. })));
        assert!(matches!(board.publish("l", &"x".repeat(1024), wait), Err(BoardError::TooLong { .. })));
        board.finish();
        drop((board, here));
        assert_eq!(server.join().unwrap().last().map(String::as_str), Some("finalize"), "RDZV-4");
    }

    #[test]
    fn a_length_that_no_answer_has_is_refused_before_anything_is_read() {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n999999").unwrap();
        let error = Pmi2::greet(wire(here), -1, "7.0", Rank(0), Wait::within(SOON)).unwrap_err();
        assert!(matches!(error, BoardError::Nonsense { .. }), "RDZV-2: {error}");
    }

    proptest! {
        /// RDZV-2
        #[test]
        fn any_answer_is_understood_or_an_error(first in any::<bool>(), bytes in proptest::collection::vec(any::<u8>(), 0..60), n in 0usize..70) {
            let (here, mut there) = UnixStream::pair().unwrap();
            if first {
                there.write_all(b"cmd=response_to_init rc=0\n").unwrap();
                there.write_all(format!("{n:6}").as_bytes()).unwrap();
            }
            there.write_all(&bytes).unwrap();
            there.shutdown(std::net::Shutdown::Write).unwrap();
            prop_assert!(Pmi2::greet(wire(here), -1, "7.0", Rank(0), Wait::within(SOON)).is_err());
        }
    }
}
