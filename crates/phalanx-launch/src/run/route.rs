//! How each host is reached: directly when it is this machine, otherwise through the remote-shell template.

use super::{agents::Gone, ssh};
use crate::{rsh::Rsh, wire::Ending};
use std::{
    ffi::OsString,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// The command that becomes a host's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Direct {
        command: Vec<OsString>,
    },
    Remote {
        command: Vec<OsString>,
        through_shell: bool,
    },
    /// Its own launcher has come, from this address.
    Node {
        address: String,
    },
}

/// How this machine may be called.
#[derive(Clone, Debug)]
pub struct Here {
    pub hostname: String,
    /// What Slurm calls it.
    pub node: Option<String>,
    pub addresses: Vec<IpAddr>,
}

impl Here {
    pub fn is(&self, host: &str) -> bool {
        let ip = host.parse::<IpAddr>();
        host == "localhost"
            || host == self.hostname
            || self.node.as_deref() == Some(host)
            || ip.is_ok_and(|ip| ip.is_loopback() || self.addresses.contains(&ip))
    }
}

/// Where phalanx is: here, and on the other hosts.
#[derive(Clone, Debug)]
pub struct Exes {
    pub here: PathBuf,
    pub remote: PathBuf,
}

impl Route {
    pub fn new(host: &str, here: &Here, rsh: &Rsh, exes: &Exes) -> Route {
        Route::to(host, here, rsh, exes, "agent")
    }

    /// The way to `phalanx word` on a host.
    pub fn to(host: &str, here: &Here, rsh: &Rsh, exes: &Exes, word: &str) -> Route {
        if here.is(host) && !rsh.for_every_host() {
            return Route::Direct { command: vec![exes.here.clone().into(), word.into()] };
        }
        Route::Remote {
            command: rsh.command(host, &exes.remote, word),
            through_shell: rsh.goes_through_a_shell(),
        }
    }

    pub fn command(&self) -> &[OsString] {
        match self {
            Route::Direct { command } | Route::Remote { command, .. } => command,
            Route::Node { .. } => &[],
        }
    }

    /// Whether it leads out of this machine.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Route::Direct { .. })
    }

    /// Slurm leads there, by our template or by the user's.
    pub fn is_srun(&self) -> bool {
        let Route::Remote { command, .. } = self else { return false };
        Path::new(&command[0]).file_name().is_some_and(|name| name == "srun")
    }

    pub fn shown(&self) -> String {
        match self {
            Route::Direct { .. } => "this machine".to_string(),
            Route::Remote { command, .. } => joined(command),
            Route::Node { address } => format!("its own launcher, at {address}"),
        }
    }

    /// Why no agent answered, and what to do about it.
    pub fn explain(&self, gone: &Gone) -> (String, String) {
        let ending = gone.ending.map_or("closed its output".to_string(), |e| e.to_string());
        let (command, through_shell) = match self {
            Route::Direct { .. } => return (format!("the agent on this machine {ending}"), String::new()),
            Route::Node { address } => {
                let reason = format!("its launcher at {address} ended before the ranks had started");
                return (reason, "  see what it printed there".to_string());
            }
            Route::Remote { command, through_shell } => (command, *through_shell),
        };
        let (shell, exe) = command.split_at(command.len() - 2);
        let (shell, exe) = (joined(shell), exe[0].to_string_lossy());
        match (&gone.garbage, gone.ending) {
            (_, Some(Ending::Code(127))) => (
                format!("`{shell}` found no {exe} there"),
                "  install the same phalanx at that path, or name another one with --remote-exe".to_string(),
            ),
            (_, Some(Ending::Code(255))) if through_shell => ssh::explain(&gone.words, &shell)
                .unwrap_or_else(|| (format!("`{shell}` could not connect"), format!("  try: {shell} true"))),
            (Some(garbage), _) => (
                format!("`{shell}` did not lead to a phalanx agent: {garbage}"),
                format!("  try: {shell} {exe} --version"),
            ),
            _ => (format!("`{shell}` {ending}"), format!("  try: {shell} {exe} --version")),
        }
    }
}

fn joined(command: &[OsString]) -> String {
    command.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(host: &str, rsh: Option<&str>) -> Route {
        let addresses = vec!["10.0.0.5".parse().unwrap()];
        let here = Here { hostname: "me".to_string(), node: Some("m1".to_string()), addresses };
        let exes = Exes { here: "/p".into(), remote: "/q".into() };
        Route::new(host, &here, &Rsh::new(rsh).unwrap(), &exes)
    }

    #[test]
    fn this_machine_is_started_directly_unless_the_template_names_every_host() {
        for host in ["localhost", "127.0.0.1", "127.0.1.1", "::1", "me", "m1", "10.0.0.5"] {
            assert_eq!(route(host, None).shown(), "this machine", "{host}");
            assert_eq!(route(host, Some("ssh -p 22")).shown(), "this machine", "{host}");
        }
        assert_eq!(route("me", Some("env A={host}")).shown(), "env A=me /q agent");
        assert_eq!(
            route("you", None).shown(),
            "ssh -o BatchMode=yes -o ServerAliveInterval=1 -o ServerAliveCountMax=3 you /q agent"
        );
        assert_eq!(route("10.0.0.6", Some("rsh")).shown(), "rsh 10.0.0.6 /q agent");
    }

    #[test]
    fn explanations_say_what_to_try() {
        let gone = |code| Gone { ending: Some(Ending::Code(code)), ..Gone::default() };
        let (reason, advice) = route("you", Some("my-ssh")).explain(&gone(255));
        assert_eq!(
            (reason.as_str(), advice.as_str()),
            ("`my-ssh you` could not connect", "  try: my-ssh you true")
        );
        let (reason, _) = route("you", Some("my-ssh")).explain(&gone(127));
        assert_eq!(reason, "`my-ssh you` found no /q there");
        let (reason, advice) = route("you", Some("env X={host}")).explain(&gone(1));
        assert_eq!(reason, "`env X=you` exited with code 1");
        assert_eq!(advice, "  try: env X=you /q --version");
        let garbage = Gone { garbage: Some("it said \"Welcome\"".to_string()), ..Gone::default() };
        assert!(route("you", None).explain(&garbage).0.ends_with("agent: it said \"Welcome\""));
    }
}
