//! libFuzzer entry point for `portcullis_fuzz::bpf_instructions`: arbitrary bytes as a packet and
//! classic BPF instructions in the encoding of `SO_ATTACH_FILTER`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::bpf_instructions::run(data));
