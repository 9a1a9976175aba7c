//! The launcher of a host other than node 0's: it starts its host's ranks as node 0 says, prints their output, and ends as node 0 does.
//!
//! - NODE-4: when node 0's launcher is gone, no process of the job is left on this host shortly after.

use super::{
    NodeFlags,
    gather::hello,
    message::{FromNode, ToNode},
};
use crate::{
    cli::RunArgs,
    hosts::HostSlots,
    numbers,
    place::WorldPlan,
    run::{
        LaunchError, News, Route,
        agents::{AgentProcess, Ears},
        files::OutputFiles,
        setup, signals, tell,
    },
    wire::{CAP, Hidden, Prepare, ToAgent},
};
use phalanx_net::nodes::{self, NodeLine};
use std::{
    env,
    os::unix::ffi::OsStrExt,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// How long the agent may take to leave, and the console to take what is left.
const LEAVE: Duration = Duration::from_secs(3);

/// What node 0 said of the world.
struct Told {
    job: [u8; 16],
    plan: WorldPlan,
}

/// Takes part in the job of node 0; returns the code to exit with.
pub fn follow(args: &RunArgs, flags: &NodeFlags) -> Result<u8, LaunchError> {
    let given = nodes::given_secret()?;
    let extra = setup::extra(args)?;
    let encrypt = setup::encryption(&extra)?;
    let cwd = env::current_dir().map_err(|why| LaunchError::System { what: "the working directory", why })?;
    let lost = || LaunchError::LostNodeZero { place: flags.place.to_string() };
    let signals = signals::end_while_it_waits(format!("node 0 at {}", flags.place))?;
    let line = nodes::connect(&flags.place, &given, encrypt, flags.me, args.start_timeout)?;
    line.say(&hello(args, flags)).map_err(|_| lost())?;
    let told = match line.hear(CAP) {
        Ok(Some(ToNode::World { job, hosts, has_evaluator })) => {
            let hosts: Vec<HostSlots> =
                hosts.into_iter().map(|(name, slots)| HostSlots { name, slots }).collect();
            let n_ranks = hosts.iter().fold(0, |all: u32, host| all.saturating_add(host.slots));
            let plan = WorldPlan::fill_with(&hosts, n_ranks, 0, "-np")?.with_evaluator(has_evaluator);
            Told { job, plan }
        }
        Ok(Some(ToNode::Refused(why))) => return Err(LaunchError::RefusedNode { why }),
        Ok(Some(ToNode::Over { code, text })) => {
            tell(&text);
            return Ok(code);
        }
        _ => return Err(lost()),
    };
    let own = told.plan.hosts().get(flags.me as usize).map(|host| host.ranks.clone()).ok_or_else(lost)?;
    if args.verbose {
        let (n_ranks, ranks) = (told.plan.n_ranks(), numbers::runs(own.iter().copied()));
        let (me, n_nodes) = (flags.me, flags.n_nodes);
        tell(&format!("phalanx: node {me} of {n_nodes} starts ranks {ranks} of {n_ranks}\n"));
    }
    let secret = nodes::job_secret(&given, &told.job);
    let fill = |prepare: Prepare| Prepare {
        secret: Hidden(*secret.expose()),
        cwd: cwd.as_os_str().as_bytes().to_vec(),
        argv: setup::argv_here(args, &cwd),
        env: prepare.env.into_iter().chain(extra.clone()).collect(),
        ..prepare
    };
    let files = args.output_filename.as_deref();
    let files = files
        .map(|dir| OutputFiles::create(dir, &told.plan, |rank| own.binary_search(&rank.0).is_ok()))
        .transpose()?;
    let (news_to, news) = sync_channel(256);
    signals.tell(news_to.clone());
    let printer = setup::start_printer(args, &told.plan, &own, files, news_to.clone());
    let ears = Ears {
        news: news_to.clone(),
        printer,
        n_waiting: Default::default(),
        discard: Default::default(),
        repeat_for: None,
        relay: Some(line.clone()),
    };
    let exe = setup::exes(&args.hosts).here.into_os_string();
    let route = Route::Direct { command: vec![exe, "agent".into()] };
    let agent = AgentProcess::start(0, &route, ears)
        .map_err(|why| LaunchError::System { what: "to start an agent", why })?;
    hear_node_zero(line.clone(), news_to);
    let (code, text) =
        relay(agent, &news, &line, fill).unwrap_or_else(|| (1, format!("phalanx: {}\n", lost())));
    tell(&text);
    Ok(code)
}

fn hear_node_zero(line: NodeLine, news: SyncSender<News>) {
    thread::spawn(move || {
        while let Ok(Some(told)) = line.hear::<ToNode>(CAP) {
            let is_last = matches!(told, ToNode::Over { .. });
            if news.send(News::FromNodeZero(Some(told))).is_err() || is_last {
                return;
            }
        }
        let _ = news.send(News::FromNodeZero(None));
    });
}

/// Carries messages between the agent and node 0 until the job is over; `None` if node 0 is gone. The agent has left by then.
fn relay(
    mut agent: AgentProcess,
    news: &Receiver<News>,
    line: &NodeLine,
    fill: impl Fn(Prepare) -> Prepare,
) -> Option<(u8, String)> {
    let (mut is_gone, mut is_printed) = (false, false);
    // Node 0's words, or its end, end this; a line that cannot be written to has ended.
    let ending = loop {
        match news.recv().ok()? {
            News::FromNodeZero(None) => break None,
            News::FromNodeZero(Some(ToNode::Over { code, text })) => break Some((code, text)),
            News::FromNodeZero(Some(ToNode::Order(down))) => agent.order(match *down {
                ToAgent::Prepare(prepare) => ToAgent::Prepare(Box::new(fill(*prepare))),
                down => down,
            }),
            News::FromNodeZero(Some(ToNode::Dismiss)) => agent.dismiss(),
            News::FromNodeZero(Some(ToNode::World { .. } | ToNode::Refused(_))) => {}
            News::Said { up, .. } => drop(line.say(&FromNode::Up(up))),
            News::Gone { gone, .. } => {
                is_gone = true;
                let (done, ending) = (gone.done, gone.ending);
                let _ = line.say(&FromNode::Gone { done, ending, words: gone.words });
            }
            News::Signal(signal) => drop(line.say(&FromNode::Signal(signal))),
            News::OutputClosed => drop(line.say(&FromNode::OutputClosed)),
            News::Printed(_) => is_printed = true,
            News::Input(_) | News::Words { .. } => {}
        }
    };
    agent.dismiss();
    let deadline = Instant::now() + LEAVE;
    while !(is_gone && is_printed) {
        match news.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(News::Gone { .. }) => is_gone = true,
            Ok(News::Printed(_)) => is_printed = true,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    if !is_gone {
        agent.kill();
    }
    ending
}
