//! Turns the flags into a job and starts its agents.

use super::{
    LaunchError, News,
    agents::{AgentProcess, Ears},
    describe,
    files::OutputFiles,
    job::{HostState, Job, Reading},
    meeting::{self, Guests},
    nodes::{Gathered, ToNode},
    prefix::Prefixes,
    printer::{Look, Piece, Printer},
    rank_limits,
    reach::JobHosts,
    route::{Exes, Here, Route},
    screen::{Screen, ScreenSize},
    script::{self, Pythons},
    signals, tell,
};
use crate::{
    addresses,
    agent::cores,
    cli::{HostArgs, Reader, RunArgs, Tag},
    environment,
    hosts::HostSlots,
    place::{HostRanks, WorldPlan},
    rankfile::{BadRankFile, RankFile},
    slurm,
    wire::{Hidden, Prepare, RankStart, ToAgent},
};
use phalanx_core::{Config, ConfigError, Encrypt, Rank, TaskRole};
use phalanx_net::{
    Terms, nodes,
    secret::{LEN, Secret},
    task::{JOB_BEGAN, job_began_value},
};
use std::{
    env, fs,
    io::{self, IsTerminal},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::mpsc::{SyncSender, sync_channel},
    time::{Duration, Instant, SystemTime},
};

type Env = Vec<(Vec<u8>, Vec<u8>)>;

