//! The engine on real threads, shared memory and sockets.

mod disagreements;
mod ends;
mod helps;
mod join;
mod operations;
mod orders;
mod recycled;
mod sets;
mod starts;
mod timeline;
mod tuning;

use crate::support::run_owners;
use phalanx_collective::engine::{Engine, EngineTensor, Handle, Request};

/// Ranks of each host, and settings.
type World = (&'static [u32], &'static [(&'static str, &'static str)]);

/// One host, several, and links inside a host.
const WORLDS: &[World] = &[
    (&[1], &[]),
    (&[2], &[]),
    (&[3], &[]),
    (&[4], &[]),
    (&[2, 2], &[]),
    (&[1, 2], &[]),
    (&[3], &[("PHALANX_TRANSPORT", "tcp")]),
    (&[2, 1], &[("PHALANX_ENCRYPT", "always")]),
];

/// Runs `f` with an engine on every rank of several worlds.
fn everywhere(f: impl Fn(&Engine) + Send + Sync + Clone + 'static) {
    for (hosts, settings) in WORLDS {
        on(hosts, settings, f.clone());
    }
}

fn on<T: Send + 'static>(
    hosts: &[u32],
    settings: &[(&'static str, &str)],
    f: impl Fn(&Engine) -> T + Send + Sync + 'static,
) -> Vec<T> {
    run_owners(hosts, settings, move |comm| {
        let engine = Engine::start(comm).expect("an engine starts");
        let result = f(&engine);
        engine.submit(Request::barrier().name("before the end")).unwrap().wait().unwrap();
        engine.shutdown().expect("an engine ends");
        result
    })
}

fn floats(handle: Handle) -> Vec<f32> {
    handle.wait().unwrap().tensor().and_then(EngineTensor::into_vec).unwrap()
}
