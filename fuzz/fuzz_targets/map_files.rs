//! libFuzzer entry point for `portcullis_fuzz::map_files`: arbitrary bytes as rows of a map, and as
//! a file of saved map state.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::map_files::run(data));