/// Checks everything that can be checked here, then starts the agents, or takes those that have come, and tells each what it will start.
pub fn start(args: &RunArgs, gathered: Option<&Gathered>) -> Result<Job, LaunchError> {
    let (started, began) = (Instant::now(), SystemTime::now());
    let file = args.rankfile.as_deref().map(rank_file).transpose()?;
    let reach = if gathered.is_some() { None } else { reach(args, file.as_ref())? };
    let plan = match &file {
        Some(file) => plan_of_file(args, file, reach.as_ref())?,
        None => plan(args, gathered, reach.as_ref())?,
    };
    if args.serve && args.servers == 0 {
        return Err(LaunchError::NobodyServes);
    }
    // A rank file says itself where each is.
    let plan = if args.serve && file.is_none() { plan.spread_servers() } else { plan };
    check_named_ranks(args, plan.n_ranks())?;
    let fits = args.tiers.as_ref().map_or(Ok(()), |tiers| tiers.check(plan.n_workers()));
    fits.map_err(LaunchError::Tiers)?;
    let exes = exes(&args.hosts);
    let this = here();
    let names: Vec<&str> = plan.hosts().iter().map(|host| host.name.as_str()).collect();
    let rsh = JobHosts::rsh(reach.as_ref(), &args.hosts, &names, &this)?;
    let companions = gathered.map_or(&[][..], |gathered| &gathered.companions);
    let route = |(host, ranks): (usize, &HostRanks)| match host.checked_sub(1).and_then(|i| companions.get(i))
    {
        Some(companion) => Route::Node { address: companion.line.peer() },
        None if gathered.is_some() => Route::new("localhost", &this, &rsh, &exes),
        None => Route::new(&ranks.name, &this, &rsh, &exes),
    };
    let routes: Vec<Route> = plan.hosts().iter().enumerate().map(route).collect();
    let own: Vec<u32> =
        if gathered.is_some() { plan.hosts()[0].ranks.clone() } else { (0..plan.n_ranks()).collect() };
    rank_limits::check(&plan, routes.len(), args.output_filename.is_some())?;
    let extra = extra(args)?;
    let encrypt = encryption(&extra)?;
    let cwd = env::current_dir().map_err(|why| LaunchError::System { what: "the working directory", why })?;
    let is_own = |rank: Rank| own.binary_search(&rank.0).is_ok() || plan.evaluator() == Some(rank);
    let files =
        args.output_filename.as_deref().map(|dir| OutputFiles::create(dir, &plan, is_own)).transpose()?;
    let secret = gathered.map_or_else(Secret::random, |all| nodes::job_secret(&all.given, &all.job));
    let guests = Guests {
        n_ranks: plan.n_ranks(),
        all_here: !routes.iter().any(Route::is_remote),
        interfaces: &args.interface,
    };
    let (news_to, news) = sync_channel(256);
    let words_to = news_to.clone();
    let terms = Terms { secret: secret.clone(), encrypt };
    let meeting = meeting::open(&guests, terms, move |rank, words| {
        // The hub's thread must not wait; where there is too much news, words for people are what can be missed.
        let _ = words_to.try_send(News::Words { rank, words });
    })?;
    if let Some(told) = reach.as_ref().and_then(JobHosts::told) {
        tracing::info!("{told}");
        if args.verbose {
            tell(&format!("phalanx: {told}\n"));
        }
    }
    if args.verbose {
        tell(&describe::world(&plan, &routes, meeting.addresses()));
    }

    match gathered {
        Some(gathered) => gathered.signals.tell(news_to.clone()),
        None => drop(signals::watch(news_to.clone())?),
    }
    let printer = start_printer(args, &plan, &own, files, news_to.clone());
    let ears = Ears {
        news: news_to,
        printer,
        n_waiting: Default::default(),
        discard: Default::default(),
        repeat_for: None,
        relay: None,
    };
    let n_readers = (0..plan.n_ranks()).filter(|&rank| args.stdin.is(rank)).count();
    let (notices, news_of_input) = (ears.printer.clone(), ears.news.clone());
    let (n_waiting, discard) = (ears.n_waiting.clone(), ears.discard.clone());
    let ports = if args.tf_config { free_ports(plan.n_ranks())? } else { Vec::new() };
    let began = (JOB_BEGAN.into(), job_began_value(began).into_bytes());
    let mut agents = Vec::new();
    for (host, route) in routes.iter().enumerate() {
        let ears = Ears { repeat_for: args.verbose.then(|| plan.hosts()[host].name.clone()), ..ears.clone() };
        let of_node = gathered.zip(host.checked_sub(1).and_then(|i| companions.get(i)));
        let agent = match of_node {
            Some((gathered, companion)) => {
                // A line that has ended is noticed when it is heard.
                let _ = companion.line.say(&world(gathered, &plan));
                AgentProcess::of_node(host, companion.line.clone(), ears)
            }
            None => AgentProcess::start(host, route, ears).map_err(|why| LaunchError::NoRemoteShell {
                program: route.command()[0].to_string_lossy().into_owned(),
                host: plan.hosts()[host].name.clone(),
                why,
            })?,
        };
        let env = if matches!(route, Route::Remote { .. }) {
            travelling(&cwd, route.is_srun())
        } else {
            Env::new()
        };
        // Another launcher has a directory, a command and variables of its own.
        let extra = if of_node.is_some() { Env::new() } else { extra.clone() };
        agent.order(ToAgent::Prepare(Box::new(Prepare {
            secret: told(&secret, of_node.is_some()),
            cwd: cwd.as_os_str().as_bytes().to_vec(),
            argv: argv(args, &cwd, route, &exes),
            env: env.into_iter().chain([began.clone()]).chain(extra).collect(),
            ranks: ranks(
                &plan,
                host,
                meeting.addresses(),
                args,
                &ports,
                (devices(reach.as_ref(), &plan, host), file.as_ref()),
                args.serve.then(|| serving(route, &exes)),
            ),
            bind: args.bind,
        })));
        agents.push(agent);
    }
    Ok(Job {
        hosts: routes.iter().map(|_| HostState::default()).collect(),
        pids: vec![None; plan.n_processes() as usize],
        tails: None,
        failures: Default::default(),
        verdict: Default::default(),
        showing: None,
        screen: screen_size().map(|_| notices),
        reading: Reading::Later { n_readers, news: news_of_input },
        readers: plan.hosts().iter().map(|host| host.ranks.iter().any(|&rank| args.stdin.is(rank))).collect(),
        timeout: args.timeout,
        grace: args.grace,
        // Without it no Slurm has started this process, and none will signal it.
        term_after: this.node.as_ref().map_or(Duration::ZERO, |_| slurm::TERM_AFTER),
        plan,
        routes,
        agents,
        news,
        meeting,
        n_waiting,
        discard,
        started,
    })
}

