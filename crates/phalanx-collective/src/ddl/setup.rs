//! Which shape a world gets: the caller's options, then the environment's, then the hosts.

use super::{
    DdlError,
    options::{DdlOptions, Mode, ModeLetter},
};
use crate::{ExploreError, explore::first_ways, plan::Wiring};
use phalanx_core::{Config, Rank, Tiers, Topology, Way};

/// What `Ddl::init` was told.
#[derive(Clone, Debug, Default)]
pub struct DdlWish<'a> {
    /// Ranks of this host that the caller expects.
    pub n_local: Option<u32>,
    /// The caller's option string; empty: none.
    pub options: &'a str,
    /// `DDL_OPTIONS` of the environment, for what the caller's options do not say.
    pub from_env: Option<&'a str>,
}

/// The options that count, and the wiring they ask for.
pub fn settle(
    told: &DdlWish<'_>,
    config: &Config,
    topology: &Topology,
    me: Rank,
) -> Result<(DdlOptions, Wiring), DdlError> {
    // The caller's options change those of the environment one by one.
    let said = |origin| move |why| DdlError::Options { origin, why };
    let outer: DdlOptions = told.from_env.unwrap_or("").parse().map_err(said("DDL_OPTIONS"))?;
    let own: DdlOptions = told.options.parse().map_err(said("options"))?;
    let given = own.mode.is_some();
    let mut options = outer.with(told.options).map_err(said("options"))?;
    if !given && config.tiers.is_some() {
        // The environment's shape comes before the environment's options.
        options.mode = None;
    }
    let have = topology.neighbours(me).len() as u32;
    if let Some(given) = told.n_local.filter(|n| *n != have) {
        return Err(DdlError::WrongLocal { rank: me, given, have });
    }
    let wiring = match (&options.mode, &config.tiers) {
        (Some(mode), _) if mode.letter == ModeLetter::M => Wiring::new(&mode.tiers, topology, None)?,
        (Some(mode), _) => {
            let ways = mode.ways(topology).or_else(|| config.ways.clone());
            let ways = ways.unwrap_or_else(|| first_ways(&mode.tiers, topology));
            Wiring::new(&mode.tiers, topology, Some(&ways))?
        }
        (None, Some(tiers)) => Wiring::new(tiers, topology, config.ways.as_deref())?,
        // DDL without a mode is a single ring between hosts; on one host its memory.
        (None, None) => {
            let way = if topology.n_hosts() == 1 { Way::Arena } else { Way::Ring };
            Wiring::new(&Tiers::new(&[topology.n_ranks()])?, topology, Some(&[way]))?
        }
    };
    if config.explore.is_some() && !explores(&options, &wiring, config) {
        return Err(ExploreError::Unused.into());
    }
    Ok((options, wiring))
}

/// Whether the options ask to explore the shape that was settled.
pub fn explores(options: &DdlOptions, wiring: &Wiring, config: &Config) -> bool {
    let asked = |mode: &Mode| mode.letter == ModeLetter::P && mode.tiers == *wiring.grid.tiers();
    config.ways.is_none() && options.mode.as_ref().is_some_and(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(told: &DdlWish<'_>, config: &Config) -> Result<String, String> {
        let topology = Topology::of_sizes(&[4, 4, 4]);
        let (_, wiring) = settle(told, config, &topology, Rank(5)).map_err(|e| e.to_string())?;
        Ok(format!("{} {}", wiring.grid.tiers(), Way::show(&wiring.ways)))
    }

    #[test]
    fn the_caller_comes_before_the_environment_and_its_options() {
        let mut config = Config::default();
        let told = DdlWish { n_local: Some(4), options: "-mode n:4x3", from_env: Some("-mode r:12") };
        let env = DdlWish { options: "", ..told.clone() };
        assert_eq!(shape(&told, &config).as_deref(), Ok("4x3 arena,ring"));
        assert_eq!(shape(&env, &config).as_deref(), Ok("12 ring"));
        assert_eq!(shape(&DdlWish::default(), &config).as_deref(), Ok("12 ring"), "no mode: one ring");
        config.set("PHALANX_TIERS", "2x6").unwrap();
        config.set("PHALANX_WAYS", "ring,direct").unwrap();
        assert_eq!(shape(&env, &config).as_deref(), Ok("2x6 ring,direct"));
        assert_eq!(shape(&told, &config).as_deref(), Ok("4x3 arena,ring"));
    }

    #[test]
    fn exploring_begins_with_the_arena_and_rings_and_a_file_without_it_is_refused() {
        let mut config = Config::default();
        let told = DdlWish { options: "-mode p:2x2x3", ..DdlWish::default() };
        assert_eq!(shape(&told, &config).as_deref(), Ok("2x2x3 arena,arena,ring"));
        config.set("PHALANX_EXPLORE", "/tmp/found").unwrap();
        assert!(shape(&told, &config).is_ok());
        let other = DdlWish { options: "-mode n:4x3", ..DdlWish::default() };
        let refused = "PHALANX_EXPLORE is set, but these options do not explore: write -mode p:SHAPE without PHALANX_WAYS, or unset it";
        assert_eq!(shape(&other, &config), Err(refused.to_string()));
    }

    #[test]
    fn the_callers_options_change_those_of_the_environment_one_by_one() {
        let topology = Topology::of_sizes(&[4, 4, 4]);
        let settled = |options, from_env| {
            let told = DdlWish { n_local: None, options, from_env: Some(from_env) };
            settle(&told, &Config::default(), &topology, Rank(0)).map_err(|e| e.to_string())
        };
        let (options, wiring) = settled("-dump_iter 7", "-mode n:4x3 -dump_iter 100 -dbg_level 1").unwrap();
        assert_eq!((options.dump_iter, options.dbg_level), (7, 1));
        assert_eq!(
            wiring.grid.tiers().to_string(),
            "4x3",
            "an argument without -mode keeps that of DDL_OPTIONS"
        );
        assert_eq!(settled("-dump_iter 0", "-dump_iter 9").unwrap().0.dump_iter, 0);
        assert!(settled("-mode n:4x3", "-mode q:1").unwrap_err().starts_with("DDL_OPTIONS: -mode"));
    }

    #[test]
    fn without_a_mode_one_host_uses_its_memory() {
        let (_, wiring) =
            settle(&DdlWish::default(), &Config::default(), &Topology::of_sizes(&[4]), Rank(0)).unwrap();
        assert_eq!(Way::show(&wiring.ways), "arena");
    }

    #[test]
    fn what_does_not_fit_the_world_is_said_with_both_numbers() {
        let config = Config::default();
        let says = |n_local, options: &str| {
            shape(&DdlWish { n_local, options, from_env: None }, &config).unwrap_err()
        };
        assert_eq!(says(None, "-mode n:4x4"), "shape 4x4 holds 16 ranks, but the world has 12");
        assert_eq!(
            says(Some(3), "-mode n:4x3"),
            "num_gpu is 3, but the host of rank 5 has 4 ranks: start as many ranks a host as you pass, or leave it out"
        );
        assert!(says(None, "-mode z:4x3").starts_with("options: -mode \"z:4x3\""));
    }
}
