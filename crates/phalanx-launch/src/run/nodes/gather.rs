//! Node 0 waits for the launchers of the other hosts, and refuses those that do not fit.

use super::{
    NodeFlags,
    message::{NodeHello, ToNode, WORDS_CAP, common_flags},
};
use crate::{
    agent::cores,
    cli::RunArgs,
    hosts::HostSlots,
    run::{
        LaunchError, setup,
        signals::{self, SignalWatch},
        tell,
    },
};
use phalanx_net::{
    nodes::{self, NodeDoor, NodeLine},
    secret::Secret,
};
use std::{
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

/// How long a launcher may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);

/// The launcher of another host.
#[derive(Debug)]
pub struct Companion {
    pub name: String,
    pub n_slots: u32,
    pub line: NodeLine,
}

/// All other launchers, by node, and what they and this one have in common.
#[derive(Debug)]
pub struct Gathered {
    pub given: Secret,
    pub job: [u8; 16],
    pub companions: Vec<Companion>,
    pub signals: SignalWatch,
}

/// What node 0 learns while it waits.
enum Came {
    Launcher(NodeLine, NodeHello),
    Signal(i32),
}

impl Gathered {
    /// This host and the others, with their slots. Names are made different where they are not: they tell people whose output a line is.
    pub fn hosts(&self, here: &str, n_slots: u32) -> Vec<HostSlots> {
        let this = (here.to_string(), n_slots);
        let all: Vec<(String, u32)> = std::iter::once(this)
            .chain(self.companions.iter().map(|c| (c.name.clone(), c.n_slots)))
            .collect();
        let is_twice = |name: &str| all.iter().filter(|(other, _)| other == name).count() > 1;
        let named = |(node, (name, slots)): (usize, &(String, u32))| HostSlots {
            name: if is_twice(name) { format!("{name}-{node}") } else { name.clone() },
            slots: *slots,
        };
        all.iter().enumerate().map(named).collect()
    }

    /// Ends the job for all other launchers.
    pub fn part(lines: &[NodeLine], code: u8, text: &str) {
        for line in lines {
            // One that is gone needs no goodbye.
            let _ = line.say(&ToNode::Over { code, text: text.to_string() });
        }
    }
}

/// How many ranks this host takes.
pub fn n_slots(args: &RunArgs) -> u32 {
    args.np.unwrap_or_else(cores::n_usable)
}

/// What this launcher says about itself.
pub fn hello(args: &RunArgs, flags: &NodeFlags) -> NodeHello {
    NodeHello {
        build: phalanx_collective::BUILD.to_string(),
        n_nodes: flags.n_nodes,
        node: flags.me,
        host_name: setup::here().hostname,
        n_slots: n_slots(args),
        command: args.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
        flags: common_flags(args),
    }
}

/// Waits for the launchers of all other hosts.
pub fn gather(args: &RunArgs, flags: &NodeFlags) -> Result<Gathered, LaunchError> {
    let given = nodes::given_secret()?;
    let encrypt = setup::encryption(&setup::extra(args)?)?;
    let mine = hello(args, flags);
    let deadline = Instant::now() + args.start_timeout;
    let (come, came) = channel();
    let others = format!("the other {} of {} hosts at {}", flags.n_nodes - 1, flags.n_nodes, flags.place);
    let signals = signals::end_while_it_waits(others.clone())?;
    let interrupt = come.clone();
    let welcome = move |line: NodeLine| {
        let come = come.clone();
        // A thread for each: one that says nothing must not keep the others waiting.
        thread::spawn(move || {
            if let Ok(Some(hello)) = line.hear_within::<NodeHello>(WORDS_CAP, HELLO) {
                let _ = come.send(Came::Launcher(line, hello));
            }
        });
    };
    let door = NodeDoor::open(&flags.place, &given, encrypt, &args.interface, args.start_timeout, welcome)?;
    // What is on a board by now is taken off when this function ends.
    signals.redirect(move |signal| drop(interrupt.send(Came::Signal(signal))));
    if args.verbose {
        tell(&format!(
            "phalanx: node 0 of {} waits for the others at {} ({:?})\n",
            flags.n_nodes,
            flags.place,
            door.addresses()
        ));
    }
    let mut seats: Vec<Option<Companion>> = (1..flags.n_nodes).map(|_| None).collect();
    while seats.iter().any(Option::is_none) {
        let wait = deadline.saturating_duration_since(Instant::now());
        let (line, hello) = match came.recv_timeout(wait) {
            Ok(Came::Launcher(line, hello)) => (line, hello),
            Ok(Came::Signal(signal)) if signals::asks_to_end(signal) => {
                let error = LaunchError::AskedWhileWaiting { signal, whom: others };
                part(&seats, &error);
                return Err(error);
            }
            Ok(Came::Signal(_)) => continue,
            Err(_) => return Err(absent(args, flags, &seats)),
        };
        let seat = hello.node.checked_sub(1).and_then(|i| seats.get_mut(i as usize));
        match (judge(&mine, &hello), seat) {
            (None, Some(seat)) if seat.as_ref().is_none_or(|there| !there.line.is_quiet()) => {
                if hello.command != mine.command {
                    let (theirs, ours) = (hello.command.join(" "), mine.command.join(" "));
                    tell(&format!(
                        "phalanx: node {} ({}) runs another command: `{theirs}`, and node 0 `{ours}`\n",
                        hello.node, hello.host_name
                    ));
                }
                *seat = Some(Companion { name: hello.host_name, n_slots: hello.n_slots, line });
            }
            (why, seat) => {
                let there = seat
                    .and_then(|seat| seat.as_ref())
                    .map_or("node 0".into(), |c| format!("{} at {}", c.name, c.line.peer()));
                let taken = || {
                    format!(
                        "--node-rank {} is taken by {there}; give every host a number of its own",
                        hello.node
                    )
                };
                let why = why.unwrap_or_else(taken);
                tell(&format!(
                    "phalanx: refused a launcher on {} at {}: {why}\n",
                    hello.host_name,
                    line.peer()
                ));
                let _ = line.say(&ToNode::Refused(why));
            }
        }
    }
    // What comes before the ranks have somebody who hears it is kept; what came with the last launcher is heard now.
    signals.keep();
    for came in came.try_iter() {
        match came {
            Came::Signal(signal) if signals::asks_to_end(signal) => {
                let error = LaunchError::AskedWhileWaiting { signal, whom: others };
                part(&seats, &error);
                return Err(error);
            }
            Came::Signal(signal) => signals.take(signal),
            // One more than there are seats: it hears that the door is closed.
            Came::Launcher(..) => {}
        }
    }
    let companions = seats.into_iter().flatten().collect();
    Ok(Gathered { given, job: nodes::fresh_job(), companions, signals })
}

/// Tells those that have come why there will be no job.
fn part(seats: &[Option<Companion>], error: &LaunchError) {
    let lines: Vec<NodeLine> = seats.iter().flatten().map(|there| there.line.clone()).collect();
    Gathered::part(&lines, error.exit_code(), &format!("phalanx: {error}\n"));
}

/// Why a launcher does not fit; `None` if it does.
fn judge(mine: &NodeHello, hello: &NodeHello) -> Option<String> {
    if hello.build != mine.build {
        let (theirs, ours) = (&hello.build, &mine.build);
        return Some(format!("it has phalanx {theirs}, node 0 {ours}: install the same build on both"));
    }
    if hello.n_nodes != mine.n_nodes {
        let (theirs, ours) = (hello.n_nodes, mine.n_nodes);
        return Some(format!(
            "it was started with --nnodes {theirs}, node 0 with --nnodes {ours}; give all hosts the same"
        ));
    }
    if hello.n_slots == 0 {
        return Some("-np 0: every host has at least one rank; write e.g. -np 4".to_string());
    }
    let differs = hello.flags.iter().zip(&mine.flags).find(|(theirs, ours)| theirs != ours);
    differs.map(|((flag, theirs), (_, ours))| {
        format!("{flag} differs: {theirs} there, {ours} on node 0; give all hosts the same")
    })
}

/// The hosts that did not come are named; those that came are told.
fn absent(args: &RunArgs, flags: &NodeFlags, seats: &[Option<Companion>]) -> LaunchError {
    let is_absent = |seat: &Option<Companion>| seat.as_ref().is_none_or(|there| !there.line.is_quiet());
    let absent =
        seats.iter().zip(1u32..).filter(|(seat, _)| is_absent(seat)).map(|(_, node)| node.to_string());
    let error = LaunchError::AbsentNodes {
        absent: absent.collect::<Vec<_>>().join(", "),
        n_nodes: flags.n_nodes,
        place: flags.place.to_string(),
        seconds: args.start_timeout.as_secs_f64(),
    };
    part(seats, &error);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: u32) -> NodeHello {
        NodeHello {
            build: "1".into(),
            n_nodes: 2,
            node,
            host_name: "n".into(),
            n_slots: 2,
            command: vec!["a".into()],
            flags: vec![("--bind".into(), "false".into())],
        }
    }

    #[test]
    fn launchers_that_do_not_fit_are_told_why() {
        let mine = hello(0);
        assert_eq!(judge(&mine, &hello(1)), None);
        for (other, wanted) in [
            (NodeHello { n_nodes: 3, ..hello(1) }, "it was started with --nnodes 3, node 0 with --nnodes 2"),
            (NodeHello { build: "2".into(), ..hello(1) }, "it has phalanx 2, node 0 1"),
            (NodeHello { n_slots: 0, ..hello(1) }, "at least one rank"),
            (
                NodeHello { flags: vec![("--bind".into(), "true".into())], ..hello(1) },
                "--bind differs: true there, false on node 0",
            ),
        ] {
            let why = judge(&mine, &other).unwrap_or_default();
            assert!(why.contains(wanted), "{why}");
        }
    }
}
