//! Compiles the unmodified source of OpenCL C filters with the compilers of OpenCL devices, and
//! compares with the interpreter: the stock filters, those in `filters/` and those of the benches,
//! with `include/portcullis.h` and definitions of its functions.
//!
//! Accesses outside the packet have defined results here only; other compilers access the bytes
//! there. So each packet runs with several fill patterns around it, and an answer counts if all
//! patterns give the same. A load that crosses the packet's end may count by chance: if the answers
//! differ, the interpreter runs the packet with bytes appended, and the packet is skipped if that
//! changes the interpreter's answer.

use std::process::{Command, Stdio};

use portcullis::backend::opencl::OpenClDevice;
use portcullis::device::Device;
use portcullis_compat_tests::corpora::{self, Corpus};
use portcullis_compat_tests::witness::opencl::{self, Compiled, Packet, Slots};
use portcullis_compat_tests::witness::{Answer, Unit};
use portcullis_compat_tests::{devices, host, stock, texts};
use portcullis_core::interp::Interpreter;
use portcullis_core::map::{self, MapKind};
use portcullis_core::packet::Metadata;
use portcullis_core::program::map_declarations::{CommentSyntax, declarations, example_declaration};
use portcullis_core::program::prelude;

/// Patterns of the bytes around a packet.
const FILLS: [u8; 3] = [0, 0xff, 0x06];

/// Packets of at most this length are laid out in small slots.
const SHORT: usize = 1024;

/// Bytes appended to a packet to detect loads across its end: the size of the largest scalar.
const TRAILING_BYTES: usize = 8;

struct Filter {
    name: String,
    unit: Unit,
    interpreter: Interpreter,
    /// Interprets packets with [`TRAILING_BYTES`] bytes appended, on which the filter should not
    /// depend.
    followed: Interpreter,
}

impl Filter {
    fn answer(interpreter: &Interpreter, packet: &[u8], metadata: &Metadata) -> Answer {
        let outcome = interpreter.run(packet, metadata).unwrap();
        Answer { value: outcome.verdict.to_return(), packet: outcome.packet }
    }

    /// Whether the answer depends on bytes after the packet.
    fn depends_on_trailing_bytes(&self, packet: &[u8], metadata: &Metadata, alone: &Answer) -> bool {
        FILLS.iter().any(|&fill| {
            let mut answer = Self::answer(&self.followed, &[packet, &[fill; TRAILING_BYTES]].concat(), metadata);
            answer.packet.truncate(answer.packet.len() - TRAILING_BYTES);
            answer != *alone
        })
    }
}

fn interpreter(name: &str, text: &str) -> Interpreter {
    Interpreter::new(&texts::in_opencl_c(name, text)).unwrap()
}

fn filters() -> Vec<Filter> {
    let filter = |(name, text): (String, String)| {
        let followed = format!(
            "#define xdp_filter inner\n#define pkt_len(pkt) (pkt_len(pkt) - {TRAILING_BYTES})\n{text}\n#undef xdp_filter\n\
             uint xdp_filter(__global uchar *pkt, uint len) {{ return inner(pkt, len - {TRAILING_BYTES}); }}"
        );
        let (interpreter, followed) = (interpreter(&name, &text), interpreter(&name, &followed));
        let text = stock::without_include(&text);
        Filter { name, unit: Unit { names: vec!["xdp_filter".into()], text }, interpreter, followed }
    };
    stock::all_in_opencl_c().into_iter().map(filter).collect()
}

/// Compares all answers and returns how many of them counted.
fn check(device: &OpenClDevice, filter: &Filter, corpus: &Corpus) -> usize {
    let metadata = |i: usize| Metadata::new(1500 + i as u32, i as u32 % 3, (i as u64) << 32);
    let (short, long): (Vec<_>, Vec<_>) =
        corpus.packets.iter().enumerate().partition(|(_, packet)| packet.len() <= SHORT);
    let mut compared = 0;
    for (packets, together) in [(short, 1000), (long, 200)] {
        let longest = packets.iter().map(|(_, packet)| packet.len()).max().unwrap_or(0);
        // Filters may rely on no alignment: a packet starts at any byte.
        let slots = Slots::at_odd_addresses(longest, stock::reach(&filter.name));
        let theirs = Compiled::new(device, std::slice::from_ref(&filter.unit), slots);
        let theirs = theirs.unwrap_or_else(|e| panic!("{}: {e:?}", filter.name));
        for part in packets.chunks(together) {
            let answers = |fill: u8| -> Vec<Answer> {
                let packets: Vec<Packet<'_>> =
                    part.iter().map(|&(i, bytes)| Packet { bytes, metadata: metadata(i), fill }).collect();
                theirs.answers(0, &packets).unwrap_or_else(|e| panic!("{}: {e:?}", filter.name))
            };
            let [first, second, third] = FILLS.map(answers);
            for (at, &(i, packet)) in part.iter().enumerate() {
                let want = &first[at];
                if *want != second[at] || *want != third[at] {
                    continue;
                }
                let got = Filter::answer(&filter.interpreter, packet, &metadata(i));
                if got != *want && filter.depends_on_trailing_bytes(packet, &metadata(i), &got) {
                    continue;
                }
                assert!(
                    got == *want,
                    "{} on {} over {}, packet {i}\n{packet:02x?}\ngot  {got:02x?}\nwant {want:02x?}",
                    filter.name,
                    device.info().id,
                    corpus.name
                );
                compared += 1;
            }
        }
    }
    compared
}

