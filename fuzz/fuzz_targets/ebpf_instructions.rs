//! libFuzzer entry point for `portcullis_fuzz::ebpf_instructions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::ebpf_instructions::run(data));