/// The secret as an agent is told it. Another launcher computes it for itself (NODE-3).
fn told(secret: &Secret, is_of_node: bool) -> Hidden {
    Hidden(if is_of_node { [0; LEN] } else { *secret.expose() })
}

/// What the launchers of other hosts are told of the world.
fn world(gathered: &Gathered, plan: &WorldPlan) -> ToNode {
    let hosts = plan.hosts().iter().map(|host| (host.name.clone(), host.ranks.len() as u32)).collect();
    ToNode::World { job: gathered.job, hosts, has_evaluator: plan.evaluator().is_some() }
}

/// `phalanx train` means this machine.
fn reach(args: &RunArgs, file: Option<&RankFile>) -> Result<Option<JobHosts>, LaunchError> {
    if let Some(file) = file.filter(|_| !args.hosts.any()) {
        // The file is the list of hosts.
        return Ok(Some(JobHosts::in_file(file.hosts())));
    }
    if !args.hosts.any()
        && let Some(task) = environment::task_of_mpi(&|name| env::var(name).ok())
    {
        return Err(LaunchError::TaskOfMpi { task });
    }
    // One node is this host, whatever is around it.
    let is_here = args.tf_config || args.nnodes.is_some();
    if is_here && !args.hosts.any() { Ok(None) } else { JobHosts::new(&args.hosts) }
}

/// A rank file, read from the disk.
fn rank_file(path: &Path) -> Result<RankFile, LaunchError> {
    let read = |why| LaunchError::NoRankFile { path: path.to_path_buf(), why };
    let text = fs::read_to_string(path).map_err(read)?;
    Ok(RankFile::parse(&text, &path.display().to_string())?)
}

/// The world of a rank file; hosts that flags name are the ones it may use.
fn plan_of_file(args: &RunArgs, file: &RankFile, reach: Option<&JobHosts>) -> Result<WorldPlan, LaunchError> {
    let path = args.rankfile.as_deref().map_or_else(String::new, |path| path.display().to_string());
    let have = file.ranks.len() as u32;
    if let Some(np) = args.np.filter(|np| np.saturating_add(args.servers) != have) {
        let have = have.saturating_sub(args.servers);
        return Err(BadRankFile::WrongNumber { np, path, have }.into());
    }
    if let Some(reach) = reach.filter(|_| args.hosts.any()) {
        file.check(&reach.hosts, reach.source, &path)?;
    }
    let host_of: Vec<String> = file.ranks.iter().map(|line| line.host.clone()).collect();
    Ok(WorldPlan::of_hosts(&host_of, args.servers)?.with_evaluator(args.evaluator))
}

