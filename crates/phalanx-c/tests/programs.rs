//! Real C programs, compiled by the system's compiler, alone and under `phalanx run`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What a C program said.
struct Said {
    stdout: String,
    stderr: String,
}

/// One compiled program in a folder of its own.
struct Program {
    folder: PathBuf,
    exe: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        // What is left over is in the temporary folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the profile with which this test was built.
fn profile_folder() -> PathBuf {
    let exe = env::current_exe().expect("a test knows where it is");
    exe.ancestors().nth(2).expect("it is in deps, which is in that folder").to_path_buf()
}

/// Builds the library and the launcher like this test; cargo does so for no test by itself. Returns the folder where both are.
fn built() -> PathBuf {
    let folder = profile_folder();
    // `cargo xtask test` has just built both.
    if env::var_os("PHALANX_TEST_IS_BUILT").is_some() {
        return folder;
    }
    let profile = match folder.file_name().and_then(|n| n.to_str()) {
        Some("debug") | None => "test",
        Some(name) => name,
    };
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "build",
        "--quiet",
        "-p",
        "phalanx-c",
        "-p",
        "phalanx-launch",
        "--lib",
        "--bin",
        "phalanx",
    ]);
    command.args(["--profile", profile, "--target-dir"]).arg(folder.parent().expect("it is in the target's"));
    let done = command.current_dir(manifest()).output().expect("cargo runs");
    assert!(done.status.success(), "library and launcher build:\n{}", String::from_utf8_lossy(&done.stderr));
    folder
}

/// Compiles a program; `None`, with a message, if there is no C compiler.
fn compile(source: &Path, test: &str) -> Option<Program> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    if Command::new(&compiler).arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no C compiler ({compiler}); set CC to one");
        return None;
    }
    let folder = env::temp_dir().join(format!("phalanx-c-{}-{test}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    let program = Program { exe: folder.join("program"), folder };
    let lib = built();
    let mut command = Command::new(compiler);
    command.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]);
    command.arg(manifest().join("include")).arg(source).arg("-o").arg(&program.exe).arg("-L").arg(&lib);
    command.args(["-lphalanx", "-pthread", &format!("-Wl,-rpath,{}", lib.display())]);
    let done = command.output().expect("the compiler runs");
    assert!(done.status.success(), "{source:?} compiles:\n{}", String::from_utf8_lossy(&done.stderr));
    Some(program)
}

/// Runs a program that ends well.
fn run(program: &Program, n: u32) -> Said {
    let (success, said) = try_run(program, n);
    assert!(success, "n={n}:\n{}{}", said.stdout, said.stderr);
    said
}

/// Runs a program in a world of `n`, under the launcher unless it is alone, in an environment without any other world's settings.
fn try_run(program: &Program, n: u32) -> (bool, Said) {
    let mut command = match n {
        1 => Command::new(&program.exe),
        _ => {
            let mut command = Command::new(profile_folder().join("phalanx"));
            command.args(["run", "-np", &n.to_string(), "--timeout", "60"]).arg(&program.exe);
            command
        }
    };
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PHALANX_") || name.to_string_lossy().starts_with("HOROVOD_") {
            command.env_remove(name);
        }
    }
    let done = command.current_dir(&program.folder).stdin(Stdio::null()).output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.success(), Said { stdout: text(&done.stdout), stderr: text(&done.stderr) })
}

/// Lines without the launcher's prefix, sorted.
fn lines(said: &Said) -> Vec<String> {
    let bare = |line: &str| match line.split_once(" | ") {
        Some((rank, rest)) if rank.parse::<u32>().is_ok() => rest.to_string(),
        _ => line.to_string(),
    };
    let mut lines: Vec<String> = said.stdout.lines().map(bare).collect();
    lines.sort();
    lines
}

