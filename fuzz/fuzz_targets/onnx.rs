//! A model from elsewhere: it becomes a program that is right in itself, or an error.
#![no_main]

use phalanx_graph::onnx::{ImportOptions, import};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(imported) = import(bytes, &ImportOptions::default()) {
        imported.program.verify().expect("ONNX-4: what was imported is a program");
    }
});
