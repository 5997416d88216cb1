//! tcpdump expressions, compiled to BPF by libpcap; see `docs/guide/expressions.md`.
//!
//! libpcap defines what an expression means, and [`portcullis_bpf`] what its BPF program means.
//! Without the feature `pcap-expr` expressions are rejected with advice.

use portcullis_bpf::{Instruction, compile_program};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::program::{Program, ProgramOptions};

/// Compiles an expression to the BPF program that tcpdump uses for an Ethernet capture: optimised,
/// and without a netmask, so that the only known IPv4 broadcast addresses are 0.0.0.0 and
/// 255.255.255.255. Host names are looked up as tcpdump does.
///
/// # Errors
/// The error of libpcap, located at the whole expression because libpcap gives no position.
#[cfg(feature = "pcap-expr")]
pub fn program(source: &Source) -> Result<Vec<Instruction>, Diagnostics> {
    use portcullis_bpf::parse;

    let refused = |error: pcap::Error| {
        let message = match error {
            pcap::Error::PcapError(text) => text,
            other => other.to_string(),
        };
        let error = Diagnostic::new(message);
        let error = match with_dotted_networks(&source.text).filter(|(text, _)| compiles(text)) {
            Some((text, first)) => {
                error.at(first, "libpcap requires a dot in a network of one number").note(format!("write `{text}`"))
            }
            None => error.at(0..source.text.len(), "libpcap rejects this expression"),
        };
        Diagnostics::one(source, error)
    };
    let capture = pcap::Capture::dead(pcap::Linktype::ETHERNET).map_err(refused)?;
    let program = capture.compile(&source.text, true).map_err(refused)?;
    // The crate's instruction type exposes its fields only through `Display`.
    let instructions = program.get_instructions();
    let lines: String = instructions.iter().map(|instruction| format!("{instruction}\n")).collect();
    let mut program = parse(&Source::new("libpcap", format!("{}\n{lines}", instructions.len())))?;
    for instruction in program.iter_mut().filter(|it| (it.code, it.k) == (RETURN_CONSTANT, PCAP_CRATE_SNAPLEN)) {
        instruction.k = TCPDUMP_SNAPLEN;
    }
    Ok(program)
}

#[cfg(feature = "pcap-expr")]
fn compiles(expression: &str) -> bool {
    pcap::Capture::dead(pcap::Linktype::ETHERNET).is_ok_and(|capture| capture.compile(expression, true).is_ok())
}

/// Rewrites networks of one number, `10/8`, as libpcap accepts them, `10.0/8`. Returns the new text
/// and the range of the first one, or `None` if there is none.
#[cfg(feature = "pcap-expr")]
fn with_dotted_networks(expression: &str) -> Option<(String, std::ops::Range<usize>)> {
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

/// `BPF_RET | BPF_K`: returns a constant, the number of bytes of the packet to keep.
#[cfg(feature = "pcap-expr")]
const RETURN_CONSTANT: u16 = 0x06;

/// Snapshot length of the crate `pcap` for programs without a device.
#[cfg(feature = "pcap-expr")]
const PCAP_CRATE_SNAPLEN: u32 = 65_535;

/// Snapshot length of tcpdump without `-s` (`MAXIMUM_SNAPLEN` in netdissect.h).
#[cfg(feature = "pcap-expr")]
const TCPDUMP_SNAPLEN: u32 = 262_144;

/// Rejects any expression, as this build has no libpcap.
///
/// # Errors
/// Always.
#[cfg(not(feature = "pcap-expr"))]
pub fn program(source: &Source) -> Result<Vec<Instruction>, Diagnostics> {
    let error = Diagnostic::new("this build lacks libpcap, which compiles tcpdump expressions")
        .note("build with `--features pcap-expr`, which requires libpcap (Debian: libpcap-dev)")
        .note("or have tcpdump compile it: `tcpdump -y EN10MB -ddd EXPRESSION > filter.bpf`, and give that file as the filter");
    Err(Diagnostics::one(source, error))
}

/// Compiles an expression to a filter that passes matching packets and drops others.
///
/// # Errors
/// As [`program`], or if the options are invalid.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    compile_program(source, &program(source)?, options)
}

#[cfg(all(test, feature = "pcap-expr"))]
mod tests {
    use super::*;
    use portcullis_bpf::disassemble;

    fn compile_to_listing(expression: &str) -> Result<String, String> {
        let program = program(&Source::new("--expr", expression));
        program.map(|it| disassemble(&it)).map_err(|errors| errors.to_string())
    }

    #[test]
    fn programs_are_compiled_for_ethernet_captures() {
        let ip = compile_to_listing("ip").unwrap();
        assert!(ip.starts_with("(000) ldh      [12]\n(001) jeq      #0x800           jt 2\tjf 3\n"), "{ip}");
        // An empty expression matches all packets.
        assert_eq!(compile_to_listing("").unwrap().lines().count(), 1);
        // VLAN tags are part of the packet's bytes, and no netmask is known.
        assert!(compile_to_listing("vlan 5").unwrap().contains("#0x8100"));
        assert!(compile_to_listing("ip broadcast").unwrap().contains("#0xffffffff"));
    }

    #[test]
    fn errors_of_libpcap_are_shown_with_the_expression() {
        for (expression, said) in [("tcp port", "syntax error"), ("tcp and udp", "expression rejects all packets")] {
            let errors = program(&Source::new("--expr", expression)).unwrap_err();
            assert!(errors.errors[0].message.contains(said), "{errors}");
            assert!(errors.render().contains(expression), "{}", errors.render());
        }
        assert!(compile_to_listing("tcp\0udp").is_err());
    }

    #[test]
    fn networks_of_one_number_are_corrected_with_a_dot() {
        for (expression, corrected, at) in [
            ("tcp port 80 and not net 10/8", "tcp port 80 and not net 10.0/8", 24..28),
            ("(src net 10/8)or net (11/8 or 12.0/9)", "(src net 10.0/8)or net (11.0/8 or 12.0/9)", 9..13),
        ] {
            let errors = program(&Source::new("--expr", expression)).unwrap_err();
            let error = &errors.errors[0];
            assert_eq!((&error.notes[0], error.labels[0].range.clone()), (&format!("write `{corrected}`"), at));
            assert!(compile_to_listing(corrected).is_ok());
        }
        // A dot would not make this expression valid.
        let errors = program(&Source::new("--expr", "net 10/8 and and")).unwrap_err();
        assert!(errors.render().contains("libpcap rejects this expression"), "{}", errors.render());
    }
}
