//! How cargo builds what we run: one name for the flag, one for the folder.

/// A profile of the workspace's `Cargo.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// What is measured and shipped. Link-time optimisation makes it slow to build.
    Release,
    /// What is shown: optimised, without link-time optimisation.
    Demo,
    /// What is tested: with debug assertions.
    Test,
}

impl Profile {
    /// What `cargo build --profile` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Demo => "demo",
            Profile::Test => "test",
        }
    }

    /// Where cargo puts it, within the target directory.
    pub const fn folder(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Demo => "demo",
            Profile::Test => "debug",
        }
    }
}
