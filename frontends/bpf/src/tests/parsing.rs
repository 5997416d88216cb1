//! Parsing of program listings.

use super::*;
use crate::{MAX_INSTRUCTIONS, parse};

#[track_caller]
fn parse_ok(text: &str) -> Vec<Instruction> {
    parse(&Source::new("x.bpf", text)).unwrap_or_else(|errors| panic!("{}", errors.render()))
}

/// Output of tcpdump for `ip`.
const IP: [Code; 4] = [(40, 0, 0, 12), (21, 0, 1, 0x800), (6, 0, 0, 262_144), (6, 0, 0, 0)];

#[test]
fn parses_every_supported_format() {
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
        assert_eq!(parse_ok(text), program(&IP), "{text}");
    }
    assert_eq!(parse_ok("1\n65535 255 255 4294967295"), program(&[(0xffff, 0xff, 0xff, u32::MAX)]));
}

#[test]
fn syntax_errors_name_their_place() {
    for (text, message, place) in [
        ("", "the listing is empty", "x.bpf"),
        (" \n\t", "the listing is empty", "x.bpf"),
        ("port 80", "this is not a classic BPF program", "x.bpf:1:1"),
        ("é", "this is not a classic BPF program", "x.bpf:1:1"),
        ("(000) ldh      [12]\n", "format of `tcpdump -d`", "x.bpf:1:1"),
        ("0\n", "at least one instruction", "x.bpf:1:1"),
        ("2\n6 0 0 0\n", "the listing has 1 instruction but announces 2", "x.bpf:1:1"),
        ("1\n6 0 0 0\n6 0 0 0\n", "the listing has 2 instructions but announces 1", "x.bpf:1:1"),
        ("6 0 0 0\n", "expected the number of instructions on a line of its own", "x.bpf:1:1"),
        ("1x\n6 0 0 0\n", "the number of instructions is not a number", "x.bpf:1:1"),
        ("1\n6 0 0\n", "an instruction is four numbers", "x.bpf:2:1"),
        ("1\n6 0 0 0 0\n", "an instruction is four numbers", "x.bpf:2:1"),
        ("1\n65536 0 0 0\n", "the code is too large", "x.bpf:2:1"),
        ("1\n6 256 0 0\n", "jt is too large", "x.bpf:2:3"),
        ("1\n6 0 256 0\n", "jf is too large", "x.bpf:2:5"),
        ("1\n6 0 0 4294967296\n", "k is too large", "x.bpf:2:7"),
        ("1\n6 0 0 99999999999999999999999\n", "k is too large", "x.bpf:2:7"),
        ("1\n6 0 0 -1\n", "k is not a number", "x.bpf:2:7"),
        ("1\n6 0 0 0x\n", "k is not a number", "x.bpf:2:7"),
        ("1\n6 0 0 +1\n", "k is not a number", "x.bpf:2:7"),
        ("1\n6 0 0 é\n", "k is not a number", "x.bpf:2:7"),
        ("1\n6,0,0,0\n", "an instruction is four numbers", "x.bpf:2:1"),
        ("{ 6, 0, 0, 0 ", "this instruction is not closed", "x.bpf:1:1"),
        ("{ 6, 0, 0, 0 };", "expected an instruction", "x.bpf:1:15"),
        ("{ 6, 0, 0 }", "an instruction is four numbers", "x.bpf:1:1"),
        ("{}", "an instruction is four numbers", "x.bpf:1:1"),
        ("{ 6, 0, 0, 0 } é", "expected an instruction", "x.bpf:1:16"),
    ] {
        let shown = rejected(text);
        assert!(shown.contains(message), "{text:?}\n{shown}");
        assert!(shown.contains(place), "{text:?}\n{shown}");
    }
}

#[test]
fn limits_instructions_and_reported_errors() {
    let returns = |count: usize| format!("{count}\n") + &"6 0 0 0\n".repeat(count);
    assert_eq!(parse_ok(&returns(MAX_INSTRUCTIONS)).len(), MAX_INSTRUCTIONS);
    assert!(rejected(&returns(MAX_INSTRUCTIONS + 1)).contains("at most 65535 instructions"));
    assert!(rejected(&returns(100_000)).contains("at most 65535 instructions"));
    assert!(rejected(&"6 0 0 0\n".repeat(300_000)).contains("the source exceeds"));
    let shown = rejected(&("100\n".to_owned() + &"x\n".repeat(100)));
    assert_eq!(shown.matches("error:").count(), 20, "{shown}");
    // The second and the third line are malformed; the last one parses, though its opcode is
    // unknown.
    let errors = rejected("3\n9 9\n6 0 0 x\n153 0 0 0\n");
    assert_eq!(errors.matches("error:").count(), 2, "{errors}");
}

#[test]
fn random_text_parses_or_has_errors() {
    let mut random = Random(5);
    let parts = [
        "6 0 0 0", "\n", ",", " ", "{", "}", "0x", "x", "1", "4", "21 0 0", "é", "\u{2028}", "-", "65536", "(", "\r",
        "\t",
    ];
    let (mut accepted, rounds) = (0, 30_000);
    for round in 0..rounds {
        let text: String = (0..random.below(14)).map(|_| random.pick(&parts)).collect();
        let text = if round % 2 == 0 { format!("1\n{text}") } else { text };
        let source = Source::new("x.bpf", text);
        match parse(&source) {
            Ok(program) => {
                assert!(!program.is_empty());
                accepted += 1;
            }
            Err(errors) => assert!(!errors.render().is_empty() && !errors.errors.is_empty()),
        }
    }
    assert!(accepted > 100, "{accepted}");
}
