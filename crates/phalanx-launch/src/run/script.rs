//! `phalanx run train.py` runs the script with Python.

use rustix::fs::{Access, access};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Where Python may be.
#[derive(Debug)]
pub struct Pythons {
    /// `$VIRTUAL_ENV`: the environment that the user has activated.
    pub activated: Option<PathBuf>,
    /// This program: the `phalanx` of an environment stands beside its `python`.
    pub exe: PathBuf,
}

/// The command with Python before it, if its first word is a file that ends in `.py` and is no program itself.
pub fn with_python(command: &[OsString], cwd: &Path, pythons: &Pythons) -> Vec<OsString> {
    let is_script = command.first().is_some_and(|word| {
        let path = cwd.join(word);
        let is_named_as_program = Path::new(word).components().count() > 1;
        let is_program = is_named_as_program && access(&path, Access::EXEC_OK).is_ok();
        path.extension().is_some_and(|e| e == "py") && path.is_file() && !is_program
    });
    let python = is_script.then(|| pythons.choose());
    python.into_iter().chain(command.iter().cloned()).collect()
}

impl Pythons {
    fn choose(&self) -> OsString {
        let beside =
            self.exe.parent().filter(|bin| bin.parent().is_some_and(|venv| venv.join("pyvenv.cfg").exists()));
        let activated = self.activated.as_ref().map(|venv| venv.join("bin"));
        let found = activated.iter().map(PathBuf::as_path).chain(beside).map(|bin| bin.join("python"));
        found.into_iter().find(|python| python.exists()).map_or("python3".into(), PathBuf::into_os_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_python_file_is_run_with_the_python_that_is_meant() {
        let dir = std::env::temp_dir().join(format!("phalanx-script-{}", std::process::id()));
        let write = |path: &str, mode| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, mode) in [
            ("train.py", 0o644),
            ("tool.py", 0o755),
            ("on/bin/python", 0o755),
            ("own/bin/python", 0o755),
            ("own/pyvenv.cfg", 0o644),
            ("bare/bin/python", 0o755),
        ] {
            write(path, mode);
        }
        let run = |line: &str, activated: Option<&str>, exe: &str| {
            let command: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let pythons = Pythons { activated: activated.map(|a| dir.join(a)), exe: dir.join(exe) };
            let words = with_python(&command, &dir, &pythons);
            let words: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
            words.join(" ").replace(&format!("{}/", dir.display()), "")
        };
        assert_eq!(run("train.py --lr 3", None, "p"), "python3 train.py --lr 3");
        assert_eq!(run("./train.py", Some("on"), "own/bin/phalanx"), "on/bin/python ./train.py");
        assert_eq!(run("train.py", Some("gone"), "own/bin/phalanx"), "own/bin/python train.py");
        assert_eq!(
            run("train.py", None, "bare/bin/phalanx"),
            "python3 train.py",
            "no environment of Python's"
        );
        assert_eq!(run("./tool.py x", None, "p"), "./tool.py x", "it is a program");
        assert_eq!(
            run("tool.py x", None, "p"),
            "python3 tool.py x",
            "programs without a folder are looked for in PATH"
        );
        assert_eq!(run("absent.py", None, "p"), "absent.py", "the agents say that it is not there");
        assert_eq!(run("python train.py", None, "p"), "python train.py");
        fs::remove_dir_all(&dir).unwrap();
    }
}
