//! TensorFlow and JAX: an environment for each in the user's cache, and the tests that need it.
//!
//! They are installed only when asked for (`cargo xtask test --with tensorflow,jax`); where they are, their tests always run.

use crate::{
    process::{Output, Shell},
    python::{self, Environment},
    stage::Verdict,
    test::skips,
};
use std::time::{Duration, Instant};

/// A framework whose packages would not fit beside torch's.
pub struct Framework {
    pub name: &'static str,
    /// Pinned: a new version is a change of its own.
    packages: &'static [&'static str],
    size: &'static str,
}

pub const ALL: [Framework; 2] = [
    Framework {
        name: "tensorflow",
        packages: &[
            "tensorflow-cpu==2.21.0",
            "keras==3.15.1",
            "tf_keras==2.21.0",
            "numpy",
            "pytest>=8,<10",
            "cloudpickle==3.1.2",
        ],
        size: "about 2.2 GB on disk, 600 MB to download",
    },
    Framework {
        name: "jax",
        packages: &[
            "jax[cpu]==0.10.2",
            "keras==3.15.1",
            "optax",
            "numpy",
            "pytest>=8,<10",
            "cloudpickle==3.1.2",
        ],
        size: "about 700 MB on disk, 210 MB to download",
    },
];

const TEST_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The frameworks that `--with` names.
pub fn asked(flags: &[String]) -> Result<Vec<&'static str>, String> {
    let known = || ALL.iter().map(|f| f.name).collect::<Vec<_>>().join(",");
    let names = match flags {
        [] => return Ok(Vec::new()),
        [flag, names] if flag == "--with" => names,
        [flag] if flag.starts_with("--with=") => &flag["--with=".len()..],
        _ => return Err(format!("test knows --with {}, not {:?}", known(), flags.join(" "))),
    };
    let find = |name: &str| {
        let found = ALL.iter().find(|f| f.name == name).map(|f| f.name);
        found.ok_or_else(|| format!("--with knows {}, not {name:?}", known()))
    };
    names.split(',').map(find).collect()
}

impl Framework {
    /// Its environment with the package of this clone in it; `None` if it is not installed and must not be.
    pub fn environment(
        &self,
        shell: &Shell,
        environment: &Environment,
        may_install: bool,
    ) -> Result<Option<Environment>, String> {
        python::beside(shell, environment, self.name, self.packages, self.size, may_install)
    }
}

/// Runs the tests of a framework; without it they count as skipped, unless it was asked for.
pub fn test(shell: &Shell, environment: &Environment, framework: &Framework, is_asked: bool) -> Verdict {
    let Framework { name, size, .. } = *framework;
    let folder = format!("python/tests_{name}");
    let own = match framework.environment(shell, environment, is_asked) {
        Ok(Some(own)) => own,
        Ok(None) => {
            let n = skips::tests_in(&shell.root.join(&folder));
            let why = vec![format!(
                "{name}: it is not installed; `cargo xtask test --with {name}` brings it ({size})"
            )];
            return Verdict { skips: skips::Skips { n, why }, ..Verdict::default() };
        }
        Err(why) => return Verdict::failed(why),
    };
    let start = Instant::now();
    let mut pytest = shell.command(&own.python);
    pytest.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", &folder]);
    pytest.current_dir(&shell.root).env("PYTHONDONTWRITEBYTECODE", "1");
    let verdict = match shell.run(&mut pytest, Output::Both, TEST_LIMIT) {
        Ok(done) => python::counted(done),
        Err(why) => Verdict::failed(why),
    };
    Verdict { took: start.elapsed(), ..verdict }
}

#[cfg(test)]
mod tests {
    use super::asked;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn only_frameworks_that_exist_are_asked_for() {
        assert_eq!(asked(&words("")), Ok(vec![]));
        assert_eq!(asked(&words("--with tensorflow,jax")), Ok(vec!["tensorflow", "jax"]));
        assert_eq!(asked(&words("--with=jax")), Ok(vec!["jax"]));
        assert!(asked(&words("--with mxnet")).is_err_and(|why| why.contains("mxnet")));
        assert!(asked(&words("--without jax")).is_err());
    }
}