fn on_each_device(suite: &str, corpus: &Corpus) {
    let found = match opencl::devices() {
        Ok(devices) => devices,
        Err(missing) => return devices::record_skip(suite, "opencl", &format!("{missing:?}")),
    };
    let filters = filters();
    let all = filters.len() * corpus.packets.len();
    for device in found {
        let compared: usize = filters.iter().map(|filter| check(&device, filter, corpus)).sum();
        // Few answers may depend on bytes outside the packet.
        assert!(
            compared * 10 > all * 8,
            "{}: only {compared} of {all} answers depend on the packet alone",
            corpus.name
        );
        devices::record(suite, &device.info().id, "passed", &format!("{compared} of {all} answers"));
    }
}

#[test]
fn over_hostile_packets() {
    on_each_device("filters' own text, hostile packets", &corpora::hostile());
}

#[test]
fn over_synthetic_traffic() {
    on_each_device("filters' own text, synthetic traffic", &corpora::synthetic());
}

#[test]
fn over_captures() {
    let suite = "unmodified filters, captures";
    let captures = match corpora::captures() {
        Ok(captures) => captures,
        Err(reason) => return devices::record(suite, "opencl", "skipped", &reason),
    };
    let packets = captures.into_iter().flat_map(|(corpus, _)| corpus.packets).collect();
    on_each_device(suite, &Corpus { name: "the captures".into(), packets });
}

/// Other OpenCL C compilers accept filters with maps too: the header has macros that declare the
/// map functions that filters call. Their definitions are up to the user of that compiler.
#[test]
fn clang_accepts_filters_with_maps() {
    let suite = "unmodified filters, maps";
    let Some(clang) = host::clang() else {
        return devices::record(suite, "clang", "skipped", "no clang on this machine");
    };
    let folder = tempfile::tempdir().unwrap();
    let header = folder.path().join("portcullis.h");
    std::fs::write(&header, include_str!("../../include/portcullis.h")).unwrap();
    let taken = |name: &str, text: &str| {
        let source = folder.path().join(name);
        std::fs::write(&source, text).unwrap();
        let mut command = Command::new(&clang);
        command.args(["-target", "spir64", "-fsyntax-only", "-Werror=implicit-function-declaration", "-include"]);
        command.arg(&header);
        let output = host::opencl_c(&mut command, &source).stdin(Stdio::null()).output().unwrap();
        output.status.success().then_some(()).ok_or(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (name, text) in stock::STATEFUL_OPENCL_C {
        taken(name, text).unwrap_or_else(|said| panic!("{name}: {said}"));
        // The test can fail: without their declarations the functions are unknown.
        let error = taken(name, &text.replace("PORTCULLIS_VALUES(", "// (")).unwrap_err();
        assert!(error.contains("declar"), "{name}: {error}");
    }
    devices::record(suite, "clang", "passed", &clang);
}

/// The header and the prelude agree on names and on the values of constants.
#[test]
fn the_header_matches_the_prelude() {
    let header = include_str!("../../include/portcullis.h");
    for (name, _) in prelude::FUNCTIONS {
        assert!(header.contains(&format!(" {name}(")), "{name} is not declared");
    }
    for kind in MapKind::ALL {
        let declared = declarations(&example_declaration(kind, 1), CommentSyntax::C).unwrap();
        for (_, function) in map::functions(&declared[0]) {
            let name = function.name();
            assert!(header.contains(&format!(" NAME##_{name}(")), "{name} of {kind} is not declared");
        }
    }
    let maps = declarations("//! map m: counter entries=1", CommentSyntax::C).unwrap();
    let of_maps = map::wgsl_text(&maps);
    let constants: Vec<(&str, &str)> = prelude::TEXT
        .lines()
        .chain(of_maps.lines())
        .filter_map(|line| line.strip_prefix("const ")?.strip_suffix(';')?.split_once(": u32 = "))
        .collect();
    assert!(constants.len() > 20 && constants.iter().any(|(name, _)| *name == "MAP_FULL"), "{constants:?}");
    for (name, value) in constants {
        assert!(header.contains(&format!("#define {name} {value}\n")), "{name} is not {value}");
    }
}
