//! libFuzzer entry point for `portcullis_fuzz::ebpf_instructions`: arbitrary bytes as a packet and
//! eBPF instructions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::ebpf_instructions::run(data));
