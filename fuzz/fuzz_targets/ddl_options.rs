//! DDL's option string.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_collective::ddl::DdlOptions;

fuzz_target!(|text: &str| {
    match text.parse::<DdlOptions>() {
        Ok(options) => {
            // What was understood can be said again.
            let again = options.to_string();
            assert_eq!(again.parse::<DdlOptions>().expect("our own words are understood"), options);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
});
