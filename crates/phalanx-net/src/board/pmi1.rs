//! PMI 1: the text protocol of hydra (`mpiexec` of MPICH and Intel MPI) over `PMI_FD`. Private to the job: the launcher made the socket.
//!
//! A question is a line `cmd=... name=value ...`, and so is its answer. What ranks of other hosts put is visible after the next barrier.
//! An MPI library in the same process uses the same socket. `init` may be said twice, but `finalize` closes the connection for both, so it
//! is said when the process ends, and only if the library has not said it (RDZV-4).

use super::{Notices, Wait, answer::PmiAnswer, process, wire::Wire};
use crate::error::BoardError;
use phalanx_core::Rank;
use std::time::Duration;

/// How long the launcher may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);
const LAUNCHER: &str = "an answer of the process manager";

#[derive(Debug)]
pub struct Pmi1 {
    wire: Wire,
    fd: i32,
    space: String,
    longest_key: usize,
    longest_value: usize,
}

impl Pmi1 {
    pub fn open(fd: i32, wait: Wait) -> Result<Pmi1, BoardError> {
        Pmi1::greet(Wire::new(process::inherited_socket(fd)?), fd, wait)
    }

    pub(super) fn greet(wire: Wire, fd: i32, wait: Wait) -> Result<Pmi1, BoardError> {
        let mut board =
            Pmi1 { wire, fd, space: String::new(), longest_key: usize::MAX, longest_value: usize::MAX };
        let answer =
            board.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", wait, LAUNCHER)?;
        answer.succeeded()?;
        let maxes = board.ask("cmd=get_maxes", "maxes", wait, LAUNCHER)?;
        board.longest_key = maxes.number("keylen_max")?;
        board.longest_value = maxes.number("vallen_max")?;
        board.space = board.ask("cmd=get_my_kvsname", "my_kvsname", wait, LAUNCHER)?.word("kvsname")?;
        Ok(board)
    }

    fn ask(&self, question: &str, answer: &str, wait: Wait, whom: &str) -> Result<PmiAnswer, BoardError> {
        self.wire.send(format!("{question}\n").as_bytes())?;
        PmiAnswer::expect(&self.wire.line(wait, whom)?, ' ', answer)
    }
}

impl Notices for Pmi1 {
    fn publish(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        // Both lengths count the end of the string.
        if key.len() >= self.longest_key || text.len() >= self.longest_value {
            let (key, longest) = (key.to_string(), self.longest_value);
            return Err(BoardError::TooLong { key, n: text.len(), longest });
        }
        let question = format!("cmd=put kvsname={} key={key} value={text}", self.space);
        self.ask(&question, "put_result", wait, LAUNCHER)?.succeeded()
    }

    fn replace(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        self.publish(key, text, wait)
    }

    fn settle(&mut self, wait: Wait) -> Result<(), BoardError> {
        let answer = self.ask(
            "cmd=barrier_in",
            "barrier_out",
            wait,
            "all ranks (PMI does not say which are missing)",
        )?;
        answer.succeeded()
    }

    fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError> {
        let question = format!("cmd=get kvsname={} key={key}", self.space);
        let answer = self.ask(&question, "get_result", wait, LAUNCHER)?;
        answer.succeeded().map_err(|_| BoardError::Missing { rank: by, key: key.into() })?;
        answer.word("value")
    }

    fn longest(&self) -> usize {
        self.longest_value.saturating_sub(1)
    }

    fn finish(&mut self) {
        if process::still_has(self.fd, self.wire.socket()) {
            // The process ends anyway: a launcher that does not answer is not waited for.
            let _ = self.ask("cmd=finalize", "finalize_ack", Wait::within(FAREWELL), LAUNCHER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{
        collections::BTreeMap,
        io::{BufRead, BufReader, Write},
        os::{fd::OwnedFd, unix::net::UnixStream},
        thread::JoinHandle,
    };

    const SOON: Duration = Duration::from_secs(5);

    fn wire(here: UnixStream) -> Wire {
        Wire::new(OwnedFd::from(here).into())
    }

    /// Answers like hydra for one rank.
    fn hydra(there: UnixStream) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let (mut out, mut kept) = (there.try_clone().unwrap(), BTreeMap::new());
            let mut heard = Vec::new();
            for line in BufReader::new(there).lines().map_while(Result::ok) {
                let asked = PmiAnswer::parse(&line, ' ').unwrap();
                let word = |name: &str| asked.word(name).unwrap();
                let answer = match word("cmd").as_str() {
                    "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_string(),
                    "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
                    "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1".into(),
                    "put" => {
                        let new = kept.insert(word("key"), word("value")).is_none();
                        format!("cmd=put_result rc={} msg=x", if new { 0 } else { -1 })
                    }
                    "barrier_in" => "cmd=barrier_out".into(),
                    "get" => match kept.get(&word("key")) {
                        Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                        None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
                    },
                    "finalize" => "cmd=finalize_ack".into(),
                    other => panic!("{other}"),
                };
                writeln!(out, "{answer}").unwrap();
                heard.push(word("cmd"));
            }
            heard
        })
    }

    #[test]
    fn what_is_put_can_be_got_after_the_barrier() {
        let (here, there) = UnixStream::pair().unwrap();
        let server = hydra(there);
        let wait = Wait::within(SOON);
        let mut board = Pmi1::greet(wire(here), -1, wait).unwrap();
        assert_eq!(board.longest(), 1023);
        board.publish("k", "10.0.0.1:5,[::1]:6", wait).unwrap();
        board.settle(wait).unwrap();
        assert_eq!(board.look(Rank(0), "k", wait).unwrap(), "10.0.0.1:5,[::1]:6");
        let missing = board.look(Rank(3), "other", wait).unwrap_err().to_string();
        assert_eq!(missing, "rank 3 has put nothing under \"other\"; is it another version of phalanx?");
        assert!(matches!(board.publish("k", "again", wait), Err(BoardError::Refused { .. })));
        assert!(matches!(board.publish("l", &"x".repeat(1024), wait), Err(BoardError::TooLong { .. })));
        // RDZV-4: the descriptor with this number is not this socket, so another library has closed it, and said goodbye.
        board.finish();
        drop(board);
        assert!(!server.join().unwrap().contains(&"finalize".to_string()), "RDZV-4");
    }

    #[test]
    fn it_says_goodbye_while_the_process_still_has_the_socket() {
        use std::os::fd::AsRawFd;
        let (here, there) = UnixStream::pair().unwrap();
        let server = hydra(there);
        let number = here.as_raw_fd();
        let mut board = Pmi1::greet(wire(here.try_clone().unwrap()), number, Wait::within(SOON)).unwrap();
        board.finish();
        drop((board, here));
        assert_eq!(server.join().unwrap().last().map(String::as_str), Some("finalize"), "RDZV-4");
    }

    proptest! {
        /// RDZV-2
        #[test]
        fn any_answer_is_understood_or_an_error(lines in proptest::collection::vec("(cmd=)?[ -~]{0,60}", 1..6)) {
            let (here, mut there) = UnixStream::pair().unwrap();
            there.write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
            there.shutdown(std::net::Shutdown::Write).unwrap();
            prop_assert!(Pmi1::greet(wire(here), -1, Wait::within(SOON)).is_err());
        }
    }
}
