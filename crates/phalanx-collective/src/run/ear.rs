//! How a rank that waits for links hears of verdicts.
//!
//! - EAR-1: every communicator has an ear of its own; one that takes note of a verdict leaves it to the others to hear of it, too.

use phalanx_net::World;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

/// An event counter that every verdict raises.
#[derive(Debug)]
pub(crate) struct Ear {
    world: Arc<World>,
    event: Arc<OwnedFd>,
}

impl Ear {
    /// Hears of every verdict from now on; earlier ones are with the casualties.
    pub fn open(world: &Arc<World>) -> io::Result<Ear> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        if let Some(watch) = world.watch() {
            watch.subscribe(event.clone());
        }
        Ok(Ear { world: world.clone(), event })
    }

    /// Sleeps until one of these is ready, a verdict comes in, or the nap is over. Whatever ended it, a signal included: look again. Says whether
    /// there was a verdict.
    pub fn sleep<'fd>(&'fd self, mut fds: Vec<PollFd<'fd>>, nap: Duration) -> bool {
        fds.push(PollFd::new(&*self.event, PollFlags::IN));
        let nap = Timespec { tv_sec: nap.as_secs() as _, tv_nsec: nap.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&nap));
        let heard = fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        if heard {
            // Taken note of; the next verdict raises it again.
            let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        }
        heard
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(watch) = self.world.watch() {
            watch.unsubscribe(&self.event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::{Config, Rank};
    use phalanx_net::{
        discover::{Identity, Meeting},
        hub::Hub,
        secret::Secret,
    };
    use std::net::TcpListener;

    /// Longer than any test may take.
    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> [Arc<World>; 2] {
        let secret = Secret::random();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let hub = Hub::start(vec![listener], secret.clone(), 2).expect("a hub starts");
        let join = |r| {
            let meeting = Meeting::Hub(vec![hub.addresses()[0].to_string()]);
            let identity = Identity::worker(Rank(r), 2, meeting);
            let (secret, mut config) = (secret.clone(), Config::default());
            config.host_id = Some(format!("host{r}"));
            std::thread::spawn(move || World::join(identity, secret, config).expect("the world forms"))
        };
        let joining = [0, 1].map(join);
        let worlds = joining.map(|world| Arc::new(world.join().expect("it joins")));
        // The hub lives as long as the test.
        std::mem::forget(hub);
        worlds
    }

    #[test]
    fn a_verdict_wakes_every_ear_also_when_another_has_taken_note_of_it() {
        let [mine, other] = pair();
        let ears = [Ear::open(&mine).unwrap(), Ear::open(&mine).unwrap()];
        drop(other);
        for ear in &ears {
            assert!(ear.sleep(Vec::new(), LONG), "EAR-1");
        }
        assert!(mine.casualties().cause(Rank(1)).is_some());
    }
}
