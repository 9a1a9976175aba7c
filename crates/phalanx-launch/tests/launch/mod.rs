//! The real `phalanx` binary with real processes. Every wait has a deadline; nothing sleeps to synchronise.

mod bad_input;
mod ckpt;
mod doctor;
mod ends;
mod engines;
mod horovod;
mod hosts;
mod input;
mod kube;
mod logs;
mod netns;
mod node_zero;
mod output;
mod rankfile;
mod roles;
mod secrets;
mod support;
mod topology;
mod verdicts;
mod worlds;
