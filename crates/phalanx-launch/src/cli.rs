//! The command line: its flags and their parsing. What a flag does is decided elsewhere.

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// Write it for one device; march it on many.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, long_version = phalanx_collective::BUILD, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a command as the ranks of one world, on one or several hosts
    Run(Box<RunArgs>),
    /// Have the tables of the workers of a world, as one of its servers (phalanx run --servers N --serve)
    Serve,
    /// Run a script as workers, parameter servers and an evaluator of one job, on this machine
    Train(TrainArgs),
    /// Measure the collectives and check every result
    Bench(crate::bench::BenchArgs),
    /// Predict the time of a collective on a network of any size
    Simulate(crate::simulate::SimulateArgs),
    /// Merge the timelines of ranks and report which rank was late
    Trace(crate::trace::TraceArgs),
    /// List, show and verify the checkpoints of a training
    Ckpt(crate::ckpt::CkptArgs),
    /// Check this machine and other hosts for problems that would stop or slow down a job
    Doctor(crate::doctor::DoctorArgs),
    /// Print a manifest that starts a command as the ranks of one world in a Kubernetes cluster
    Kube(crate::kube::KubeArgs),
    /// Write a rank file for `phalanx run -rf` and Open MPI's mpirun: which rank runs on which host and cores
    Rankfile(crate::rankfile::RankfileArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Start the ranks of one host for a launcher
    #[command(hide = true)]
    Agent,
}

/// The exit code is that of the first rank that fails. Ctrl-C asks every rank to end; a second Ctrl-C kills them.
#[derive(Debug, Args)]
#[command(
    override_usage = "phalanx run [-np N] [-H HOST:SLOTS,... | --hostfile FILE] [OPTIONS] [--] COMMAND [ARGS]...",
    after_help = "Examples:\n  phalanx run -np 4 train.py\n  phalanx run -H node1:4,node2:4 --output-filename logs python train.py\n  phalanx run -np 4 -H a:2,b:2 --rsh 'ip netns exec {host}' ./worker --fast\n  phalanx run --nnodes 2 --node-rank 1 --rdzv node0:29500 -np 4 train.py"
)]
pub struct RunArgs {
    /// Number of ranks, with --nnodes on this host; also -np [default: all slots of the hosts, or this machine's cores]
    #[arg(short = 'n', long = "np", visible_alias = "num-proc", value_name = "N")]
    #[arg(value_parser = n_ranks, allow_negative_numbers = true)]
    pub np: Option<u32>,

    /// Number of ranks that serve instead of training: they get the highest ranks and PHALANX_ROLE=server
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub servers: u32,

    /// Servers run `phalanx serve` instead of the command: they have the tables that the workers open, and no line of the program runs there
    #[arg(long)]
    pub serve: bool,

    /// Start the command once more beside the ranks, with PHALANX_ROLE=evaluator; its failure does not end the job
    #[arg(long)]
    pub evaluator: bool,

    #[command(flatten)]
    pub hosts: HostArgs,

    /// Rank file of Open MPI, `rank 0=host slot=0-1` in each line: where each rank runs, and on which cores; also -rf
    #[arg(long, visible_alias = "rf", value_name = "FILE", conflicts_with_all = ["bind", "nnodes", "slots_per_host"])]
    pub rankfile: Option<PathBuf>,

    /// Number of hosts, where this same command is started on each of them instead of from one
    #[arg(long, value_name = "N")]
    pub nnodes: Option<u32>,

    /// The number of this host among --nnodes, from 0; ranks are numbered in this order
    #[arg(long, value_name = "R")]
    pub node_rank: Option<u32>,

    /// Where the hosts of --nnodes meet, the same on all: an address of node 0's host, a name in etcd, or a common directory
    /// [default: PHALANX_RENDEZVOUS]
    #[arg(long, value_name = "HOST:PORT|etcd://HOST/JOB|file:DIR")]
    pub rdzv: Option<String>,