fn plan(
    args: &RunArgs,
    gathered: Option<&Gathered>,
    reach: Option<&JobHosts>,
) -> Result<WorldPlan, LaunchError> {
    if let Some(gathered) = gathered {
        let hosts = gathered.hosts(&here().hostname, args.np.unwrap_or_else(cores::n_usable));
        let n_ranks = hosts.iter().fold(0u32, |all, host| all.saturating_add(host.slots));
        // A host without ranks would have no place in the plan.
        let n_ranks = if hosts[0].slots == 0 { 0 } else { n_ranks };
        return Ok(WorldPlan::fill_with(&hosts, n_ranks, 0, "-np")?.with_evaluator(args.evaluator));
    }
    let asked = args.np.map(|n_workers| n_workers.saturating_add(args.servers));
    let each = args.hosts.slots_per_host;
    let (hosts, source) = match reach {
        // One host takes as many ranks as the user wants, named by Slurm or by nobody.
        Some(JobHosts { hosts, .. }) if reach.is_some_and(JobHosts::is_by_slurm) && hosts.len() == 1 => {
            let slots = each.unwrap_or_else(|| asked.unwrap_or(hosts[0].slots));
            (vec![HostSlots { slots, ..hosts[0].clone() }], slurm::SOURCE)
        }
        Some(JobHosts { hosts, source, .. }) => (hosts.clone(), *source),
        None => {
            let slots = each.or(asked).unwrap_or_else(|| cores::n_usable().saturating_add(args.servers));
            let source = if each.is_some() { "--slots-per-host" } else { "-np" };
            (vec![HostSlots { name: "localhost".to_string(), slots }], source)
        }
    };
    let slots = hosts.iter().fold(0u32, |all, host| all.saturating_add(host.slots));
    let n_ranks = match args.np {
        Some(0) => 0,
        Some(n_workers) => n_workers.saturating_add(args.servers),
        None => slots,
    };
    Ok(WorldPlan::fill_with(&hosts, n_ranks, args.servers, source)?.with_evaluator(args.evaluator))
}

/// Where phalanx is: here, and on the other hosts.
pub fn exes(args: &HostArgs) -> Exes {
    let here = args.own.exe.clone();
    let remote = args.remote_exe.clone().unwrap_or_else(|| here.clone());
    Exes { here, remote }
}

/// How this machine may be called.
pub fn here() -> Here {
    let addresses = addresses::list().unwrap_or_default().into_iter().map(|a| a.ip).collect();
    Here {
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        node: env::var("SLURMD_NODENAME").ok(),
        addresses,
    }
}

/// The command of a rank of this machine.
pub fn argv_here(args: &RunArgs, cwd: &Path) -> Vec<Vec<u8>> {
    argv(args, cwd, &Route::Direct { command: Vec::new() }, &exes(&args.hosts))
}

fn argv(args: &RunArgs, cwd: &Path, route: &Route, exes: &Exes) -> Vec<Vec<u8>> {
    let exe = if route.is_remote() { &exes.remote } else { &exes.here };
    let words = if args.itself {
        std::iter::once(exe.clone().into_os_string()).chain(args.command.iter().cloned()).collect()
    } else {
        let activated = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
        script::with_python(&args.command, cwd, &Pythons { activated, exe: exes.here.clone() })
    };
    words.into_iter().map(OsStringExt::into_vec).collect()
}

/// What servers run with `--serve`.
fn serving(route: &Route, exes: &Exes) -> Vec<Vec<u8>> {
    let exe = if route.is_remote() { &exes.remote } else { &exes.here };
    vec![exe.clone().into_os_string().into_vec(), b"serve".to_vec()]
}

/// Ranks that flags name must be there.
fn check_named_ranks(args: &RunArgs, n_ranks: u32) -> Result<(), LaunchError> {
    let reads = match args.stdin {
        // The default is not a wish: a user who starts no rank is told so, not this.
        Reader::Rank(0) | Reader::All | Reader::Nobody => None,
        Reader::Rank(rank) => Some(("--stdin", rank)),
    };
    let named = reads.into_iter().chain(args.only_rank.map(|rank| ("--only-rank", rank)));
    match named.into_iter().find(|(_, rank)| *rank >= n_ranks) {
        Some((flag, rank)) => Err(LaunchError::NoSuchRank { flag, rank, n_ranks }),
        None => Ok(()),
    }
}

