//! libphalanx: the engine for C, and for every language that can call C. Three families of functions: `phalanx_*`,
//! Horovod's `horovod_*`, and DDL's `ddl_*`.
//!
//! - EDGE-1: no panic crosses the boundary: every function runs inside `guard`, which turns one into an error.
//! - EDGE-2: an operation is done before its handle can be released, so that memory lent to it is never given back too early.
//! - EDGE-3: a callback cannot wait: it runs on a thread of the engine, which would wait for itself.

pub mod abi;
mod ddl;
mod failure;
mod guard;
mod handles;
mod horovod;
mod membership;
mod pointers;
mod process;
mod results;
mod submit;
