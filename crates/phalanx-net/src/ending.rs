//! How processes end, as types: the launcher sees it, the hub passes it on, and ranks decide by it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Code(i32),
    Signal(i32),
}

impl Ending {
    pub fn is_failure(self) -> bool {
        self != Ending::Code(0)
    }

    /// The code a shell would report.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Code(code) => code as u8,
            Ending::Signal(number) => (128 + number) as u8,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ending::Code(code) => write!(f, "exited with code {code}"),
            Ending::Signal(number) => write!(f, "was killed by {}", signal_name(number)),
        }
    }
}

/// What became of a rank's process, as far as the observer can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is gone; nobody has said how.
    Untold,
    Process(Ending),
    /// The host was lost, and with it the agent that watched the process.
    WithHost,
    /// The agent that watched it ended in this way and took it along.
    WithAgent(Ending),
}

impl End {
    /// Whether a rank that ended like this may have left in order just before. A process that crashed has not.
    pub fn may_be_in_order(self) -> bool {
        matches!(self, End::Untold | End::Process(Ending::Code(0)))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Untold => f.write_str("ended"),
            End::Process(ending) => ending.fmt(f),
            End::WithHost => f.write_str("was lost with its host"),
            End::WithAgent(ending) => write!(f, "ended with its host's agent, which {ending}"),
        }
    }
}

/// The name people know a signal by.
pub fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("signal {number}"),
    };
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(Ending::Code(3).exit_code(), 3);
        assert_eq!(Ending::Signal(9).exit_code(), 137);
        assert_eq!(Ending::Signal(9).to_string(), "was killed by SIGKILL");
        assert_eq!(Ending::Signal(40).to_string(), "was killed by signal 40");
    }

    #[test]
    fn only_a_code_of_0_and_silence_may_be_in_order() {
        assert!(End::Untold.may_be_in_order() && End::Process(Ending::Code(0)).may_be_in_order());
        let others = [End::Process(Ending::Code(1)), End::Process(Ending::Signal(15)), End::WithHost];
        assert!(others.iter().all(|end| !end.may_be_in_order()));
    }
}
