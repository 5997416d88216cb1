//! libFuzzer entry point for `portcullis_fuzz::wgsl_text`: arbitrary bytes as a WGSL filter.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::wgsl_text::run(data));
