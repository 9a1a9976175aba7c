//! Waits for the end of a child process, with a deadline.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    io,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

/// How the child ended; `None` if it still runs after so long. An event, not a look now and then: the child's descriptor becomes readable.
pub fn await_end(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + within;
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_end_is_noticed_and_a_deadline_kept() {
        let mut quick = Command::new("false").spawn().unwrap();
        let status = await_end(&mut quick, Duration::from_secs(30)).unwrap();
        assert_eq!(status.and_then(|s| s.code()), Some(1));
        let mut slow = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(await_end(&mut slow, Duration::from_millis(20)).unwrap(), None);
        slow.kill().unwrap();
        assert!(await_end(&mut slow, Duration::from_secs(30)).unwrap().is_some());
    }
}
