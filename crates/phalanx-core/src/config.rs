//! Settings: one typed value, read once. Every value records its origin.
//!
//! - CONF-1: a later source wins over an earlier one: default < environment < call arguments.
//! - CONF-2: an unknown `PHALANX_*` name or a value out of range is an error that says what would be right.
//! - CONF-3: a `HOROVOD_*` setting has an effect or a remark: no setting is ignored silently.

mod horovod;
mod value;

use crate::{Tiers, Way, log::LogFilter};
use std::{borrow::Cow, fmt, time::Duration};
use value::{flag, number, seconds, seconds_or_never, text};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    Environment(String),
    Argument,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Argument => f.write_str("argument"),
        }
    }
}

/// Which ways ranks of one host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory inside a host, links between hosts.
    Auto,
    /// Links everywhere, also inside a host: TCP, or what [`Config::links`] names.
    Tcp,
}

/// Which connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encrypt {
    /// Those that leave a host.
    Auto,
    Always,
    Never,
}

/// Whether the engine looks for better values while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Autotune {
    Off,
    On,
    /// Uses what an earlier run wrote to this file.
    From(String),
}

/// Everything that can be set.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long an operation waits for a rank that is alive.
    pub timeout: Duration,
    /// How long to wait for all ranks to arrive.
    pub start_timeout: Duration,
    pub transport: Transport,
    /// What carries links wherever it leads, if it is not TCP. The transports and their names are a table in phalanx-net.
    pub links: Option<String>,
    pub encrypt: Encrypt,
    /// The interface for links and the meeting point, by name or address.
    pub interface: Option<String>,
    /// Ranks with different host ids do not share memory, whatever machine they are on.
    pub host_id: Option<String>,
    /// Forces one algorithm, by name, where it fits.
    pub algorithm: Option<String>,
    /// The shape of the network above the host.
    pub tiers: Option<Tiers>,
    /// How each tier moves its data; without them, the first through the arena and the others round rings.
    pub ways: Option<Vec<Way>>,
    /// Where rank 0 keeps which ways were the fastest when they were tried.
    pub explore: Option<String>,
    /// The MPI library for `mpi=True`, `-mode m` and `check`; without it, the launcher's.
    pub mpi_lib: Option<String>,
    /// The pipelined piece of a large operation.
    pub segment_bytes: u64,
    /// Small tensors of the engine travel together up to this size.
    pub fusion_bytes: u64,
    /// Operations that the engine remembers by number.
    pub cache_capacity: u64,
    /// Whether the engine replays sequences that repeat.
    pub replay: bool,
    /// After so long the engine says who keeps a tensor waiting; zero: never.
    pub stall_warn: Duration,
    /// After so long the engine gives up; zero: never.
    pub stall_abort: Duration,
    /// Where the engine writes what happened when.
    pub timeline: Option<String>,
    pub timeline_mark_cycles: bool,
    /// Whether the engine looks for better values.
    pub autotune: Autotune,
    /// Where the engine writes what it tried.
    pub autotune_log: Option<String>,
    /// Whether objects must not travel pickled: unpickling runs what the sender likes.
    pub strict: bool,
    /// The steps of an optimizer between two comparisons of the parameters of all ranks; 0: never.
    pub check: Option<u64>,
    /// How often a rank says how fast it trains; zero is never.
    pub throughput: Duration,
    /// What to tell a person once: settings for Horovod that have no effect.
    pub remarks: Vec<String>,
    /// What is logged, if anything is.
    pub log: Option<LogFilter>,
    origins: Vec<(&'static str, Origin)>,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{name} is not a setting{}", nearest.map(|n| format!("; did you mean {n}?")).unwrap_or_default())]
    Unknown { name: String, nearest: Option<&'static str> },
    #[error("{name}={value:?} cannot be used: {why}")]
    Bad { name: &'static str, value: String, why: Cow<'static, str> },
}

/// One setting: its name in the environment, its meaning, and how it is put into a [`Config`].
pub struct Key {
    pub name: &'static str,
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> Result<(), &'static str>,
    show: fn(&Config) -> String,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Every setting. A new one is one entry here and one field above.
pub const KEYS: &[Key] = &[
    Key {
        name: "PHALANX_TIMEOUT",
        doc: "seconds an operation waits for a rank that is alive but does not make the call",
        set: |c, v| seconds(v).map(|s| c.timeout = s),
        show: |c| c.timeout.as_secs_f64().to_string(),
    },
    Key {
        name: "PHALANX_START_TIMEOUT",
        doc: "seconds to wait for all ranks to join",
        set: |c, v| seconds(v).map(|s| c.start_timeout = s),
        show: |c| c.start_timeout.as_secs_f64().to_string(),
    },
    Key {
        name: "PHALANX_TRANSPORT",
        doc: "auto (shared memory inside a host, TCP between hosts), tcp (everywhere) or unix (Unix sockets inside a host, TCP between hosts)",
        set: |c, v| {
            (c.transport, c.links) = match v {
                "" => return Err("write auto or the name of a transport, such as tcp"),
                "auto" | "shm" => (Transport::Auto, None),
                "tcp" => (Transport::Tcp, None),
                // Which others there are, phalanx-net knows.
                name => (Transport::Tcp, Some(name.to_string())),
            };
            Ok(())
        },
        show: |c| c.links.clone().unwrap_or_else(|| format!("{:?}", c.transport).to_lowercase()),
    },
    Key {
        name: "PHALANX_ENCRYPT",
        doc: "auto (connections between hosts are encrypted), always, or never; the same on every rank",
        set: |c, v| {
            c.encrypt = match v {
                "auto" => Encrypt::Auto,
                "always" => Encrypt::Always,
                "never" => Encrypt::Never,
                _ => return Err("write auto, always or never"),
            };
            Ok(())
        },
        show: |c| format!("{:?}", c.encrypt).to_lowercase(),
    },
    Key {
        name: "PHALANX_INTERFACE",
        doc: "the network interface to use, by name or address",
        set: |c, v| text(v).map(|t| c.interface = t),
        show: |c| c.interface.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_HOST_ID",
        doc: "ranks with different ids do not share memory",
        set: |c, v| text(v).map(|t| c.host_id = t),
        show: |c| c.host_id.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_ALGORITHM",
        doc: "the algorithm to use wherever it fits",
        set: |c, v| text(v).map(|t| c.algorithm = t),
        show: |c| c.algorithm.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_TIERS",
        doc: "the shape of the network, ranks of a host first, e.g. 4x8x2",
        set: |c, v| v.parse().map(|t| c.tiers = Some(t)).map_err(|_| "write a shape like 8, 4x3 or 4x8x2"),
        show: |c| c.tiers.as_ref().map(ToString::to_string).unwrap_or_default(),
    },
    Key {
        name: "PHALANX_WAYS",
        doc: "how each tier of PHALANX_TIERS moves its data: arena, ring, halving or direct, e.g. arena,ring",
        set: |c, v| {
            let wrong =
                "write arena, ring, halving or direct for each tier of PHALANX_TIERS, e.g. arena,ring";
            Way::list(v).map(|ways| c.ways = Some(ways)).map_err(|_| wrong)
        },
        show: |c| c.ways.as_deref().map(Way::show).unwrap_or_default(),
    },
    Key {
        name: "PHALANX_EXPLORE",
        doc: "file in which rank 0 keeps which ways -mode p found to be the fastest; the next run on the same hosts uses them",
        set: |c, v| text(v).map(|t| c.explore = t),
        show: |c| c.explore.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_MPI_LIB",
        doc: "the MPI library that phalanx.ddl compares with, by name or path; unset: that of the launcher, mpirun or mpiexec",
        set: |c, v| text(v).map(|t| c.mpi_lib = t),
        show: |c| c.mpi_lib.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_SEGMENT_BYTES",
        doc: "the pipelined piece of a large operation, 4096 to 262144",
        set: |c, v| match v.parse() {
            Ok(bytes @ 4096..=262_144) => {
                c.segment_bytes = bytes;
                Ok(())
            }
            _ => Err("write a number from 4096 to 262144"),
        },
        show: |c| c.segment_bytes.to_string(),
    },
    Key {
        name: "PHALANX_FUSION_BYTES",
        doc: "small tensors of the engine are fused up to this size; 0: each is sent alone",
        set: |c, v| number(v).map(|n| c.fusion_bytes = n),
        show: |c| c.fusion_bytes.to_string(),
    },
    Key {
        name: "PHALANX_CACHE_CAPACITY",
        doc: "operations that the engine caches, to announce them by number; 0: none",
        set: |c, v| number(v).map(|n| c.cache_capacity = n),
        show: |c| c.cache_capacity.to_string(),
    },
    Key {
        name: "PHALANX_REPLAY",
        doc: "1: sequences that repeat run without negotiation; 0: every step is negotiated",
        set: |c, v| flag(v).map(|f| c.replay = f),
        show: |c| u8::from(c.replay).to_string(),
    },
    Key {
        name: "PHALANX_STALL_WARN",
        doc: "seconds after which the engine reports which rank a tensor waits for; 0: never",
        set: |c, v| seconds_or_never(v).map(|s| c.stall_warn = s),
        show: |c| c.stall_warn.as_secs_f64().to_string(),
    },
    Key {
        name: "PHALANX_STALL_ABORT",
        doc: "seconds after which a waiting tensor fails on all ranks; 0: never",
        set: |c, v| seconds_or_never(v).map(|s| c.stall_abort = s),
        show: |c| c.stall_abort.as_secs_f64().to_string(),
    },
    Key {
        name: "PHALANX_TIMELINE",
        doc: "file to which the engine writes what happened when; ranks other than 0 add their number to the name",
        set: |c, v| text(v).map(|t| c.timeline = t),
        show: |c| c.timeline.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_TIMELINE_MARK_CYCLES",
        doc: "1: the timeline also marks every time the engine looks for work",
        set: |c, v| flag(v).map(|f| c.timeline_mark_cycles = f),
        show: |c| u8::from(c.timeline_mark_cycles).to_string(),
    },
    Key {
        name: "PHALANX_AUTOTUNE",
        doc: "1: the engine measures which sizes and algorithms are fastest; a file: it uses the values that an earlier run logged there",
        set: |c, v| {
            c.autotune = match flag(v) {
                Ok(true) => Autotune::On,
                Ok(false) => Autotune::Off,
                Err(_) => Autotune::From(v.to_string()),
            };
            Ok(())
        },
        show: |c| match &c.autotune {
            Autotune::Off => "0".into(),
            Autotune::On => "1".into(),
            Autotune::From(path) => path.clone(),
        },
    },
    Key {
        name: "PHALANX_AUTOTUNE_LOG",
        doc: "file to which rank 0 writes what autotuning tried, as CSV",
        set: |c, v| text(v).map(|t| c.autotune_log = t),
        show: |c| c.autotune_log.clone().unwrap_or_default(),
    },
    Key {
        name: "PHALANX_STRICT",
        doc: "1: ranks do not send pickled Python objects, because unpickling can run arbitrary code; 0: they may",
        set: |c, v| flag(v).map(|f| c.strict = f),
        show: |c| u8::from(c.strict).to_string(),
    },
    Key {
        name: "PHALANX_CHECK",
        doc: "N: every N steps ranks compare digests of their parameters, and a difference is an error on all of them; 0: never. Unset: \
              in the first 8 reductions, in numbers 16, 32, 64 and every 100th, and a difference is a warning",
        set: |c, v| number(v).map(|n| c.check = Some(n)),
        show: |c| c.check.map(|n| n.to_string()).unwrap_or_default(),
    },
    Key {
        name: "PHALANX_THROUGHPUT",
        doc: "N: rank 0 prints every N seconds how many steps a second a torch optimizer makes, and how long they wait for gradients; 0: never",
        set: |c, v| number(v).map(|n| c.throughput = Duration::from_secs(n)),
        show: |c| c.throughput.as_secs().to_string(),
    },
    Key {
        name: "PHALANX_LOG",
        doc: "log level on stderr: off, error, warn, info, debug or trace, also per module: info,phalanx_net=debug",
        set: |c, v| v.parse().map(|f| c.log = Some(f)),
        show: |c| c.log.as_ref().map(ToString::to_string).unwrap_or_default(),
    },
];

/// Names with the same prefix that are not settings: the contract between launcher and ranks.
pub const RESERVED: &[&str] = &[
    "PHALANX_RANK",
    "PHALANX_SIZE",
    "PHALANX_LOCAL_RANK",
    "PHALANX_LOCAL_SIZE",
    "PHALANX_CROSS_RANK",
    "PHALANX_CROSS_SIZE",
    "PHALANX_HOSTNAME",
    "PHALANX_ROLE",
    "PHALANX_SERVERS",
    "PHALANX_RENDEZVOUS",
    "PHALANX_SECRET",
    "PHALANX_SECRET_FD",
    "PHALANX_SECRET_FILE",
    "PHALANX_LAUNCHER",
    "PHALANX_JOB_BEGAN",
    "PHALANX_CORES",
];

impl Default for Config {
    fn default() -> Config {
        Config {
            timeout: Duration::from_secs(1800),
            start_timeout: Duration::from_secs(60),
            transport: Transport::Auto,
            links: None,
            encrypt: Encrypt::Auto,
            interface: None,
            host_id: None,
            algorithm: None,
            tiers: None,
            ways: None,
            explore: None,
            mpi_lib: None,
            segment_bytes: 128 << 10,
            fusion_bytes: 8 << 20,
            cache_capacity: 4096,
            replay: true,
            stall_warn: Duration::from_secs(10),
            stall_abort: Duration::ZERO,
            timeline: None,
            timeline_mark_cycles: false,
            autotune: Autotune::Off,
            autotune_log: None,
            strict: false,
            check: None,
            throughput: Duration::ZERO,
            remarks: Vec::new(),
            log: None,
            origins: Vec::new(),
        }
    }
}

impl Config {
    /// Settings from these environment variables; others than `PHALANX_*` are passed over.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let mut horovod = Vec::new();
        for (name, value) in vars {
            if name.starts_with("HOROVOD_") {
                horovod.push((name, value));
                continue;
            }
            if !name.starts_with("PHALANX_")
                || RESERVED.contains(&name.as_str())
                || name.starts_with("PHALANX_TEST_")
            {
                continue;
            }
            let Some(key) = KEYS.iter().find(|k| k.name == name) else {
                let nearest = nearest(&name);
                return Err(ConfigError::Unknown { name, nearest });
            };
            (key.set)(&mut config, &value).map_err(|why| ConfigError::Bad {
                name: key.name,
                value,
                why: why.into(),
            })?;
            config.origins.push((key.name, Origin::Environment(name)));
        }
        // Sorted, so that of two names for one setting the same one wins every time.
        horovod.sort();
        horovod.into_iter().for_each(|(name, value)| config.translate(name, &value));
        Ok(config)
    }

    /// A setting that a script made for Horovod. Ours wins; what has no effect is remarked (CONF-3).
    fn translate(&mut self, name: String, value: &str) {
        let Some((_, ours)) = horovod::SETTINGS.iter().find(|(theirs, _)| *theirs == name) else {
            self.remarks.extend(horovod::remark(&name));
            return;
        };
        let meant = match name.as_str() {
            "HOROVOD_STALL_CHECK_DISABLE" if flag(value) == Ok(true) => "0",
            "HOROVOD_STALL_CHECK_DISABLE" if flag(value) == Ok(false) => return,
            "HOROVOD_STALL_CHECK_DISABLE" => "neither 0 nor 1",
            "HOROVOD_TIMELINE" if value == "DYNAMIC" => return,
            _ => value,
        };
        let key = KEYS.iter().find(|k| k.name == *ours).expect("SETTINGS names our keys");
        if let Origin::Environment(winner) = self.origin(ours) {
            self.remarks.push(format!("{name} has no effect: {winner} is also set and takes precedence"));
        } else if let Err(why) = (key.set)(self, meant) {
            self.remarks.push(format!("{name}={value:?} has no effect: {why}"));
        } else {
            self.origins.push((key.name, Origin::Environment(name)));
        }
    }

    /// Sets one value by its name, as an argument would.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let Some(key) = KEYS.iter().find(|k| k.name == name) else {
            return Err(ConfigError::Unknown { name: name.to_string(), nearest: nearest(name) });
        };
        (key.set)(self, value).map_err(|why| ConfigError::Bad {
            name: key.name,
            value: value.to_string(),
            why: why.into(),
        })?;
        self.origins.push((key.name, Origin::Argument));
        Ok(())
    }

    /// Whether somebody set this value, rather than leaving the default.
    pub fn is_set(&self, name: &str) -> bool {
        self.origins.iter().any(|(n, _)| *n == name)
    }

    fn origin(&self, name: &str) -> Origin {
        self.origins.iter().rev().find(|(n, _)| *n == name).map_or(Origin::Default, |(_, o)| o.clone())
    }

    /// Name, value, origin and meaning of every setting.
    pub fn show(&self) -> Vec<(&'static str, String, Origin, &'static str)> {
        KEYS.iter().map(|k| (k.name, (k.show)(self), self.origin(k.name), k.doc)).collect()
    }
}

