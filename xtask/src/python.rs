//! The Python package: an environment for it in the user's cache, the wheel, and its tests.
//!
//! Heavy packages (torch) are installed once for all clones; what belongs to this clone goes into its target directory.

use crate::{
    lint,
    process::{Done, Output, Shell},
    profile::Profile,
    stage::Verdict,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Light packages that every Python test needs.
const LIGHT: &[&str] = &["cloudpickle==3.1.2", "maturin>=1.9,<2", "numpy", "pytest>=8,<10"];
/// What most of them need. Pinned: a new torch is a change of its own.
const HEAVY: &[&str] = &["torch==2.15.0"];
const HEAVY_SIZE: &str = "about 5 GB on disk, 3 GB to download";
/// Reads the event files that tests write.
const READERS: &[&str] = &["tensorboard==2.21.0"];
const READERS_SIZE: &str = "about 80 MB on disk, 27 MB to download";
/// Writes and runs models, for the tests of those that are imported.
const MODELS: &[&str] = &["onnx==1.23.2", "onnxruntime==1.31.1", "onnxscript==0.7.2"];
const MODELS_SIZE: &str = "about 110 MB on disk, 40 MB to download";
/// Engines of clusters, and what programs use beside us under them.
const CLUSTERS: &[&str] = &["ray==2.60.0", "mpi4py==4.1.2"];
const CLUSTERS_SIZE: &str = "about 265 MB on disk, 83 MB to download";

/// Keras on torch's tensors.
const KERAS: &[&str] = &["keras==3.15.1"];
const KERAS_SIZE: &str = "about 45 MB on disk, 10 MB to download";

const INSTALL_LIMIT: Duration = Duration::from_secs(14 * 60);
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
const TEST_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A Python with everything the tests need.
pub struct Environment {
    /// This clone's own interpreter, in which the wheel is installed.
    pub python: PathBuf,
    /// The one that all clones share, with the tools.
    shared: PathBuf,
    pub has_torch: bool,
}

impl Environment {
    /// pip of the environment that all clones share.
    pub fn pip(&self, shell: &Shell) -> Command {
        let mut pip = shell.command(&self.shared);
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip
    }

    /// The packages among which another interpreter finds torch: those of its own version, if they were installed before.
    pub fn torch_for(&self, python: &Path, shell: &Shell) -> Option<PathBuf> {
        let mut ask = shell.command(python);
        ask.args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]);
        let version = shell.must(&mut ask, Output::Kept, Duration::from_secs(60)).ok()?.stdout;
        let venv = cache_dir()?.join(format!("python-{}", version.trim()));
        let packages = venv.join(format!("lib/python{}/site-packages", version.trim()));
        is_installed(&venv, HEAVY).then_some(packages)
    }
}

/// Why there is no environment; not a failure of the project.
pub enum Missing {
    Python(String),
    Failed(String),
}

impl Missing {
    pub fn into_text(self) -> String {
        match self {
            Missing::Python(why) | Missing::Failed(why) => why,
        }
    }
}

/// Which torch will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torch {
    /// The one that tests are written against.
    Pinned,
    /// Any that this machine's python3 has; only without one the pinned one.
    Any,
    /// The pinned one if it was installed before.
    IfThere,
}

