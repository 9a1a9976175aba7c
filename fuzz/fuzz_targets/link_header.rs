//! What stands before a message on a link.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_collective::fuzzing::link_header(bytes));
