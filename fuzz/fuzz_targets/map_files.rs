//! libFuzzer entry point for `portcullis_fuzz::map_files`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::map_files::run(data));