/// The environment, made if it is not there yet; says what it installs and where.
pub fn environment(shell: &Shell, torch: Torch) -> Result<Environment, Missing> {
    let mut version = shell.command("python3");
    version.args(["-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]);
    let version = shell
        .must(&mut version, Output::Kept, Duration::from_secs(60))
        .map_err(|_| Missing::Python("python3 with venv is not here (Debian: python3-venv)".into()))?;
    let version = version.stdout.trim().to_string();
    let cache =
        cache_dir().ok_or_else(|| Missing::Python("neither XDG_CACHE_HOME nor HOME is set".into()))?;
    let shared = cache.join(format!("python-{version}"));
    install(shell, &shared, LIGHT, "").map_err(Missing::Failed)?;
    install(shell, &shared, lint::PACKAGES, "").map_err(Missing::Failed)?;
    let for_tests =
        [(READERS, READERS_SIZE), (CLUSTERS, CLUSTERS_SIZE), (MODELS, MODELS_SIZE), (KERAS, KERAS_SIZE)];
    for (packages, size) in for_tests.into_iter().filter(|_| torch == Torch::Pinned) {
        if let Err(why) = install(shell, &shared, packages, size) {
            let packages = packages.join(" and ");
            eprintln!("note: {packages} cannot be installed ({why}); tests that need them skip themselves");
        }
    }
    let found = if torch == Torch::Any { installed_torch(shell) } else { None };
    let has_torch = found.is_some()
        || torch == Torch::IfThere && is_installed(&shared, HEAVY)
        || torch != Torch::IfThere
            && match install(shell, &shared, HEAVY, HEAVY_SIZE) {
                Ok(()) => true,
                Err(why) => {
                    eprintln!("note: torch cannot be installed ({why}); what needs it is left out");
                    false
                }
            };
    let own = shell.target().join("python");
    let python = own.join("bin/python");
    if !python.exists() {
        run(shell, "python3", &["-m", "venv", "--without-pip", &own.to_string_lossy()], INSTALL_LIMIT)
            .map_err(Missing::Failed)?;
    }
    let packages = |at: &Path| at.join(format!("lib/python{version}/site-packages"));
    // The shim is pure Python: it is used where it lies.
    let shim = shell.root.join("python/horovod/src");
    let found = found.map(|path| path + "\n").unwrap_or_default();
    let paths = format!("{found}{}\n{}\n", packages(&shared).display(), shim.display());
    fs::write(packages(&own).join("shared.pth"), paths)
        .map_err(|e| Missing::Failed(format!("cannot write into {}: {e}", own.display())))?;
    let shared = shared.join("bin/python");
    Ok(Environment { python, shared, has_torch })
}

/// Where the packages are among which this machine's python3 finds torch.
fn installed_torch(shell: &Shell) -> Option<String> {
    let mut look = shell.command("python3");
    look.args(["-c", "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"]);
    let done = shell.must(&mut look, Output::Kept, Duration::from_secs(60)).ok()?;
    Some(done.stdout.trim().to_string())
}

/// The environment with the package of this clone in it.
pub fn ready(shell: &Shell, torch: Torch, profile: Profile) -> Result<Environment, String> {
    let environment = environment(shell, torch).map_err(Missing::into_text)?;
    install_package(shell, &environment, profile)?;
    Ok(environment)
}

/// `cargo xtask python`: makes the environment and says where it is.
pub fn prepare(shell: &Shell) -> Result<(), String> {
    let environment = ready(shell, Torch::Pinned, Profile::Release)?;
    let torch = if environment.has_torch { "with" } else { "without" };
    println!("{} ({torch} torch)", environment.python.display());
    Ok(())
}

/// Builds the wheel of this clone and installs it into its environment. Cargo shows how far it is.
pub fn install_package(shell: &Shell, environment: &Environment, profile: Profile) -> Result<(), String> {
    let wheels = shell.target().join("wheels");
    let _ = fs::remove_dir_all(&wheels); // So that there is exactly one afterwards.
    build_wheel(shell, environment, profile, &wheels)?;
    install_wheel(shell, environment, &wheels)
}

/// Builds the wheel of this clone into a folder.
pub fn build_wheel(
    shell: &Shell,
    environment: &Environment,
    profile: Profile,
    to: &Path,
) -> Result<(), String> {
    let mut build = shell.command(&environment.shared);
    build.args(["-m", "maturin", "build", "--profile", profile.name(), "--out"]).arg(to);
    build.env("CARGO_TARGET_DIR", shell.target());
    shell.must(&mut build, Output::Shown, BUILD_LIMIT).map(drop)
}

/// Installs the one wheel of this folder.
fn install_wheel(shell: &Shell, environment: &Environment, wheels: &Path) -> Result<(), String> {
    let wheel = fs::read_dir(wheels)
        .map_err(|e| format!("{}: {e}", wheels.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or("no wheel was made")?;
    let mut install = shell.command(&environment.shared);
    install.args(["-m", "pip", "--python"]).arg(&environment.python).args([
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
    ]);
    install.arg("--disable-pip-version-check").arg(&wheel);
    shell.must(&mut install, Output::Shown, INSTALL_LIMIT).map(drop)
}

/// Builds a wheel around what cargo built for the tests, and installs it: maturin would choose other features and build everything again.
/// `cargo xtask wheel` checks the wheels that maturin makes.
pub fn install_built(shell: &Shell, environment: &Environment) -> Result<(), String> {
    let wheels = shell.target().join("wheels");
    let _ = fs::remove_dir_all(&wheels); // So that there is exactly one afterwards.
    let mut assemble = shell.command(&environment.shared);
    assemble
        .arg("python/tools/assemble_wheel.py")
        .arg(shell.built(Profile::Test, "lib_phalanx.so"))
        .arg(&wheels);
    shell.must(&mut assemble, Output::Kept, INSTALL_LIMIT)?;
    install_wheel(shell, environment, &wheels)
}

/// Runs the tests; the text ends with a line that counts them.
pub fn test(shell: &Shell, environment: &Environment) -> Verdict {
    let mut pytest = shell.command(&environment.python);
    pytest.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "python/tests"]);
    pytest.current_dir(&shell.root).env("PYTHONDONTWRITEBYTECODE", "1");
    let done = match shell.run(&mut pytest, Output::Both, TEST_LIMIT) {
        Ok(done) => done,
        Err(why) => return Verdict::failed(why),
    };
    counted(done)
}

/// What pytest has said, as a verdict; the text ends with a line that counts the tests.
pub fn counted(done: Done) -> Verdict {
    let [passed, failed, errors, skipped] = counts(&done.text);
    let failed = failed + errors;
    let failure = done.check().err().map(|why| format!("{failed} Python tests failed: {why}"));
    let counted = format!("\ntest result: {passed} passed; {failed} failed; {skipped} skipped\n");
    Verdict { failure, text: done.text + &counted, is_shown: true, ..Verdict::default() }
}

/// An environment of this clone beside the first one, with packages that would not fit into that, and with the wheel that was built for it.
/// `None` if the packages are not there and must not be installed.
pub fn beside(
    shell: &Shell,
    environment: &Environment,
    name: &str,
    packages: &[&str],
    size: &str,
    may_install: bool,
) -> Result<Option<Environment>, String> {
    let mut ask = shell.command(&environment.shared);
    ask.args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]);
    let version = shell.must(&mut ask, Output::Kept, Duration::from_secs(60))?.stdout.trim().to_string();
    let shared =
        cache_dir().ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join(format!("{name}-{version}"));
    let packages_of = |at: &Path| at.join(format!("lib/python{version}/site-packages"));
    if may_install {
        install(shell, &shared, packages, size)?;
    } else if !packages_of(&shared).join(name).is_dir() {
        return Ok(None);
    }
    let own = shell.target().join(name);
    let python = own.join("bin/python");
    if !python.exists() {
        run(shell, "python3", &["-m", "venv", "--without-pip", &own.to_string_lossy()], INSTALL_LIMIT)?;
    }
    let paths =
        format!("{}\n{}\n", packages_of(&shared).display(), shell.root.join("python/horovod/src").display());
    fs::write(packages_of(&own).join("shared.pth"), paths)
        .map_err(|e| format!("cannot write into {}: {e}", own.display()))?;
    let own = Environment { python, shared: environment.shared.clone(), has_torch: false };
    install_wheel(shell, &own, &shell.target().join("wheels"))?;
    Ok(Some(own))
}

