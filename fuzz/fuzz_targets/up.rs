//! What a member says to the hub.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_net::{
    frame::{self, Decoder},
    hub::message::{MAX_FRAME, Up},
};

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::new(MAX_FRAME);
    decoder.feed(bytes);
    while let Ok(Some(message)) = decoder.take::<Up>() {
        // What was understood can be said again.
        frame::encode(&message).expect("a decoded message can be encoded");
    }
});
