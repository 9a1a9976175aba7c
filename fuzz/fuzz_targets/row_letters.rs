//! What workers, offices and servers of tables write to each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    phalanx_ps::fuzzing::row_letters(bytes, &phalanx_ps::fuzzing::tables());
});
