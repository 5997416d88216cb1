//! libFuzzer entry point for `portcullis_fuzz::metrics_requests`: arbitrary bytes as a request to
//! the metrics server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::metrics_requests::run(data));
