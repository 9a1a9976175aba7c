//! What a board answers: etcd, a process manager, an entry that claims to be of rank 0.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_net::fuzzing::board_answer(bytes));
