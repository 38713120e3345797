//! Any body to any endpoint: requests for the engine, or an error within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/paceline/tests/support/fuzz_request.rs"]
mod fuzz_request;

fuzz_target!(|bytes: &[u8]| {
    fuzz_request::run(bytes);
});
