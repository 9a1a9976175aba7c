//! Which process is saving, and whether it still lives.
//!
//! The name of a draft says who makes it: machine, process and when that process started. A name is there from the first
//! moment on, so there is no time in which a living draft looks abandoned; a lock would have one between making the file
//! and locking it, would be inherited by forked children, and is not supported by all network file systems.

use std::{fmt, fs, str::FromStr};

/// One process on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saver {
    /// A digest of the boot and of the process-id namespace; process ids mean the same where it is equal. 0 if unknown.
    pub machine: u32,
    pub pid: u32,
    /// When the process started, in ticks since the boot: ids are used again.
    pub started: u64,
}

/// What is known of a saver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Lives,
    Dead,
    /// It runs elsewhere, if it does.
    Elsewhere,
}

impl Saver {
    /// This process.
    pub fn own() -> Saver {
        let pid = std::process::id();
        Saver { machine: machine().unwrap_or(0), pid, started: started(pid).unwrap_or(0) }
    }

    pub fn life(self) -> Life {
        if self.machine == 0 || machine() != Some(self.machine) {
            return Life::Elsewhere;
        }
        if started(self.pid) == Some(self.started) { Life::Lives } else { Life::Dead }
    }
}

impl fmt::Display for Saver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}-{}", self.machine, self.pid, self.started)
    }
}

impl FromStr for Saver {
    type Err = ();

    fn from_str(text: &str) -> Result<Saver, ()> {
        let mut words = text.split('-');
        let mut word = || words.next().ok_or(());
        let machine = u32::from_str_radix(word()?, 16).map_err(|_| ())?;
        let pid = word()?.parse().map_err(|_| ())?;
        let started = word()?.parse().map_err(|_| ())?;
        let saver = Saver { machine, pid, started };
        if saver.to_string() == text { Ok(saver) } else { Err(()) }
    }
}

fn machine() -> Option<u32> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let hash = blake3::hash(format!("{boot} {}", namespace.display()).as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    Some(u32::from_le_bytes([a, b, c, d]).max(1))
}

/// When a process started; `None` if it has ended.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in brackets and may hold anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let is_over = matches!(state, "Z" | "X");
    (!is_over).then(|| fields.nth(18)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_another_start_of_it_does_not_and_other_machines_are_unknown() {
        let own = Saver::own();
        assert_eq!(own.life(), Life::Lives);
        assert_eq!(Saver { started: own.started + 1, ..own }.life(), Life::Dead);
        assert_eq!(Saver { machine: own.machine ^ 1, ..own }.life(), Life::Elsewhere);
        assert_eq!(own.to_string().parse(), Ok(own));
    }
}
