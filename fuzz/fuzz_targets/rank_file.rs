//! A rank file of Open MPI.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    phalanx_launch::fuzzing::rank_file(text);
});