    /// Network interfaces on which the ranks meet, by name or address [default: loopback if all ranks run on this machine,
    /// otherwise all interfaces]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub interface: Vec<String>,

    /// Do not encrypt connections between hosts: for networks that only trusted machines reach. Same as PHALANX_ENCRYPT=never
    #[arg(long)]
    pub insecure_plaintext: bool,

    /// Shape of the network, ranks of a host first, e.g. 4x3. Same as PHALANX_TIERS
    #[arg(long, value_name = "SHAPE")]
    pub tiers: Option<phalanx_core::Tiers>,

    /// Also write each rank's output to DIR/rank.N/stdout and stderr
    #[arg(long, value_name = "DIR")]
    pub output_filename: Option<PathBuf>,

    /// End the job after this many seconds, with exit code 124
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub timeout: Option<Duration>,

    /// Seconds to wait until every host has answered
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "30")]
    pub start_timeout: Duration,

    /// Seconds that processes get to end by themselves: ranks after SIGTERM, servers and the evaluator after the last worker
    /// [default: 30; after Ctrl-C 2]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub grace: Option<Duration>,

    /// Give each rank its own cores
    #[arg(long)]
    pub bind: bool,

    /// Environment variable for the ranks; without a value, the launcher's value is passed on; may be repeated
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append)]
    pub env: Vec<String>,

    /// Which rank receives the launcher's stdin: a rank's number, all or none
    #[arg(long, value_name = "RANK|all|none", value_parser = reader, default_value = "0")]
    pub stdin: Reader,

    /// Print the output of this rank only; output files and failure reports still cover all ranks
    #[arg(long, value_name = "RANK")]
    pub only_rank: Option<u32>,

    /// Prefix each line of output with its rank; auto: unless only one rank is printed
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Tag::Auto)]
    pub tag_output: Tag,

    /// Also set Horovod's variables for each rank: HOROVOD_RANK, HOROVOD_LOCAL_RANK and so on
    #[arg(long)]
    pub horovod: bool,

    /// Also set TF_CONFIG for each process
    #[arg(long, hide = true)]
    pub tf_config: bool,

    /// Print which ranks start on which host, before they start
    #[arg(short, long)]
    pub verbose: bool,

    /// The command is phalanx itself: each host runs its own phalanx with these arguments
    #[arg(long, hide = true)]
    pub itself: bool,

    /// File that receives the rank that failed first and how it ended, for the program that started the launcher
    #[arg(long, hide = true, value_name = "FILE")]
    pub verdict: Option<PathBuf>,

    /// The command that every rank runs; a .py file that is not executable is run with Python
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Starts FILE as the processes of one job on this machine. Each gets PHALANX_ROLE and TF_CONFIG; the exit code is that of the first
/// that fails.
#[derive(Debug, Args)]
#[command(
    override_usage = "phalanx train [-s SERVERS] [-w WORKERS] [-e] FILE [-- ARGS...]",
    after_help = "Examples:\n  phalanx train train.py\n  phalanx train -s 1 -w 2 -e train.py -- --steps 1000"
)]
pub struct TrainArgs {
    /// Number of parameter servers
    #[arg(short, long, value_name = "N", value_parser = n_servers, allow_negative_numbers = true, default_value = "0")]
    pub servers: u32,

    /// Number of workers [default: this machine's cores]
    #[arg(short, long, value_name = "N", value_parser = n_workers, allow_negative_numbers = true)]
    pub workers: Option<u32>,

    /// Also start an evaluator
    #[arg(short, long)]
    pub evaluator: bool,

    /// The script or program that every process runs; a .py file that is not executable is run with Python
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Its arguments
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<OsString>,

    #[arg(skip)]
    pub own: Invocation,
}

