//! The tests of this crate, as one program. It is also a rank of the worlds that its tests start.

mod alone;
mod bell;
mod build_id;
mod burden;
mod collectives;
mod ddl;
mod engine;
mod engine_faults;
mod engines_again;
mod explore;
mod faults;
mod processes;
mod roles;
mod schedules;
mod splits;
mod support;
mod tiers;

/// What a process does that a test started as a rank; nothing in the tests' own.
#[test]
fn worker_entry() {
    match std::env::var_os("PHALANX_TEST_SCENE") {
        Some(_) => engine_faults::worker::main(),
        None => processes::worker::main(),
    }
}
