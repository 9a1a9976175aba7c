//! `cargo xtask engines`: which engines of clusters are on this machine, and the tests that start ranks under the real ones.

use crate::{
    process::{Output, Shell},
    python::{self, Torch},
};
use std::time::Duration;

pub const HELP: &str = "\
cargo xtask engines [--install]

  Says which engines of clusters this machine has, and runs the tests that start ranks under them, between network namespaces (root).
  What is absent is skipped, with the Debian package that has it. The compilers of MPI are for `cargo xtask bench`. Ray and mpi4py are installed by `cargo xtask test`. These tests are also part of
  `cargo xtask test`, but for one that waits for a time limit of Slurm.

  --install      first installs what is absent, with apt-get (root)
";

const PYTHON_TESTS: [&str; 6] = [
    "python/tests/test_ray.py",
    "python/tests/test_ray_hosts.py",
    "python/tests/test_mpi4py.py",
    "python/tests/test_engines_bits.py",
    "python/tests/test_ddl_mpi.py",
    "python/tests/test_ddl_hosts.py",
];

/// Lets a test wait for a time limit of Slurm, which takes a minute.
const TIME_LIMIT: &str = "PHALANX_TEST_TIME_LIMIT";

const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What users call it, the program that shows that it is here, and the Debian packages that bring it.
const ENGINES: [(&str, &str, &str); 8] = [
    ("network namespaces", "ip", "iproute2"),
    ("Open MPI", "mpirun.openmpi", "openmpi-bin libpmix2"),
    ("MPICH", "mpiexec.hydra", "mpich"),
    ("Open MPI's compiler", "mpicc.openmpi", "libopenmpi-dev"),
    ("MPICH's compiler", "mpicc.mpich", "libmpich-dev"),
    ("Slurm", "slurmctld", "munge slurmctld slurmd slurm-client"),
    ("etcd", "etcd", "etcd-server"),
    ("ssh", "/usr/sbin/sshd", "openssh-server openssh-client"),
];

pub fn run(shell: &Shell, flags: &[String]) -> Result<(), String> {
    match flags.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["--install"] => install(shell)?,
        ["--help" | "-h"] => {
            print!("{HELP}");
            return Ok(());
        }
        _ => return Err(format!("engines knows --install, not {:?}\n\n{HELP}", flags.join(" "))),
    }
    for (engine, program, packages) in ENGINES {
        match is_here(shell, program) {
            true => eprintln!("{engine:20} {program}"),
            false => eprintln!("{engine:20} absent; Debian: {packages}"),
        }
    }
    let under_engines = "test(engines::) or test(kube::pods) or binary(launched)";
    let filter = ["--no-fail-fast", "--success-output", "never", "-E", under_engines];
    let mut tests = shell.cargo("nextest run --package phalanx-launch --package phalanx-mpi");
    shell.must(tests.args(filter).env(TIME_LIMIT, "1"), Output::Shown, LIMIT)?;
    python_tests(shell)
}

/// Ray, mpi4py, and one training with the same bits under every engine; torch only if it was installed before.
fn python_tests(shell: &Shell) -> Result<(), String> {
    let environment = match python::environment(shell, Torch::IfThere) {
        Ok(environment) => environment,
        Err(why) => {
            eprintln!("Ray and mpi4py are skipped: {}", why.into_text());
            return Ok(());
        }
    };
    shell.must(&mut shell.cargo("build --package phalanx-py --profile test"), Output::Shown, LIMIT)?;
    python::install_built(shell, &environment)?;
    let mut pytest = shell.command(&environment.python);
    pytest.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]).args(PYTHON_TESTS);
    pytest.current_dir(&shell.root).env("PYTHONDONTWRITEBYTECODE", "1");
    shell.must(&mut pytest, Output::Shown, LIMIT).map(drop)
}

fn install(shell: &Shell) -> Result<(), String> {
    let absent = ENGINES.iter().filter(|(_, program, _)| !is_here(shell, program));
    let packages: Vec<&str> = absent.flat_map(|(_, _, packages)| packages.split(' ')).collect();
    if packages.is_empty() {
        eprintln!("nothing is absent");
        return Ok(());
    }
    eprintln!("installing {} with apt-get ...", packages.join(" "));
    let mut update = shell.command("apt-get");
    shell.must(update.args(["update", "-q"]), Output::Kept, LIMIT)?;
    let mut install = shell.command("apt-get");
    install.args(["install", "-y", "-q", "--no-install-recommends"]).args(&packages);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    shell.must(&mut install, Output::Shown, LIMIT).map(drop)
}

fn is_here(shell: &Shell, program: &str) -> bool {
    let mut look = shell.command("sh");
    shell.works(look.args(["-c", &format!("command -v {program}")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_told_with_packages_and_unknown_flags_are_refused() {
        let shell = Shell::new().unwrap();
        assert!(is_here(&shell, "sh") && !is_here(&shell, "no-such-engine"));
        assert!(run(&shell, &["--instal".into()]).unwrap_err().contains("engines knows --install"));
        assert!(PYTHON_TESTS.iter().all(|file| shell.root.join(file).exists()));
        assert!(ENGINES.iter().all(|(_, _, packages)| packages.split(' ').all(|p| !p.is_empty())));
    }
}
