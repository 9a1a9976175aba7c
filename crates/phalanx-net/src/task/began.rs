//! When the job of this process began.
//!
//! Our launcher tells it. Another launcher is the parent of the processes that it starts, so the job began when the parent did; ranks on
//! its other hosts may compute a slightly different time.

use super::Vars;
use crate::discover::DiscoverError;
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Seconds since 1970, with nine digits behind the point.
pub const JOB_BEGAN: &str = "PHALANX_JOB_BEGAN";

/// When the job began. `None` where no launcher told it and the parent is unknown, as in a container of one process.
pub fn job_began(var: Vars<'_>, parent: u32) -> Result<Option<SystemTime>, DiscoverError> {
    let Some(value) = var(JOB_BEGAN).filter(|value| !value.is_empty()) else { return Ok(began(parent)) };
    match parse(&value) {
        Some(time) => Ok(Some(time)),
        None => Err(DiscoverError::NotANumber { name: JOB_BEGAN, value }),
    }
}

/// The value of [`JOB_BEGAN`] for a job that begins then.
pub fn job_began_value(time: SystemTime) -> String {
    let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

fn parse(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.trim().split_once('.')?;
    let nanos = (fraction.len() == 9).then(|| fraction.parse().ok()).flatten()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanos))
}

/// When a process had begun; `None` if it is not there. Rounded up to a tick: an earlier job may have ended in the tick in which a launcher
/// began, and the ranks of that launcher cannot.
fn began(process: u32) -> Option<SystemTime> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program stands in brackets and may hold anything.
    let ticks: u64 = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(19)?.parse().ok()?;
    let began = Duration::from_secs_f64((ticks + 1) as f64 / rustix::param::clock_ticks_per_second() as f64);
    let now = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    SystemTime::now().checked_sub(now.saturating_sub(began))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_launcher_tells_it_and_another_began_before_its_processes() {
        let told = |value: &str| {
            let value = value.to_string();
            move |name: &str| (name == JOB_BEGAN).then(|| value.clone())
        };
        let at = UNIX_EPOCH + Duration::new(1_700_000_000, 7);
        assert_eq!(job_began_value(at), "1700000000.000000007");
        assert_eq!(job_began(&told("1700000000.000000007"), 0), Ok(Some(at)));
        for wrong in ["soon", "1700000000", "1700000000.7", "-1.000000000"] {
            let error = job_began(&told(wrong), 0).unwrap_err().to_string();
            assert_eq!(error, format!("PHALANX_JOB_BEGAN={wrong:?} is not a number"));
        }
        let nothing = |_: &str| None;
        let parent = job_began(&nothing, std::os::unix::process::parent_id()).unwrap();
        let own = job_began(&nothing, std::process::id()).unwrap().expect("this process is there");
        // A parent outside of the process-id namespace is unknown. Ticks are 10 ms, and the clock may be set meanwhile.
        assert!(parent.is_none_or(|parent| parent <= own + Duration::from_secs(1)), "{parent:?} {own:?}");
        assert!(own <= SystemTime::now() + Duration::from_secs(1), "{own:?}");
        assert_eq!(job_began(&nothing, u32::MAX), Ok(None));
    }
}