/// Which hosts, and how to reach them: the same flags for every subcommand that uses other hosts.
#[derive(Clone, Debug, Default, Args)]
pub struct HostArgs {
    /// Hosts and the number of ranks (slots) each takes, filled in this order
    #[arg(short = 'H', long = "hosts", value_name = "HOST:SLOTS,...", conflicts_with = "hostfile")]
    pub list: Option<String>,

    /// File with one host per line: `host slots=4`, `host:4` or `host`; # begins a comment
    #[arg(long = "hostfile", id = "hostfile", value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// File of Parallax with one host per line, first that of rank 0: `host: 0,1` (devices, one rank for each), `user@host:port`,
    /// `[IPv6]`; # begins a comment
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "hostfile"])]
    pub resource_info: Option<PathBuf>,

    /// Number of ranks for each host that is named without a number [default: 1]
    #[arg(long, value_name = "N", value_parser = n_slots)]
    pub slots_per_host: Option<u32>,

    /// Command that runs a command on another host; {host} is replaced by the host's name. A template with {host} is used
    /// for this machine, too [default: ssh in batch mode, which notices within 3 s that a host is silent]
    #[arg(long, value_name = "CMD")]
    pub rsh: Option<String>,

    /// Path of phalanx on the other hosts [default: the same path as on this machine]
    #[arg(long, value_name = "PATH")]
    pub remote_exe: Option<PathBuf>,

    /// How this program was started; filled in from the command line as a whole, not by a flag.
    #[arg(skip)]
    pub own: Invocation,
}

/// How this program was started, so that it can start itself again.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    pub exe: PathBuf,
    /// The arguments after the program's name.
    pub args: Vec<OsString>,
}

impl Command {
    /// Sets how this program was started in the subcommands that start it again.
    pub fn set_own(&mut self, own: Invocation) {
        match self {
            Command::Run(args) => args.hosts.own = own,
            Command::Train(args) => args.own = own,
            Command::Doctor(args) => args.hosts.own = own,
            Command::Bench(args) => args.hosts.own = own,
            _ => {}
        }
    }
}

impl HostArgs {
    /// The arguments that give another command line the same hosts.
    pub fn words(&self) -> Vec<OsString> {
        let flags: [(&str, Option<OsString>); 6] = [
            ("--hosts", self.list.as_ref().map(OsString::from)),
            ("--hostfile", self.file.as_ref().map(OsString::from)),
            ("--resource-info", self.resource_info.as_ref().map(OsString::from)),
            ("--slots-per-host", self.slots_per_host.map(|n| n.to_string().into())),
            ("--rsh", self.rsh.as_ref().map(OsString::from)),
            ("--remote-exe", self.remote_exe.as_ref().map(OsString::from)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?]));
        given.flatten().collect()
    }

    /// Whether other hosts than this machine were named.
    pub fn any(&self) -> bool {
        self.list.is_some() || self.file.is_some() || self.resource_info.is_some()
    }
}

/// Which ranks receive the launcher's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Rank(u32),
    All,
    Nobody,
}

impl Reader {
    pub fn is(self, rank: u32) -> bool {
        match self {
            Reader::Rank(one) => one == rank,
            Reader::All => true,
            Reader::Nobody => false,
        }
    }
}

