//! `cargo xtask dist`: what people get who do not build, as a tarball: the command, the library for C with what finds it, completions.
//!
//! What is in it is tried before it is called done: the example in C is compiled against it and run by its command.

use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
const LIMIT: Duration = Duration::from_secs(120);
const PACKAGING: &str = "crates/phalanx-c/packaging";

pub fn run(shell: &Shell) -> Result<(), String> {
    let mut build = shell.cargo("build --release -p phalanx-launch -p phalanx-c --bin phalanx --lib");
    shell.must(&mut build, Output::Shown, BUILD_LIMIT)?;
    let version = version(&shell.root)?;
    let name = format!("phalanx-{version}-{}-linux", std::env::consts::ARCH);
    let folder = shell.target().join("dist").join(&name);
    // What an earlier version put there must not travel along.
    let _ = fs::remove_dir_all(&folder);
    fill(shell, &folder, &version)?;
    try_out(shell, &folder)?;
    let tarball = folder.with_file_name(format!("{name}.tar.gz"));
    let mut tar = shell.command("tar");
    tar.arg("-C").arg(shell.target().join("dist")).arg("-czf").arg(&tarball).arg(&name);
    shell.must(&mut tar, Output::Kept, LIMIT)?;
    println!("{}", tarball.display());
    Ok(())
}

fn fill(shell: &Shell, folder: &Path, version: &str) -> Result<(), String> {
    let release = |name| shell.built(Profile::Release, name);
    let root = |name: &str| shell.root.join(name);
    for (from, to) in [
        (release("phalanx"), "bin/phalanx"),
        (release("libphalanx.so"), "lib/libphalanx.so"),
        (root("crates/phalanx-c/include/phalanx.h"), "include/phalanx.h"),
        (root("docs/c.md"), "share/doc/phalanx/c.md"),
        (root("README.md"), "share/doc/phalanx/README.md"),
        (root("LICENSE"), "share/doc/phalanx/LICENSE"),
    ] {
        fs::copy(&from, place(folder, to)?).map_err(|e| format!("cannot copy {}: {e}", from.display()))?;
    }
    for (template, to) in [
        ("phalanx.pc", "lib/pkgconfig/phalanx.pc"),
        ("phalanx-config.cmake", "lib/cmake/phalanx/phalanx-config.cmake"),
        ("phalanx-config-version.cmake", "lib/cmake/phalanx/phalanx-config-version.cmake"),
    ] {
        let path = root(PACKAGING).join(template);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        write(folder, to, &text.replace("@VERSION@", version))?;
    }
    for (which, to) in [
        ("bash", "share/bash-completion/completions/phalanx"),
        ("zsh", "share/zsh/site-functions/_phalanx"),
        ("fish", "share/fish/vendor_completions.d/phalanx.fish"),
    ] {
        let mut command = shell.command(folder.join("bin/phalanx"));
        write(folder, to, &shell.must(command.args(["completions", which]), Output::Kept, LIMIT)?.stdout)?;
    }
    Ok(())
}

/// Compiles the example against what is in the folder, and runs it as a world of two.
fn try_out(shell: &Shell, folder: &Path) -> Result<(), String> {
    let library = folder.join("lib");
    let program = shell.target().join("dist/allreduce");
    let mut flags = vec![
        format!("-I{}", folder.join("include").display()),
        format!("-L{}", library.display()),
        "-lphalanx".into(),
    ];
    let mut pkg_config = shell.command("pkg-config");
    pkg_config.args(["--cflags", "--libs", "phalanx"]).env("PKG_CONFIG_PATH", library.join("pkgconfig"));
    match shell.run(&mut pkg_config, Output::Kept, LIMIT) {
        Ok(done) => {
            done.check().map_err(|why| format!("pkg-config: {why}\n{}", done.text))?;
            flags = done.stdout.split_whitespace().map(str::to_string).collect();
        }
        Err(why) => eprintln!("note: {why}; phalanx.pc is not tried out"),
    }
    let mut compile = shell.command(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.arg("examples/c/allreduce.c").args(flags).arg(format!("-Wl,-rpath,{}", library.display()));
    shell.must(compile.arg("-o").arg(&program), Output::Kept, LIMIT)?;
    let mut run = shell.command(folder.join("bin/phalanx"));
    run.args(["run", "-np", "2", "--timeout", "60", "--"]).arg(&program);
    shell.must(&mut run, Output::Kept, LIMIT)?;
    eprintln!("ok      examples/c/allreduce.c, linked with {}, as a world of two", library.display());
    Ok(())
}

/// The path of a new file there; its folders are made.
fn place(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(|e| format!("cannot make {}: {e}", parent.display()))?;
    Ok(path)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = place(folder, name)?;
    fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The version that all crates share.
pub fn version(root: &Path) -> Result<String, String> {
    let path = root.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    version_in(&text).ok_or_else(|| format!("{} has no version in [workspace.package]", path.display()))
}

fn version_in(manifest: &str) -> Option<String> {
    let (_, package) = manifest.split_once("[workspace.package]")?;
    let line =
        package.lines().skip(1).take_while(|l| !l.starts_with('[')).find(|l| l.starts_with("version"))?;
    Some(line.split('"').nth(1)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn the_version_is_that_of_the_workspace() {
        let text = "[workspace]\nversion = \"9\"\n[workspace.package]\nedition = \"2024\"\nversion = \"0.1.0\"\n[other]\n";
        assert_eq!(version_in(text).as_deref(), Some("0.1.0"));
        assert_eq!(version_in("[workspace.package]\n[package]\nversion = \"1\"\n"), None);
    }
}
