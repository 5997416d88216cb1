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
    tokens: "
        ␤ , ␣ { } ( 0 1 4 255 256 65535 65536 4294967295 4294967296 0x 0xff -1 40␣0␣0␣12␤
        48␣0␣0␣4294963208␤ 80␣0␣0␣14␤ 177␣0␣0␣14␤ 21␣0␣1␣2048␤ 29␣1␣0␣0␤ 69␣0␣0␣8191␤
        5␣0␣0␣4294967290␤ 5␣0␣0␣1␤ 52␣0␣0␣0␤ 60␣0␣0␣0␤ 108␣0␣0␣0␤ 2␣0␣0␣15␤ 97␣0␣0␣16␤ 7␣0␣0␣0␤
        6␣0␣0␣1␤ 22␣0␣0␣0␤ {␣0x6,␣0,␣0,␣0x1␣},␤ {␣0x30,␣0,␣0,␣5␣},␤ {␣0x50,␣0,␣0,␣0xfffffffe␣},␤
        {␣0x7,␣0,␣0,␣0␣},␤ {␣0x2,␣0,␣0,␣3␣},␤ {␣0x6c,␣0,␣0,␣0␣},␤ {␣0x3c,␣0,␣0,␣0␣},␤
        {␣0x25,␣1,␣0,␣7␣},␤ é
    ",
    pieces: &[b"\t", b"\r\n", b"\0", b"\xff", b"\x1b[0m"],
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
    use crate::mutate::{A_SECOND, check_seeds, run_for};

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
}
