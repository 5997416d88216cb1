//! libFuzzer entry point for `portcullis_fuzz::opencl_c_text`: arbitrary bytes as an OpenCL C
//! filter.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis_fuzz::opencl_c_text::run(data));
