//! Our own measurements, taken by `phalanx bench`.

use super::{
    goals::{OTHER_SIZES, OTHERS, SIZES},
    options::Options,
    row::{Samples, What},
    table::size,
};
use crate::{
    process::{Output, Shell},
    profile::Profile,
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// One round.
pub fn measure(
    shell: &Shell,
    np: u32,
    what: What,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), String> {
    let sizes = |list: &[u64]| {
        list.iter().map(|&b| size(b).replace(['i', 'B', ' '], "")).collect::<Vec<_>>().join(",")
    };
    let (ops, dtypes, sizes, buffers) = match what {
        What::Allreduce => ("allreduce".to_string(), "f32", sizes(&SIZES), "private,arena"),
        What::Others => (OTHERS.join(","), "f32", sizes(&OTHER_SIZES), "private"),
        What::Half => ("allreduce".to_string(), "f16,bf16", "16M".to_string(), "private"),
    };
    let mut command = shell.command(shell.built(Profile::Release, "phalanx"));
    command
        .args(["bench", "-np", &np.to_string(), "--op", &ops, "--dtype", dtypes, "--sizes", &sizes])
        .args(["--buffers", buffers, "--json", "--seconds", &options.seconds.to_string()]);
    let done = shell.must(&mut command, Output::Kept, LIMIT)?;
    match samples.add_json("ours", &done.stdout) {
        0 => Err(format!("phalanx bench printed no rows:\n{}", done.text)),
        _ => Ok(()),
    }
}
