//! Ranks die, panic, freeze, stall and shut down while others wait for their engines' answers: every operation is answered, and says why.

mod deaths;
mod ends;
mod forked;
#[expect(dead_code, reason = "the module serves several tests; these have a worker of their own")]
#[path = "../processes/mod.rs"]
mod processes;
mod stalls;
#[path = "../support/mod.rs"]
mod support;
mod worker;

#[test]
fn worker_entry() {
    worker::main();
}
