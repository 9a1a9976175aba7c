//! The parallel executor, against one replica and against itself.

mod accumulating;
mod bits;
mod controlling;
mod dags;
mod executor;
mod feeding;
mod models;
mod modes;
mod owners;
mod processes;
mod recomputing;
mod served;
mod sparse;
mod statistics;
