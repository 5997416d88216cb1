//! Fuzz target: arbitrary bytes as the output of `tcpdump -ddd`.

use portcullis_bpf as bpf;

use crate::mutate::Corpus;

/// Seed programs that between them use every instruction form.
pub const CORPUS: Corpus = Corpus {
    seeds: &[
        include_bytes!("../seeds/port.bpf"),
        include_bytes!("../seeds/protochain.bpf"),
        include_bytes!("../seeds/array.bpf"),
        b"4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0,",
        b"{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 1, 0x00000800 },\n{ 0x6, 0, 0, 0x00040000 },\n{ 0x6, 0, 0, 0x00000000 },\n",
    ],
    pieces: &[
        b"\n",
        b",",
        b" ",
        b"\t",
        b"\r\n",
        b"{",
        b"}",
        b"(",
        b"0",
        b"1",
        b"4",
        b"255",
        b"256",
        b"65535",
        b"65536",
        b"4294967295",
        b"4294967296",
        b"0x",
        b"0xff",
        b"-1",
        b"40 0 0 12\n",
        b"48 0 0 4294963208\n",
        b"80 0 0 14\n",
        b"177 0 0 14\n",
        b"21 0 1 2048\n",
        b"29 1 0 0\n",
        b"69 0 0 8191\n",
        b"5 0 0 4294967290\n",
        b"5 0 0 1\n",
        b"52 0 0 0\n",
        b"60 0 0 0\n",
        b"108 0 0 0\n",
        b"2 0 0 15\n",
        b"97 0 0 16\n",
        b"7 0 0 0\n",
        b"6 0 0 1\n",
        b"22 0 0 0\n",
        b"{ 0x6, 0, 0, 0x1 },\n",
        b"{ 0x30, 0, 0, 5 },\n",
        b"{ 0x50, 0, 0, 0xfffffffe },\n",
        b"{ 0x7, 0, 0, 0 },\n",
        b"{ 0x2, 0, 0, 3 },\n",
        b"{ 0x6c, 0, 0, 0 },\n",
        b"{ 0x3c, 0, 0, 0 },\n",
        b"{ 0x25, 1, 0, 7 },\n",
        b"\0",
        b"\xff",
        b"\x1b[0m",
        "é".as_bytes(),
    ],
};

/// Compiles the bytes as a program; an accepted program also runs on a few packets, is lowered, and
/// is compiled to native code.
///
/// # Panics
/// If the compiler panics, or accepts what a device cannot run.
pub fn run(data: &[u8]) {
    crate::filter::run(data, bpf::compile);
}

#[cfg(test)]
mod tests {
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;

    use super::*;
    use crate::mutate::{A_SECOND, check_seeds, run_for, run_malformed};

    #[test]
    fn mutated_seeds_never_panic() {
        println!("{} texts", run_for(A_SECOND, "bpf_text", CORPUS, 0, run));
    }

    #[test]
    fn seeds_and_some_mutations_are_valid_programs() {
        check_seeds(CORPUS, run, (300, 5), |data| {
            bpf::compile(&Source::from_bytes("f", data)?, &ProgramOptions::default()).map(drop)
        });
    }

    #[test]
    fn malformed_bytes_never_panic() {
        run_malformed(run);
    }
}