/// The numbers of pytest's last line: "2 failed, 10 passed, 1 skipped in 3.21s".
fn counts(text: &str) -> [u64; 4] {
    let says =
        |line: &&str| [" passed", " failed", " error", " skipped"].iter().any(|word| line.contains(word));
    let last = text.lines().rev().find(says).unwrap_or_default();
    let number = |word: &str| {
        let mut words = last.split([' ', ',']).filter(|w| !w.is_empty());
        let mut before = words.next()?;
        for now in words {
            if now.trim_end_matches('s') == word {
                return before.parse().ok();
            }
            before = now;
        }
        None
    };
    ["passed", "failed", "error", "skipped"].map(|word| number(word).unwrap_or(0))
}

fn cache_dir() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).map(|dir| dir.join("phalanx"))
}

/// Installs packages into a shared environment unless the same ones are there. A lock keeps two clones apart.
fn install(shell: &Shell, venv: &Path, packages: &[&str], size: &str) -> Result<(), String> {
    if is_installed(venv, packages) {
        return Ok(());
    }
    fs::create_dir_all(venv).map_err(|e| format!("cannot make {}: {e}", venv.display()))?;
    let _lock = lock(venv)?;
    if is_installed(venv, packages) {
        return Ok(());
    }
    let size = if size.is_empty() { String::new() } else { format!(" ({size})") };
    eprintln!("installing {}{size} into {}, once for all clones ...", packages.join(", "), venv.display());
    let python = venv.join("bin/python");
    if !python.exists() {
        run(shell, "python3", &["-m", "venv", &venv.to_string_lossy()], INSTALL_LIMIT)?;
    }
    let mut args = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    args.extend(packages);
    run(shell, &python.to_string_lossy(), &args, INSTALL_LIMIT)?;
    let stamp = stamp(venv, packages);
    fs::write(&stamp, packages.join("\n")).map_err(|e| format!("cannot write {}: {e}", stamp.display()))
}

/// Where it is noted that these packages are installed.
fn stamp(venv: &Path, packages: &[&str]) -> PathBuf {
    venv.join(format!("{}.installed", packages[0].split(['=', '>']).next().unwrap_or("packages")))
}

fn is_installed(venv: &Path, packages: &[&str]) -> bool {
    fs::read_to_string(stamp(venv, packages)).is_ok_and(|have| have == packages.join("\n"))
}

/// Held until dropped; the system gives it back if we are killed.
fn lock(venv: &Path) -> Result<fs::File, String> {
    let path = venv.join("lock");
    let file = fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(file)
}

fn run(shell: &Shell, program: &str, args: &[&str], limit: Duration) -> Result<(), String> {
    let mut command = shell.command(program);
    command.args(args);
    shell.must(&mut command, Output::Shown, limit).map(drop)
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn the_last_line_of_pytest_is_understood() {
        assert_eq!(counts("....\n12 passed, 1 skipped in 3.21s\n"), [12, 0, 0, 1]);
        assert_eq!(counts("x\n=== 2 failed, 10 passed in 9.9s ===\n"), [10, 2, 0, 0]);
        assert_eq!(counts("ERROR test_a.py\n3 errors in 0.5s\n"), [0, 0, 3, 0]);
        assert_eq!(counts("collected 0 items\n"), [0; 4]);
    }
}
