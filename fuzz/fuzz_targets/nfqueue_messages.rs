//! libFuzzer entry point for `portcullis_fuzz::nfqueue_messages`: arbitrary bytes as an
//! nfnetlink_queue message.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::nfqueue_messages::run(data));