/// What `-x` and its like add to the environment of the ranks.
pub fn extra(args: &RunArgs) -> Result<Env, LaunchError> {
    let here = |name: &str| env::var_os(name).map(OsStringExt::into_vec);
    let plaintext = args.insecure_plaintext.then_some("PHALANX_ENCRYPT=never");
    let tiers = args.tiers.as_ref().map(|tiers| format!("PHALANX_TIERS={tiers}"));
    let specs = args.env.iter().map(String::as_str).chain(plaintext).chain(tiers.as_deref());
    let extra: Env = specs
        .map(|spec| {
            environment::extra(spec, here).map_err(|name| match name.is_empty() {
                true => LaunchError::NoName { spec: spec.to_string() },
                false => LaunchError::Extra { name },
            })
        })
        .collect::<Result<_, _>>()?;
    if let Some((name, _)) = extra.iter().find(|(name, _)| environment::is_given_by_the_launcher(name)) {
        return Err(LaunchError::Given { name: String::from_utf8_lossy(name).into_owned() });
    }
    let own = here("PHALANX_ENCRYPT").map(|value| (b"PHALANX_ENCRYPT".to_vec(), value));
    let other = |(name, value): &&(Vec<u8>, Vec<u8>)| name == b"PHALANX_ENCRYPT" && value != b"never";
    if let Some((_, value)) = extra.iter().chain(&own).find(other).filter(|_| args.insecure_plaintext) {
        let value = String::from_utf8_lossy(value).into_owned();
        let why = "--insecure-plaintext says never; leave one of the two out".into();
        return Err(ConfigError::Bad { name: "PHALANX_ENCRYPT", value, why }.into());
    }
    if let Some(tiers) = &args.tiers {
        let other = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            name == b"PHALANX_TIERS" && *value != tiers.to_string().into_bytes()
        };
        if let Some((_, value)) = extra.iter().find(other) {
            let value = String::from_utf8_lossy(value).into_owned();
            let why = format!("--tiers says {tiers}; leave one of the two out").into();
            return Err(ConfigError::Bad { name: "PHALANX_TIERS", value, why }.into());
        }
    }
    Ok(extra)
}

/// What the ranks will encrypt; the meeting does the same.
pub fn encryption(extra: &Env) -> Result<Encrypt, LaunchError> {
    let mut config = Config::default();
    let given = extra.iter().rev().find(|(name, _)| name == b"PHALANX_ENCRYPT");
    let here = || env::var("PHALANX_ENCRYPT").ok();
    if let Some(value) = given.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).or_else(here) {
        config.set("PHALANX_ENCRYPT", &value)?;
    }
    Ok(config.encrypt)
}

/// What goes along to another host. `srun` takes along by itself what is not hidden from it.
fn travelling(cwd: &Path, by_srun: bool) -> Env {
    let here = env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
    let pwd = (b"PWD".to_vec(), cwd.as_os_str().as_bytes().to_vec());
    let goes = |name: &[u8]| {
        let is_missing = !by_srun || slurm::is_hidden_from_srun(&String::from_utf8_lossy(name));
        is_missing && environment::travels(name)
    };
    here.filter(|(name, _)| goes(name)).chain([pwd]).collect()
}

/// The devices of a host that the file of resources lists.
fn devices<'a>(reach: Option<&'a JobHosts>, plan: &WorldPlan, host: usize) -> Option<&'a str> {
    reach?.devices.get(&plan.hosts()[host].name).map(String::as_str)
}

fn ranks(
    plan: &WorldPlan,
    host: usize,
    meeting: &[SocketAddr],
    args: &RunArgs,
    ports: &[u16],
    (devices, file): (Option<&str>, Option<&RankFile>),
    serving: Option<Vec<Vec<u8>>>,
) -> Vec<RankStart> {
    let of_cluster =
        |rank| args.tf_config.then(|| ("TF_CONFIG".to_string(), environment::tf_config(plan, rank, ports)));
    let evaluator = plan.evaluator().filter(|_| host == 0);
    let host = &plan.hosts()[host];
    let start = |rank| {
        let place = plan.place(Rank(rank));
        let mut env = environment::of_rank(&place, &host.name, meeting);
        if args.horovod {
            env.extend(environment::of_rank_for_horovod(&place, &host.name));
        }
        env.extend(of_cluster(Rank(rank)));
        // All devices of the host, in the order of the file: local rank i takes the i-th, as `set_device(local_rank())` does.
        env.extend(devices.map(|devices| ("CUDA_VISIBLE_DEVICES".to_string(), devices.to_string())));
        let cores = file.and_then(|file| file.ranks[rank as usize].cores.clone());
        let argv = serving.clone().filter(|_| plan.role(Rank(rank)) == TaskRole::Server);
        RankStart { rank: Rank(rank), argv, reads: args.stdin.is(rank), cores, env }
    };
    let beside = evaluator.map(|rank| {
        let env = environment::of_evaluator(plan, &host.name).into_iter().chain(of_cluster(rank));
        RankStart { rank, argv: None, reads: false, cores: None, env: env.collect() }
    });
    host.ranks.iter().map(|&rank| start(rank)).chain(beside).collect()
}

