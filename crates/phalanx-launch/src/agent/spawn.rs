//! Starts one rank's process so that it cannot outlive its agent. The only file of this crate with `unsafe`.
//!
//! The kernel kills a rank when the *thread* that started it ends. So the agent's main thread starts all ranks and
//! runs until the agent exits.
//! A rank leads its own process group, so that a signal reaches its children, too.

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Signal, getpid, getppid, set_parent_process_death_signal},
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
};

/// What a rank's process is made of.
pub struct RankProcess<'a> {
    pub argv: &'a [OsString],
    pub cwd: &'a Path,
    pub env: Vec<(OsString, OsString)>,
    /// Stays open in the rank; everything else of the agent's is closed there.
    pub secret: OwnedFd,
    /// Whether its stdin is a pipe; otherwise there is nothing to read.
    pub reads: bool,
    pub cores: Option<CpuSet>,
}

/// Starts the process, with its output on pipes.
pub fn spawn(rank: RankProcess<'_>) -> io::Result<Child> {
    let RankProcess { argv, cwd, env, secret, reads, cores } = rank;
    let agent = getpid();
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).current_dir(cwd).env_clear().envs(env).process_group(0);
    command.stdin(if reads { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let in_the_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(agent) {
            // The agent died before the line above took effect: nobody would ever end this process.
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
        }
        fcntl_setfd(secret.as_fd(), FdFlags::empty())?;
        if let Some(cores) = &cores {
            sched_setaffinity(None, cores)?;
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec of a process that may have other threads, so it may only do what
    // is async-signal-safe. It makes four system calls through rustix, which issues them directly; it takes no lock,
    // does not allocate (the captured values are moved in beforehand, both error conversions keep a number only) and
    // does not panic. The descriptor it changes is owned by the closure and its flags are the child's own copy.
    unsafe { command.pre_exec(in_the_child) };
    command.spawn()
}
