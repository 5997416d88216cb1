//! libFuzzer entry point for `portcullis_fuzz::opencl_c_preprocess`: arbitrary bytes as the source
//! files of an OpenCL C filter.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::opencl_c_preprocess::run(data));
