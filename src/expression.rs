//! tcpdump's expressions, compiled by libpcap: `docs/expressions.md`.
//!
//! What an expression means is libpcap's to say, and what its program means is
//! [`lang::expression`](portcullis_bpf)'s. Without the feature `pcap-expr` there is no libpcap here, and an expression is
//! refused with a word on what to do.

use portcullis_bpf::{Instruction, compile_program};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::program::{Program, ProgramOptions};

/// The program that tcpdump would have for a capture of Ethernet: optimised, and with no netmask, so that of IPv4's broadcasts only
/// 0.0.0.0 and 255.255.255.255 are known. Names of hosts are looked up as tcpdump does.
///
/// # Errors
/// What libpcap has to say, with the whole expression as the place: it says no other.
#[cfg(feature = "pcap-expr")]
pub fn program(source: &Source) -> Result<Vec<Instruction>, Diagnostics> {
    use portcullis_bpf::parse;

    let refused = |error: pcap::Error| {
        let message = match error {
            pcap::Error::PcapError(text) => text,
            other => other.to_string(),
        };
        let error = Diagnostic::new(message);
        let error = match with_dots(&source.text).filter(|(text, _)| compiles(text)) {
            Some((text, first)) => {
                error.at(first, "libpcap takes a network of one number with a dot").note(format!("write `{text}`"))
            }
            None => error.at(0..source.text.len(), "libpcap takes no such expression"),
        };
        Diagnostics::one(source, error)
    };
    let capture = pcap::Capture::dead(pcap::Linktype::ETHERNET).map_err(refused)?;
    let program = capture.compile(&source.text, true).map_err(refused)?;
    // An instruction of that crate shows its numbers as text, and in no other way.
    let instructions = program.get_instructions();
    let lines: String = instructions.iter().map(|instruction| format!("{instruction}\n")).collect();
    let mut program = parse(&Source::new("libpcap", format!("{}\n{lines}", instructions.len())))?;
    for instruction in program.iter_mut().filter(|it| (it.code, it.k) == (RETURN, SNAPSHOT)) {
        instruction.k = SNAPSHOT_OF_TCPDUMP;
    }
    Ok(program)
}

#[cfg(feature = "pcap-expr")]
fn compiles(expression: &str) -> bool {
    pcap::Capture::dead(pcap::Linktype::ETHERNET).is_ok_and(|capture| capture.compile(expression, true).is_ok())
}

/// An expression with networks of one number, `10/8`, as libpcap has them, `10.0/8`; and where the first is. Where there are none,
/// nothing.
#[cfg(feature = "pcap-expr")]
fn with_dots(expression: &str) -> Option<(String, std::ops::Range<usize>)> {
    let (mut text, mut first, mut at) = (String::new(), None, 0);
    for part in expression.split_inclusive(|c: char| c.is_whitespace() || c == '(' || c == ')') {
        let word = part.trim_end_matches(|c: char| c.is_whitespace() || c == '(' || c == ')');
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match word.split_once('/').filter(|(network, length)| is_number(network) && is_number(length)) {
            Some((network, length)) => {
                first.get_or_insert(at..at + word.len());
                text += &format!("{network}.0/{length}{}", &part[word.len()..]);
            }
            None => text += part,
        }
        at += part.len();
    }
    Some((text, first?))
}

/// The instruction that returns a constant (`BPF_RET | BPF_K`): how many bytes of the packet are to be kept.
#[cfg(feature = "pcap-expr")]
const RETURN: u16 = 0x06;

/// As many as the crate `pcap` has any program keep, which it compiles for no device, ...
#[cfg(feature = "pcap-expr")]
const SNAPSHOT: u32 = 65_535;

/// ... and as tcpdump has it do without `-s` (`MAXIMUM_SNAPLEN`, its netdissect.h).
#[cfg(feature = "pcap-expr")]
const SNAPSHOT_OF_TCPDUMP: u32 = 262_144;

/// Refuses an expression: this was built without libpcap.
///
/// # Errors
/// Always.
#[cfg(not(feature = "pcap-expr"))]
pub fn program(source: &Source) -> Result<Vec<Instruction>, Diagnostics> {
    let error = Diagnostic::new("this was built without libpcap, which compiles tcpdump's expressions")
        .note("build it with `--features pcap-expr`, for which libpcap is needed (Debian: libpcap-dev)")
        .note("or have tcpdump compile it: `tcpdump -y EN10MB -ddd EXPRESSION > filter.bpf`, and give that file as the filter");
    Err(Diagnostics::one(source, error))
}

/// Compiles an expression to a filter: packets that it matches PASS, others are dropped.
///
/// # Errors
/// As [`program`], and what is wrong with the options.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    compile_program(source, &program(source)?, options)
}

#[cfg(all(test, feature = "pcap-expr"))]
mod tests {
    use super::*;
    use portcullis_bpf::disassemble;

    fn of(expression: &str) -> Result<String, String> {
        let program = program(&Source::new("--expr", expression));
        program.map(|it| disassemble(&it)).map_err(|errors| errors.to_string())
    }

    #[test]
    fn programs_are_those_for_a_capture_of_ethernet() {
        let ip = of("ip").unwrap();
        assert!(ip.starts_with("(000) ldh      [12]\n(001) jeq      #0x800           jt 2\tjf 3\n"), "{ip}");
        // Without anything, all packets match.
        assert_eq!(of("").unwrap().lines().count(), 1);
        // A tag is among the packet's bytes, and no netmask is known.
        assert!(of("vlan 5").unwrap().contains("#0x8100"));
        assert!(of("ip broadcast").unwrap().contains("#0xffffffff"));
    }

    #[test]
    fn what_libpcap_says_is_shown_with_the_expression() {
        for (expression, said) in [("tcp port", "syntax error"), ("tcp and udp", "expression rejects all packets")] {
            let errors = program(&Source::new("--expr", expression)).unwrap_err();
            assert!(errors.errors[0].message.contains(said), "{errors}");
            assert!(errors.render().contains(expression), "{}", errors.render());
        }
        assert!(of("tcp\0udp").is_err());
    }

    #[test]
    fn networks_of_one_number_are_written_with_a_dot() {
        for (expression, as_it_is, at) in [
            ("tcp port 80 and not net 10/8", "tcp port 80 and not net 10.0/8", 24..28),
            ("(src net 10/8)or net (11/8 or 12.0/9)", "(src net 10.0/8)or net (11.0/8 or 12.0/9)", 9..13),
        ] {
            let errors = program(&Source::new("--expr", expression)).unwrap_err();
            let error = &errors.errors[0];
            assert_eq!((&error.notes[0], error.labels[0].range.clone()), (&format!("write `{as_it_is}`"), at));
            assert!(of(as_it_is).is_ok());
        }
        // With that it would be no better.
        let errors = program(&Source::new("--expr", "net 10/8 and and")).unwrap_err();
        assert!(errors.render().contains("libpcap takes no such expression"), "{}", errors.render());
    }
}
