//! libFuzzer entry point for `portcullis_fuzz::control_requests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::control_requests::run(data));
