//! Reading programs.

use super::*;
use crate::{MAX_INSTRUCTIONS, read};

#[track_caller]
fn reads(text: &str) -> Vec<Instruction> {
    read(&Source::new("x.bpf", text)).unwrap_or_else(|errors| panic!("{}", errors.render()))
}

/// `ip`, as tcpdump has it.
const IP: [Code; 4] = [(40, 0, 0, 12), (21, 0, 1, 0x800), (6, 0, 0, 262_144), (6, 0, 0, 0)];

#[test]
fn every_form_that_there_is_of_a_program_is_read() {
    for text in [
        "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n",
        "4\r\n40 0 0 12\r\n21 0 1 2048\r\n6 0 0 262144\r\n6 0 0 0\r\n",
        "\n 4 \n\n40  0\t0 12\n21 0 1 2048\n 6 0 0 262144\n6 0 0 0",
        "4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0",
        "4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0,\n",
        "4\n0x28 0 0 0xC\n0x15 0 1 0x800\n6 0 0 0x40000\n0X6 0 0 0",
        "{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 1, 0x00000800 },\n{ 0x6, 0, 0, 0x00040000 },\n{ 0x6, 0, 0, 0x00000000 },\n",
        "{0x28,0,0,12}{21 , 0 , 1 , 2048},{ 6,\n0,0,262144}  ,{6,0,0,0}",
    ] {
        assert_eq!(reads(text), program(&IP), "{text}");
    }
    assert_eq!(reads("1\n65535 255 255 4294967295"), program(&[(0xffff, 0xff, 0xff, u32::MAX)]));
}

#[test]
fn what_is_no_program_is_told_with_its_place() {
    for (text, message, place) in [
        ("", "there is nothing in it", "x.bpf"),
        (" \n\t", "there is nothing in it", "x.bpf"),
        ("port 80", "this is no program of classic BPF", "x.bpf:1:1"),
        ("é", "this is no program of classic BPF", "x.bpf:1:1"),
        ("(000) ldh      [12]\n", "this is a listing for people", "x.bpf:1:1"),
        ("0\n", "at least one instruction", "x.bpf:1:1"),
        ("2\n6 0 0 0\n", "there is 1 instruction, and 2 were said", "x.bpf:1:1"),
        ("1\n6 0 0 0\n6 0 0 0\n", "there are 2 instructions, and 1 were said", "x.bpf:1:1"),
        ("6 0 0 0\n", "the number of instructions is expected on a line of its own", "x.bpf:1:1"),
        ("1x\n6 0 0 0\n", "the number of instructions is no number", "x.bpf:1:1"),
        ("1\n6 0 0\n", "an instruction is four numbers", "x.bpf:2:1"),
        ("1\n6 0 0 0 0\n", "an instruction is four numbers", "x.bpf:2:1"),
        ("1\n65536 0 0 0\n", "the code is too large", "x.bpf:2:1"),
        ("1\n6 256 0 0\n", "the jump where it holds is too large", "x.bpf:2:3"),
        ("1\n6 0 256 0\n", "the jump where it does not is too large", "x.bpf:2:5"),
        ("1\n6 0 0 4294967296\n", "k is too large", "x.bpf:2:7"),
        ("1\n6 0 0 99999999999999999999999\n", "k is too large", "x.bpf:2:7"),
        ("1\n6 0 0 -1\n", "k is no number", "x.bpf:2:7"),
        ("1\n6 0 0 0x\n", "k is no number", "x.bpf:2:7"),
        ("1\n6 0 0 +1\n", "k is no number", "x.bpf:2:7"),
        ("1\n6 0 0 é\n", "k is no number", "x.bpf:2:7"),
        ("1\n6,0,0,0\n", "an instruction is four numbers", "x.bpf:2:1"),
        ("{ 6, 0, 0, 0 ", "this instruction has no end", "x.bpf:1:1"),
        ("{ 6, 0, 0, 0 };", "an instruction is expected", "x.bpf:1:15"),
        ("{ 6, 0, 0 }", "an instruction is four numbers", "x.bpf:1:1"),
        ("{}", "an instruction is four numbers", "x.bpf:1:1"),
        ("{ 6, 0, 0, 0 } é", "an instruction is expected", "x.bpf:1:16"),
    ] {
        let shown = refused(text);
        assert!(shown.contains(message), "{text:?}\n{shown}");
        assert!(shown.contains(place), "{text:?}\n{shown}");
    }
}

#[test]
fn as_many_instructions_are_read_as_a_socket_takes_and_only_so_many_errors_told() {
    let returns = |count: usize| format!("{count}\n") + &"6 0 0 0\n".repeat(count);
    assert_eq!(reads(&returns(MAX_INSTRUCTIONS)).len(), MAX_INSTRUCTIONS);
    assert!(refused(&returns(MAX_INSTRUCTIONS + 1)).contains("at most 65535 instructions"));
    assert!(refused(&returns(100_000)).contains("at most 65535 instructions"));
    assert!(refused(&"6 0 0 0\n".repeat(300_000)).contains("the text is longer"));
    let shown = refused(&("100\n".to_owned() + &"x\n".repeat(100)));
    assert_eq!(shown.matches("error:").count(), 20, "{shown}");
    // Wrong at both ends, and in between.
    let errors = refused("3\n9 9\n6 0 0 x\n153 0 0 0\n");
    assert_eq!(errors.matches("error:").count(), 2, "{errors}");
}

#[test]
fn any_text_is_read_or_told() {
    let mut random = Random(5);
    let parts = [
        "6 0 0 0", "\n", ",", " ", "{", "}", "0x", "x", "1", "4", "21 0 0", "é", "\u{2028}", "-", "65536", "(", "\r",
        "\t",
    ];
    let (mut taken, rounds) = (0, 30_000);
    for round in 0..rounds {
        let text: String = (0..random.below(14)).map(|_| random.pick(&parts)).collect();
        let text = if round % 2 == 0 { format!("1\n{text}") } else { text };
        let source = Source::new("x.bpf", text);
        match read(&source) {
            Ok(program) => {
                assert!(!program.is_empty());
                taken += 1;
            }
            Err(errors) => assert!(!errors.render().is_empty() && !errors.errors.is_empty()),
        }
    }
    assert!(taken > 100, "{taken}");
}
