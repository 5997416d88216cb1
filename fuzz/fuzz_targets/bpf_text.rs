//! libFuzzer entry point for `portcullis_fuzz::bpf_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::bpf_text::run(data));
