//! What launchers and users leave in the environment, as lines of `NAME=value`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_core::{Config, Tiers};

fuzz_target!(|text: &str| {
    let pairs = || text.lines().filter_map(|line| line.split_once('='));
    let var = |name: &str| pairs().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
    if let Ok(identity) = phalanx_net::discover::discover(&var, 1) {
        assert!(identity.rank.0 < identity.n_ranks);
    }
    let _ = Config::from_vars(pairs().map(|(n, v)| (n.to_string(), v.to_string())));
    for (_, value) in pairs() {
        if let Ok(tiers) = value.parse::<Tiers>() {
            assert_eq!(tiers.to_string().parse::<Tiers>(), Ok(tiers));
        }
    }
});
