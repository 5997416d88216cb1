//! libFuzzer entry point for `portcullis_fuzz::descriptors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::descriptors::run(data));
