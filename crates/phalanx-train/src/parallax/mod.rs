//! Programs whose tables live on servers: where each variable goes, who asks the servers, and the run itself.
//!
//! `place` decides and is pure; `measure` tells it what a first batch touches and how fast links are; `client` carries what an executor asks for to `phalanx_ps::Tables`; `served` opens the tables of a program; `run` puts all together.

mod client;
mod measure;
mod place;
mod run;
mod served;

pub use client::TableClient;
pub use measure::{fed_rows, measure, measure_rows};
pub use place::{
    AllotError, Allotment, AllotmentStrategy, AllottedVar, Cluster, FirstRows, Lodging, MeasuredRates,
    TouchedRows, place, place_with,
};
pub use run::{ParallaxConfig, ParallaxError, ParallaxRun, WorkerSeat, parallel_run, parallel_serve};
pub use served::{ServedProgram, cluster_of, spec_of};
