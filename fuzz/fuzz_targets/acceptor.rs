//! What a stranger says to a door: nobody comes in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_net::{
    auth::{Acceptor, Purpose},
    secret::Secret,
};

fuzz_target!(|bytes: &[u8]| {
    let mut acceptor = Acceptor::new(Secret::from_bytes([3; 32]), Purpose::Hub, [5; 32]);
    let mut rest = bytes;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let n = acceptor.wants().min(rest.len());
        match acceptor.feed(&rest[..n], &mut out) {
            Ok(None) => rest = &rest[n..],
            Ok(Some(caller)) => panic!("AUTH-2: {caller:?} came in"),
            Err(_) => return,
        }
    }
});