/// The known name with the fewest edits, if it is near enough to be meant.
fn nearest(name: &str) -> Option<&'static str> {
    let names = KEYS.iter().map(|k| k.name).chain(RESERVED.iter().copied());
    names
        .map(|known| (edits(name, known), known))
        .min()
        .filter(|(distance, _)| *distance <= 5)
        .map(|(_, known)| known)
}

/// Levenshtein distance, one row at a time.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_vars(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())))
    }

    #[test]
    fn the_environment_wins_over_defaults_and_is_named() {
        let config = vars(&[("PHALANX_TIMEOUT", "2.5"), ("HOME", "x"), ("PHALANX_RANK", "3")]).unwrap();
        assert_eq!(config.timeout, Duration::from_millis(2500), "CONF-1");
        let shown = config.show();
        assert_eq!(shown[0].2.to_string(), "environment PHALANX_TIMEOUT");
        assert_eq!(shown[1].2, Origin::Default);
    }

    #[test]
    fn settings_of_horovod_scripts_count_unless_ours_are_there() {
        let config = vars(&[
            ("HOROVOD_FUSION_THRESHOLD", "1000"),
            ("HOROVOD_CACHE_CAPACITY", "(None,)"),
            ("HOROVOD_STALL_CHECK_TIME_SECONDS", "3"),
            ("PHALANX_STALL_WARN", "7"),
            ("HOROVOD_RANK", "0"),
        ]);
        let config = config.unwrap();
        assert_eq!((config.fusion_bytes, config.cache_capacity), (1000, Config::default().cache_capacity));
        assert_eq!(config.stall_warn, Duration::from_secs(7), "CONF-1");
        assert_eq!(
            config.remarks,
            [
                "HOROVOD_CACHE_CAPACITY=\"(None,)\" has no effect: write a whole number, without K, M or G",
                "HOROVOD_STALL_CHECK_TIME_SECONDS has no effect: PHALANX_STALL_WARN is also set and takes precedence",
            ],
            "CONF-3"
        );
        let off = vars(&[("HOROVOD_STALL_CHECK_DISABLE", "1"), ("HOROVOD_TIMELINE", "DYNAMIC")]).unwrap();
        assert_eq!((off.stall_warn, off.timeline), (Duration::ZERO, None));
        let both =
            vars(&[("HOROVOD_STALL_CHECK_DISABLE", "True"), ("HOROVOD_STALL_CHECK_TIME_SECONDS", "3")])
                .unwrap();
        assert_eq!(
            (both.stall_warn, both.remarks.as_slice()),
            (
                Duration::ZERO,
                &["HOROVOD_STALL_CHECK_TIME_SECONDS has no effect: HOROVOD_STALL_CHECK_DISABLE is also set and takes precedence"
                    .to_string()][..]
            ),
            "CONF-3"
        );
        let tuned = vars(&[("HOROVOD_AUTOTUNE", "True")]).unwrap();
        assert_eq!(tuned.autotune, Autotune::On, "Python writes True for 1");
        let odd = vars(&[("HOROVOD_STALL_CHECK_DISABLE", "maybe"), ("HOROVOD_CYCLE_TIME", "5")]).unwrap();
        assert_eq!(odd.stall_warn, Config::default().stall_warn);
        assert_eq!(odd.remarks.len(), 2, "CONF-3: {:?}", odd.remarks);
        assert!(odd.remarks[0].starts_with("HOROVOD_CYCLE_TIME has no effect: Phalanx has no cycles"));
    }

    #[test]
    fn our_name_for_the_timeline_wins() {
        assert_eq!(vars(&[("HOROVOD_TIMELINE", "t.json")]).unwrap().timeline.as_deref(), Some("t.json"));
        let both = vars(&[("PHALANX_TIMELINE", "a.json"), ("HOROVOD_TIMELINE", "b.json")]).unwrap();
        assert_eq!(both.timeline.as_deref(), Some("a.json"));
    }

    #[test]
    fn typos_are_answered_with_the_nearest_name() {
        let error = vars(&[("PHALANX_TIMOUT", "1")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "PHALANX_TIMOUT is not a setting; did you mean PHALANX_TIMEOUT?",
            "CONF-2"
        );
        let error = vars(&[("PHALANX_TIMEOUT", "soon")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "PHALANX_TIMEOUT=\"soon\" cannot be used: write a positive number of seconds"
        );
    }

    #[test]
    fn a_log_that_nobody_could_write_is_refused_in_one_sentence() {
        assert_eq!(vars(&[("PHALANX_LOG", "info")]).unwrap().log, "info".parse().ok());
        assert_eq!(
            vars(&[("PHALANX_LOG", "loud")]).unwrap_err().to_string(),
            "PHALANX_LOG=\"loud\" cannot be used: write off, error, warn, info, debug or trace; modules may have their own level: \
             info,phalanx_net=debug",
            "CONF-2"
        );
    }

    #[test]
    fn a_transport_is_auto_or_a_name_that_is_shown_again() {
        for (value, transport, links) in [
            ("auto", Transport::Auto, None),
            ("tcp", Transport::Tcp, None),
            ("unix", Transport::Tcp, Some("unix")),
        ] {
            let config = vars(&[("PHALANX_TRANSPORT", value)]).unwrap();
            assert_eq!((config.transport, config.links.as_deref()), (transport, links));
            assert_eq!(config.show()[2].1, value);
        }
        assert!(vars(&[("PHALANX_TRANSPORT", "")]).is_err());
    }
}
