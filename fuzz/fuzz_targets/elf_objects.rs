//! libFuzzer entry point for `portcullis_fuzz::elf_objects`: arbitrary bytes as an ELF object of
//! XDP programs.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use portcullis_fuzz::elf_objects::{damage, run};

fuzz_target!(|data: &[u8]| run(data));

// Alternate between libFuzzer's own mutations, which coverage guides, and structure-aware ones.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    match damage::damaged(&data[..size], seed.into()) {
        Some(damaged) if seed % 2 == 0 && damaged.len() <= max_size => {
            data[..damaged.len()].copy_from_slice(&damaged);
            damaged.len()
        }
        _ => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
    }
});