/// Ports that are free now, for addresses in `TF_CONFIG`: our ranks do not use them.
fn free_ports(n: u32) -> Result<Vec<u16>, LaunchError> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // All are held until all are known, so that no port is given twice.
    let held = (0..n).map(listen).collect::<io::Result<Vec<_>>>();
    let ports = held.and_then(|held| held.iter().map(|l| Ok(l.local_addr()?.port())).collect());
    ports.map_err(|why| LaunchError::System { what: "ports for TF_CONFIG", why })
}

/// The terminal on which lines may change; there is none if both streams go elsewhere, or the terminal cannot.
fn screen_size() -> Option<ScreenSize> {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let size = match (io::stdout().is_terminal(), io::stderr().is_terminal()) {
        _ if is_dumb => return None,
        (true, _) => rustix::termios::tcgetwinsize(io::stdout()),
        (false, true) => rustix::termios::tcgetwinsize(io::stderr()),
        (false, false) => return None,
    };
    let size = size.ok()?;
    // Some terminals do not tell.
    let or = |told: u16, usual| if told > 0 { told.into() } else { usual };
    Some(ScreenSize { columns: or(size.ws_col, 80), rows: or(size.ws_row, 24) })
}

/// Starts to print the output of these ranks, and of the evaluator, if it is beside rank 0.
pub fn start_printer(
    args: &RunArgs,
    plan: &WorldPlan,
    own: &[u32],
    files: Option<OutputFiles>,
    news: SyncSender<News>,
) -> SyncSender<Piece> {
    let is_own =
        |rank: u32| own.binary_search(&rank).is_ok() || (own.first() == Some(&0) && rank >= plan.n_ranks());
    let is_shown = |rank| is_own(rank) && args.only_rank.is_none_or(|only| only == rank);
    let shows: Vec<bool> = (0..plan.n_processes()).map(is_shown).collect();
    let n_shown = shows.iter().filter(|shown| **shown).count();
    let look = match (args.tag_output, n_shown) {
        (Tag::Auto | Tag::Never, 1) => Look::Raw,
        (Tag::Never, _) => Look::Plain,
        (Tag::Auto | Tag::Always, _) => Look::Prefixed(Prefixes::new(plan)),
    };
    let wanted = env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && env::var_os("TERM").is_none_or(|t| t != "dumb");
    let colour = [wanted && io::stdout().is_terminal(), wanted && io::stderr().is_terminal()];
    let n_ranks = plan.n_ranks();
    let asks = |rank: u32| rank < n_ranks && args.stdin.is(rank) && io::stdin().is_terminal();
    Printer {
        look,
        colour,
        files,
        n_ranks: plan.n_processes(),
        shows,
        screen: screen_size().map(Screen::new),
        on_screen: [io::stdout().is_terminal(), io::stderr().is_terminal()],
        asks: (0..plan.n_processes()).map(asks).collect(),
    }
    .start(news)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_told_to_own_agents_only() {
        let secret = Secret::random();
        assert_eq!(told(&secret, false).0, *secret.expose());
        assert_eq!(told(&secret, true).0, [0; LEN], "NODE-3");
    }
}