fn reader(text: &str) -> Result<Reader, String> {
    match text {
        "all" => Ok(Reader::All),
        "none" => Ok(Reader::Nobody),
        _ => text.parse().map(Reader::Rank).map_err(|_| "write a rank's number, all or none".to_string()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tag {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Where to put the script:\n  phalanx completions bash > ~/.local/share/bash-completion/completions/phalanx\n  phalanx completions zsh  > _phalanx, in a directory of $fpath\n  phalanx completions fish > ~/.config/fish/completions/phalanx.fish"
)]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// A positive number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let positive = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s < 1e9);
    positive.map(Duration::from_secs_f64).ok_or_else(|| "write a positive number of seconds".to_string())
}

/// A number of ranks. Zero is refused later, when the hosts are known.
pub fn n_ranks(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a whole number of ranks from 1, e.g. -np 4".to_string())
}

fn n_slots(text: &str) -> Result<u32, String> {
    let positive = text.parse().ok().filter(|n| *n > 0);
    positive.ok_or_else(|| "write a whole number of slots from 1".to_string())
}

fn n_servers(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a whole number of servers from 0".to_string())
}

fn n_workers(text: &str) -> Result<u32, String> {
    let positive = text.parse().ok().filter(|n| *n > 0);
    positive.ok_or_else(|| "write a whole number of workers from 1".to_string())
}

/// Rewrites the single-dash flags of mpirun and horovodrun (`-np 4`, `-np4`, `-hostfile f`, `-rf f`). It stops at the ranks'
/// command: the arguments after it belong to that command.
pub fn with_long_flags(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const SINGLE_DASH: [&str; 3] = ["np", "hostfile", "rf"];
    let mut args = args.into_iter();
    let mut rewritten: Vec<OsString> = args.by_ref().take(2).collect();
    let cli = Cli::command();
    let Some(command) = rewritten.get(1).and_then(|name| cli.find_subcommand(name)) else {
        rewritten.extend(args);
        return rewritten;
    };
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let name = text.strip_prefix('-').unwrap_or_default();
        let stem = name.split('=').next().unwrap_or_default();
        let arg = match name.strip_prefix("np") {
            // Clap would read `-np4` as `-n p4`.
            Some(number) if number.starts_with(|c: char| c.is_ascii_digit()) => {
                format!("--np={number}").into()
            }
            _ if SINGLE_DASH.contains(&stem) => OsString::from(format!("-{text}")),
            _ => arg.clone(),
        };
        let is_flag = text.len() > 1 && text.starts_with('-') && text != "--";
        let takes_next = is_flag && takes_next(command, &arg.to_string_lossy());
        rewritten.push(arg);
        if !is_flag {
            break;
        }
        if takes_next {
            rewritten.extend(args.next());
        }
    }
    rewritten.extend(args);
    rewritten
}

