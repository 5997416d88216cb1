//! libFuzzer entry point for `portcullis_fuzz::bpf_text`: arbitrary bytes as the output of
//! `tcpdump -ddd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::bpf_text::run(data));