#[test]
fn the_example_runs_on_three_ranks_and_alone() {
    let source = manifest().join("../../examples/c/allreduce.c");
    let Some(program) = compile(&source, "example") else { return };
    let said = run(&program, 3);
    let found = lines(&said);
    let mut expected = Vec::new();
    for rank in 0..3 {
        expected.push(format!("rank {rank} of 3: 4 gradients averaged, 0 elements wrong, callback said ok"));
        expected.push(format!("rank {rank} gathered 6 rows: 0 10 11 20 21 22"));
        let says = if rank == 1 {
            "rank 1 is not a member of process set 1"
        } else {
            "the sum in process set 1 is 4"
        };
        expected.push(format!("rank {rank}: {says}"));
    }
    for line in &expected {
        assert!(found.contains(line), "{line:?} is missing in\n{}{}", said.stdout, said.stderr);
    }
    for rank in 0..3 {
        let start = format!("rank {rank}: mismatch between ranks: bias: ");
        let line = found.iter().find(|l| l.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{start:?} is missing in\n{}", said.stdout));
        assert!(line.contains("[4]") && line.contains("[6]"), "both shapes are named: {line}");
    }
    let versions =
        found.iter().filter(|l| l.contains(concat!("phalanx ", env!("CARGO_PKG_VERSION"), " ran ")));
    assert_eq!(versions.count(), 3);
    assert_eq!(found.len(), 15, "{}", said.stdout);

    let alone = run(&program, 1);
    assert!(alone.stdout.contains("rank 0 of 1: 4 gradients averaged, 0 elements wrong, callback said ok"));
}

/// EDGE-1, EDGE-2 and EDGE-3 as a program meets them.
#[test]
fn every_mistake_has_its_code() {
    let Some(program) = compile(&manifest().join("tests/c/codes.c"), "codes") else { return };
    for n in [1, 3] {
        assert_eq!(lines(&run(&program, n)), vec!["all codes are right"; n as usize]);
    }
}

#[test]
fn init_and_shutdown_follow_each_other_fifty_times() {
    let Some(program) = compile(&manifest().join("tests/c/cycles.c"), "cycles") else { return };
    for n in [1, 3] {
        assert_eq!(lines(&run(&program, n)), vec!["50 cycles"; n as usize]);
        let timeline =
            fs::read_to_string(program.folder.join("timeline.json")).expect("rank 0 writes a timeline");
        assert!(timeline.contains("cycle 1"), "{timeline}");
    }
}

#[test]
fn threads_share_handles_and_the_end() {
    let Some(program) = compile(&manifest().join("tests/c/threads.c"), "threads") else { return };
    for n in [1, 3] {
        assert_eq!(lines(&run(&program, n)), vec!["all threads are through"; n as usize]);
    }
}

#[test]
fn a_lost_rank_is_named_to_the_others() {
    let Some(program) = compile(&manifest().join("tests/c/lost.c"), "lost") else { return };
    let (success, said) = try_run(&program, 3);
    assert!(!success, "the job fails with its rank");
    assert_eq!(lines(&said), ["told", "told"], "{}", said.stderr);
}

/// What C programs include is also C++.
#[test]
fn the_header_is_cpp_too() {
    let source = env::temp_dir().join(format!("phalanx-c-{}.cpp", std::process::id()));
    fs::write(&source, "#include \"phalanx.h\"\nphalanx_options options = PHALANX_OPTIONS_INIT;\n")
        .expect("a file");
    let mut command = Command::new("c++");
    command.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
    let done = command.arg(manifest().join("include")).arg(&source).output();
    fs::remove_file(&source).expect("the file is still there");
    match done {
        Err(error) => eprintln!("skipped: there is no C++ compiler (c++): {error}"),
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
    }
}

#[test]
fn the_functions_of_ddl_run_on_two_ranks_and_alone() {
    let source = manifest().join("../../examples/c/ddl.c");
    let Some(program) = compile(&source, "ddl") else { return };
    assert_eq!(lines(&run(&program, 2)), ["2 ranks, sum and maximum are right"]);
    assert_eq!(lines(&run(&program, 1)), ["1 ranks, sum and maximum are right"]);
}

/// DDL's own programs dumped core here.
#[test]
fn options_that_ddl_does_not_take_are_refused_in_one_sentence_each() {
    let Some(program) = compile(&manifest().join("tests/c/ddl_refused.c"), "refused") else { return };
    let shape = "is not a shape like 8, 4x3 or 4x8x2 (one to four positive numbers joined by x)";
    let known = "known: -mode -dump_iter -dev_sync -rebind_iter -dbg_level";
    let no_mpi = "MPI cannot be used: no MPI started this process: start it with mpirun of Open MPI or mpiexec of MPICH, \
                  or name the library in PHALANX_MPI_LIB (rank 0)";
    let one_by_one = "is for Rust and Python, whose tensors have names: leave it out";
    let mut says = [
        "options: -mode \"q:2\": \"q\" is not a mode; b best way of each tier, n arena and rings, r rings, c halving, m MPI, p explore".into(),
        "options: -mode \"n2\" has no shape: write a letter, a colon and a shape, as in -mode n:4x3".into(),
        format!("options: -mode \"n:0\": \"0\" {shape}"),
        format!("options: -mode \"n:1x1x1x1x2\": \"1x1x1x1x2\" {shape}"),
        format!("options: -mode \"n:2x\": \"2x\" {shape}"),
        "shape 2x3 holds 6 ranks, but the world has 2".into(),
        "options: -mode needs a value: write -mode n:4x3".into(),
        format!("options: \"-moed\" is not an option of DDL; {known}"),
        "options: -dump_iter \"ten\" cannot be used: write -dump_iter 100".into(),
        format!("-dump_iter {one_by_one}"),
        format!("-rebind_iter {one_by_one}"),
        "options: -dev_sync \"3\" cannot be used: write -dev_sync 0, 1 or 2".into(),
        "options: -dbg_level is given twice".into(),
        "-dbg_level is for Rust and Python, which print: leave it out, and ask ddl_rank() and ddl_local_rank()".into(),
        format!("-mode m needs MPI: {no_mpi}"),
        "DDL has already been initialized.".into(),
        no_mpi.to_string(),
    ]
    .map(|line: String| [line.clone(), line])
    .concat();
    says.sort();
    let said = run(&program, 2);
    assert_eq!(lines(&said), says, "{}", said.stderr);
}
