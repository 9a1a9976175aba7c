//! What a process manager says to a rank that greets it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_net::fuzzing::board_session(bytes));
