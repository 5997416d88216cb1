//! libFuzzer entry point for `portcullis_fuzz::control_requests`: arbitrary bytes as requests to
//! the control socket, one per line.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::control_requests::run(data));
