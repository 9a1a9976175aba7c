//! Who has put an announcement on a shared board, and whether it is still there: a board that does not forget keeps those of dead jobs.

use crate::{
    auth::{AuthError, Caller, Connector, Purpose, fresh_nonce},
    secret::Secret,
    socket,
};
use phalanx_core::{Epoch, Rank};
use std::{
    fmt,
    io::Read,
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long a process that is alive may take to answer.
pub const ANSWERS: Duration = Duration::from_secs(2);
/// A host rarely has more that lead to it.
const MAX_TRIED: usize = 8;
const MAX_NAME: usize = 64;

/// A process, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    host: String,
    pid: u32,
    /// Seconds since 1970, by its own clock.
    since_s: u64,
}

impl Occupant {
    pub fn this_process() -> Occupant {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host = host.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(MAX_NAME);
        let since_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Occupant { host: host.collect(), pid: std::process::id(), since_s }
    }

    pub fn to_text(&self) -> String {
        format!("{}:{}:{}", self.host, self.pid, self.since_s)
    }

    pub fn parse(text: &str) -> Option<Occupant> {
        let mut parts = text.split(':');
        let (host, pid, since_s) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let is_host = host.len() <= MAX_NAME && !host.contains(|c: char| c.is_control() || c.is_whitespace());
        (is_host && parts.next().is_none()).then(|| Occupant { host: host.to_string(), pid, since_s })
    }
}

/// In brackets behind what it is.
impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.since_s % 86_400;
        let (hours, minutes, seconds) = (s / 3600, s / 60 % 60, s % 60);
        write!(f, "host {}, pid {}, since {hours:02}:{minutes:02}:{seconds:02} UTC", self.host, self.pid)
    }
}

/// Whether a process that knows this secret listens at one of these addresses. With no secret, whether any of ours does. It takes at most twice
/// this time.
pub fn answers(
    addresses: &[SocketAddr],
    secret: Option<&Secret>,
    purpose: Purpose,
    within: Duration,
) -> bool {
    // Side by side: a host that is gone lets each of them wait.
    thread::scope(|scope| {
        let ask = |address: &SocketAddr| {
            let address = *address;
            scope.spawn(move || answers_at(address, secret, purpose, within))
        };
        let asked: Vec<_> = addresses.iter().take(MAX_TRIED).map(ask).collect();
        asked.into_iter().any(|thread| thread.join().unwrap_or(false))
    })
}

fn answers_at(address: SocketAddr, secret: Option<&Secret>, purpose: Purpose, within: Duration) -> bool {
    let within = within.clamp(Duration::from_millis(1), ANSWERS);
    let Ok(mut stream) = TcpStream::connect_timeout(&address, within) else { return false };
    let caller = Caller { rank: Rank(u32::MAX), epoch: Epoch(0), stream: 0 };
    let mut opening = Vec::new();
    let known = secret.cloned().unwrap_or_else(Secret::random);
    let mut connector = Connector::new(known, purpose, caller, fresh_nonce(), &mut opening);
    let timeouts = stream.set_read_timeout(Some(within)).and(stream.set_write_timeout(Some(within)));
    let socket = socket2::SockRef::from(&stream);
    if timeouts.is_err() || socket::send_all(&socket, &opening).is_err() {
        return false;
    }
    // Only to the proof of the other side: this one leaves without a proof of its own.
    loop {
        let mut bytes = [0; 128];
        let want = connector.wants().min(bytes.len());
        let Ok(n @ 1..) = stream.read(&mut bytes[..want]) else { return false };
        match connector.feed(&bytes[..n], &mut Vec::new()) {
            Ok(false) => {}
            Ok(true) => return true,
            Err(AuthError::NotOurs) => return false,
            Err(AuthError::WrongSecret) => return secret.is_none(),
            // Another build, or other wishes: it is of ours, and this is its address.
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Hub;
    use std::net::TcpListener;

    #[test]
    fn who_it_is_comes_back_and_is_shown() {
        let there = Occupant { host: "n0".into(), pid: 7, since_s: 86_400 * 3 + 3723 };
        assert_eq!(Occupant::parse(&there.to_text()), Some(there.clone()));
        assert_eq!(there.to_string(), "host n0, pid 7, since 01:02:03 UTC");
        assert!(Occupant::parse(&Occupant::this_process().to_text()).is_some());
        for text in ["", "a", "a:b:c", "a:1:2:3", "a b:1:2", ":-1:2"] {
            assert_eq!(Occupant::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_a_process_with_the_secret_is_there() {
        let secret = Secret::random();
        let door = || TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = Hub::start(vec![door()], secret.clone(), 2).unwrap();
        assert!(answers(hub.addresses(), Some(&secret), Purpose::Hub, ANSWERS));
        assert!(answers(hub.addresses(), None, Purpose::Hub, ANSWERS), "of another job, but alive");
        let other = Secret::random();
        assert!(!answers(hub.addresses(), Some(&other), Purpose::Hub, ANSWERS), "the port of another job");
        let addresses = hub.addresses().to_vec();
        drop(hub);
        assert!(!answers(&addresses, Some(&secret), Purpose::Hub, ANSWERS));
        assert!(!answers(&[], None, Purpose::Hub, ANSWERS));
    }
}
