//! libFuzzer entry point for `portcullis_fuzz::descriptors`: arbitrary descriptors over a small
//! arena.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::descriptors::run(data));
