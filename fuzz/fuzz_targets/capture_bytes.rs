//! libFuzzer entry point for `portcullis_fuzz::capture_bytes`: arbitrary bytes as a capture file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::capture_bytes::run(data));
