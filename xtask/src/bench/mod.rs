//! placeholder
use crate::process::Shell;
pub fn run(_: &Shell, _: &[String]) -> Result<(), String> {
    Ok(())
}
