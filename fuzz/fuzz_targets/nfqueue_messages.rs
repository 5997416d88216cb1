//! libFuzzer entry point for `portcullis_fuzz::nfqueue_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::nfqueue_messages::run(data));
