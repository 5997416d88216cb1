//! libFuzzer entry point for `portcullis_fuzz::bpf_instructions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::bpf_instructions::run(data));
