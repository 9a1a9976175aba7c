//! What a false door answers: no rank proves itself to it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_core::{Epoch, Rank};
use phalanx_net::{
    auth::{Caller, Connector, Purpose},
    secret::Secret,
};

fuzz_target!(|bytes: &[u8]| {
    let caller = Caller { rank: Rank(1), epoch: Epoch(2), stream: 3 };
    let mut out = Vec::new();
    let mut connector = Connector::new(Secret::from_bytes([3; 32]), Purpose::Hub, caller, [5; 32], &mut out);
    out.clear();
    let n = connector.wants().min(bytes.len());
    assert!(!matches!(connector.feed(&bytes[..n], &mut out), Ok(true)), "AUTH-2");
    assert!(out.is_empty(), "AUTH-2");
});
