//! libFuzzer entry point for `portcullis_fuzz::metrics_requests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::metrics_requests::run(data));
