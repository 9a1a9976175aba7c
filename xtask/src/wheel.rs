//! `cargo xtask wheel`: the wheels that people get, of the package and of Horovod's names, tried out in a new environment for every Python here.

use crate::{
    process::{Output, Shell},
    profile::Profile,
    python::{self, Environment, Missing, Torch},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(5 * 60);
/// Versions that may be here under their own name; the oldest is what the wheel asks for.
const VERSIONS: std::ops::RangeInclusive<u32> = 10..=15;

pub fn run(shell: &Shell) -> Result<(), String> {
    let environment = python::environment(shell, Torch::IfThere).map_err(Missing::into_text)?;
    let wheels = shell.target().join("dist/wheels");
    let _ = fs::remove_dir_all(&wheels); // So that nothing of an earlier version is tried out.
    python::build_wheel(shell, &environment, Profile::Release, &wheels)?;
    build_shim(shell, &environment, &wheels)?;
    let pythons = pythons(shell);
    if pythons.is_empty() {
        return Err(
            "no Python from 3.10 is here to try the wheels out with; install one (Debian: python3-venv)"
                .into(),
        );
    }
    let mut failed = Vec::new();
    for (version, python) in &pythons {
        match try_out(shell, &environment, &wheels, version, python) {
            Ok(said) => eprintln!("ok      Python {version}: {said}"),
            Err(why) => {
                eprintln!("FAILED  Python {version}: {why}");
                failed.push(version.as_str());
            }
        }
    }
    if !failed.is_empty() {
        return Err(format!("the wheels do not work with Python {}", failed.join(", ")));
    }
    println!("{}", wheels.display());
    Ok(())
}

/// Horovod's names are pure Python. From a copy: setuptools leaves files beside what it builds.
fn build_shim(shell: &Shell, environment: &Environment, wheels: &Path) -> Result<(), String> {
    let copy = shell.target().join("dist/horovod");
    let _ = fs::remove_dir_all(&copy);
    let mut cp = shell.command("cp");
    shell.must(cp.arg("-r").arg("python/horovod").arg(&copy), Output::Kept, LIMIT)?;
    let mut build = environment.pip(shell);
    build.args(["wheel", "--quiet", "--no-deps", "--wheel-dir"]).arg(wheels).arg(&copy);
    shell.must(&mut build, Output::Kept, LIMIT).map(drop)
}

/// Every Python here that the wheel is for, by version.
fn pythons(shell: &Shell) -> BTreeMap<String, PathBuf> {
    let names = ["python3".to_string()].into_iter().chain(VERSIONS.map(|minor| format!("python3.{minor}")));
    let found = names.filter_map(|name| {
        let mut ask = shell.command(&name);
        ask.args([
            "-c",
            "import sys, venv, ensurepip; print('%d.%02d' % sys.version_info[:2], sys.executable)",
        ]);
        let done = shell.must(&mut ask, Output::Kept, LIMIT).ok()?;
        let (version, path) = done.stdout.trim().split_once(' ')?;
        (version >= "3.10").then(|| (version.to_string(), PathBuf::from(path)))
    });
    found.collect()
}

/// What was tried, or what did not work.
fn try_out(
    shell: &Shell,
    environment: &Environment,
    wheels: &Path,
    version: &str,
    python: &Path,
) -> Result<String, String> {
    let venv = shell.target().join(format!("dist/python-{version}"));
    let _ = fs::remove_dir_all(&venv);
    let mut make = shell.command(python);
    shell.must(make.args(["-m", "venv"]).arg(&venv), Output::Kept, LIMIT)?;
    let own = venv.join("bin/python");
    let install = |what: &[&str]| {
        let mut pip = shell.command(&own);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--find-links"])
            .arg(wheels);
        shell.must(pip.args(what), Output::Kept, LIMIT).map(drop)
    };
    install(&["phalanx", "--no-index"])?;
    install(&["phalanx-horovod", "numpy"])?;
    let check = |what: &str| {
        let mut check = shell.command(&own);
        shell.must(check.arg("python/tools/check_wheel.py").arg(what), Output::Kept, LIMIT).map(drop)
    };
    check("numpy")?;
    match environment.torch_for(&own, shell) {
        Some(packages) => {
            let folder =
                fs::read_dir(venv.join("lib")).ok().and_then(|mut dirs| Some(dirs.next()?.ok()?.path()));
            let place = folder.ok_or("the environment has no lib")?.join("site-packages/torch.pth");
            fs::write(&place, format!("{}\n", packages.display()))
                .map_err(|e| format!("cannot write {}: {e}", place.display()))?;
            check("torch")?;
            Ok("imported, a world of two with numpy, another with torch".into())
        }
        None => Ok("imported, a world of two with numpy; torch is not here for it, and was NOT tried".into()),
    }
}
