//! Programs whose tables live on servers: where each variable goes, who asks the servers, and the run itself.
//!
//! `place` decides and is pure; `client` carries what an executor asks for to `phalanx_ps::Tables`; `run` puts both together.

mod client;
mod place;
mod run;

pub use client::TableClient;
pub use place::{
    AllotError, Allotment, AllotmentStrategy, AllottedVar, Cluster, Lodging, MeasuredRates, TouchedRows,
    place,
};
pub use run::{
    ParallaxConfig, ParallaxError, ParallaxRun, WorkerSeat, parallel_run, parallel_serve, spec_of,
};