/// Whether the flag's value is the next word.
fn takes_next(command: &clap::Command, flag: &str) -> bool {
    let matches = |arg: &&clap::Arg| match flag.strip_prefix("--") {
        Some(long) => arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
        None => flag.len() == 2 && arg.get_short() == flag.chars().nth(1),
    };
    !flag.contains('=')
        && command.get_arguments().find(matches).is_some_and(|a| a.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(line: &str) -> String {
        let args = with_long_flags(line.split(' ').map(OsString::from));
        args.iter().map(|a| a.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    fn parse(line: &str) -> Result<RunArgs, clap::Error> {
        match Cli::try_parse_from(with_long_flags(line.split(' ').map(OsString::from)))?.command {
            Command::Run(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn single_dash_flags_are_rewritten_up_to_the_command() {
        assert_eq!(rewrite("p run -np 4 cmd -np 8"), "p run --np 4 cmd -np 8");
        assert_eq!(rewrite("p run -v -H np -np 4 -- -np"), "p run -v -H np --np 4 -- -np");
        assert_eq!(
            rewrite("p run -np=4 -hostfile f cmd -hostfile x"),
            "p run --np=4 --hostfile f cmd -hostfile x"
        );
        assert_eq!(rewrite("p run --num-proc 2 -x A=1 -np 3 c"), "p run --num-proc 2 -x A=1 --np 3 c");
        assert_eq!(rewrite("p run --bind cmd -np 3"), "p run --bind cmd -np 3");
        assert_eq!(rewrite("p run -np2 cmd -np3"), "p run --np=2 cmd -np3");
        assert_eq!(rewrite("p bench -np16 --json"), "p bench --np=16 --json");
        assert_eq!(rewrite("p run -rf f cmd -rf"), "p run --rf f cmd -rf");
        assert_eq!(rewrite("p run -npx cmd"), "p run -npx cmd");
        assert_eq!(rewrite("p --version"), "p --version");
        assert_eq!(rewrite("p nonsense -np 3"), "p nonsense -np 3");
    }

    #[test]
    fn the_command_keeps_its_own_flags() {
        let args = parse("p run -np 4 -x A=1 -x B python train.py --lr 3 -v -H x").unwrap();
        assert_eq!(args.np, Some(4));
        assert_eq!(args.env, ["A=1", "B"]);
        assert_eq!(args.command, ["python", "train.py", "--lr", "3", "-v", "-H", "x"]);
        assert!(!args.verbose && args.hosts.list.is_none());
        assert_eq!(parse("p run -n 2 -- -odd").unwrap().command, ["-odd"]);
    }

    #[test]
    fn a_number_of_ranks_that_is_none_is_answered_with_what_to_write() {
        for line in [
            "p run -np -1 cmd",
            "p run -n -1 cmd",
            "p run -np=-1 cmd",
            "p run -np 2.5 cmd",
            "p run -np2x cmd",
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains("write a whole number of ranks from 1, e.g. -np 4"), "{line}: {error}");
        }
        assert_eq!(parse("p run -np2 cmd").unwrap().np, Some(2));
    }

    #[test]
    fn where_to_go_is_said_again_in_the_same_words() {
        let line = "p run -H a:2,b --slots-per-host 3 --rsh r --remote-exe /p cmd";
        let args = parse(line).unwrap();
        let again: Vec<OsString> =
            ["p", "run"].map(OsString::from).into_iter().chain(args.hosts.words()).collect();
        let words = "p run --hosts a:2,b --slots-per-host 3 --rsh r --remote-exe /p";
        assert_eq!(again, words.split(' ').collect::<Vec<_>>());
        assert_eq!(parse("p run --hostfile f cmd").unwrap().hosts.words(), ["--hostfile", "f"]);
        assert_eq!(parse("p run --resource-info f cmd").unwrap().hosts.words(), ["--resource-info", "f"]);
        assert!(HostArgs::default().words().is_empty());
    }

    #[test]
    fn rank_0_reads_unless_another_one_is_named() {
        assert_eq!(parse("p run -np 2 cmd").unwrap().stdin, Reader::Rank(0));
        assert_eq!(parse("p run -np 2 --stdin all cmd").unwrap().stdin, Reader::All);
        assert_eq!(parse("p run -np 2 --stdin none cmd").unwrap().stdin, Reader::Nobody);
        let args = parse("p run -np 4 --stdin 3 --only-rank 3 cmd --only-rank 1").unwrap();
        assert_eq!((args.stdin, args.only_rank), (Reader::Rank(3), Some(3)));
        assert_eq!(args.command, ["cmd", "--only-rank", "1"]);
        let error = parse("p run -np 2 --stdin some cmd").unwrap_err().to_string();
        assert!(error.contains("write a rank's number, all or none"), "{error}");
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        assert!(parse("p run -np 2 --bogus cmd").unwrap_err().to_string().contains("--bogus"));
        assert!(parse("p run -np two cmd").is_err());
        assert!(parse("p run -np 2").unwrap_err().to_string().contains("COMMAND"));
        assert!(parse("p run -H a --hostfile f cmd").is_err());
        assert!(parse("p run -H a --resource-info f cmd").is_err());
        assert!(parse("p run --hostfile a --resource-info f cmd").is_err());
        for other in ["--bind", "--nnodes 2", "--slots-per-host 2"] {
            let error = parse(&format!("p run -rf f {other} cmd")).unwrap_err().to_string();
            assert!(error.contains("cannot be used with") && error.contains("--rankfile"), "{error}");
        }
        assert!(parse("p run --timeout -1 cmd").is_err());
        assert!(parse("p run --timeout 0 cmd").is_err());
        assert_eq!(parse("p run --timeout 1.5 cmd").unwrap().timeout, Some(Duration::from_millis(1500)));
    }
}
