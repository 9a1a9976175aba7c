//! What the control thread of another rank's engine sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    phalanx_collective::fuzzing::letters(bytes);
});
