//! What `cargo xtask bench` can be told.

use std::path::PathBuf;

pub const HELP: &str = "\
cargo xtask bench [OPTIONS]          collectives; see also `cargo xtask bench torch --help`, `bench graph --help`, `bench engines --help` and `bench topology --help`

  --quick            one short round: shows that everything works, too noisy to quote
  --np 2,4           numbers of ranks
  --peers LIST       of handmade, openmpi, gloo; default: all that this machine has
  --rounds 3         how often everything is repeated; medians over the rounds are told
  --seconds 0.5      for each size in each round
  --python PATH      a python with torch, for Gloo; also PEER_PYTHON
  --net              also between two network namespaces (needs root)
  --out FILE         the page to write; default docs/benchmarks.md, none with --quick; - for none
";

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub np: Vec<u32>,
    /// What was asked for; `None` is whatever is there.
    pub peers: Option<Vec<String>>,
    pub rounds: usize,
    pub seconds: f64,
    pub python: Option<PathBuf>,
    pub net: bool,
    pub out: Option<PathBuf>,
}

const PEERS: [&str; 3] = ["handmade", "openmpi", "gloo"];

impl Options {
    /// `None` when help was asked for.
    pub fn parse(args: &[String]) -> Result<Option<Options>, String> {
        let quick = args.iter().any(|a| a == "--quick");
        let mut options = Options {
            np: vec![2, 4],
            peers: None,
            rounds: if quick { 1 } else { 3 },
            seconds: if quick { 0.1 } else { 0.5 },
            python: std::env::var_os("PEER_PYTHON").map(PathBuf::from),
            net: false,
            out: if quick { None } else { Some("docs/benchmarks.md".into()) },
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--help" | "-h" => return Ok(None),
                "--quick" => {}
                "--net" => options.net = true,
                "--np" => options.np = list(value()?, |n| n.parse().ok().filter(|n| (2..=8).contains(n)))?,
                "--peers" => {
                    let known = |p: &str| PEERS.contains(&p).then(|| p.to_string());
                    options.peers = Some(list(value()?, known)?);
                }
                "--rounds" => options.rounds = one(value()?, |n| n.parse().ok().filter(|n| *n > 0))?,
                "--seconds" => options.seconds = one(value()?, |s| s.parse().ok().filter(|s| *s > 0.0))?,
                "--python" => options.python = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()).filter(|out: &PathBuf| out.as_os_str() != "-"),
                other => return Err(format!("bench: unknown option {other:?}\n\n{HELP}")),
            }
        }
        Ok(Some(options))
    }

    pub fn wants(&self, peer: &str) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.iter().any(|p| p == peer))
    }
}

fn one<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, String> {
    read(text).ok_or_else(|| format!("bench: {text:?} cannot be used here\n\n{HELP}"))
}

fn list<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    text.split(',').map(|word| one(word.trim(), &read)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, String> {
        Options::parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let options = parse("--np 2 --peers handmade,openmpi --rounds 5 --net --out -").unwrap().unwrap();
        assert_eq!((options.np.as_slice(), options.rounds, options.net), ([2].as_slice(), 5, true));
        assert_eq!(options.out, None);
        assert!(options.wants("handmade") && !options.wants("gloo"));
        assert_eq!(parse("--quick").unwrap().unwrap().out, None);
        assert!(parse("--help").unwrap().is_none());
        for bad in ["--np 1", "--np", "--peers mpich", "--rounds 0", "--fast"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
