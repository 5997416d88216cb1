//! libFuzzer entry point for `portcullis_fuzz::opencl_c_preprocess`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::opencl_c_preprocess::run(data));
