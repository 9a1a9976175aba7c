//! Sets the library's SONAME: a program that is linked with it looks for `libphalanx.so`, not for the path at which the linker found it.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut cargo = std::io::stdout();
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")?;
    writeln!(cargo, "cargo:rustc-cdylib-link-arg=-Wl,-soname,libphalanx.so")
}
