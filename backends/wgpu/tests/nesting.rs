//! Nested branches, whose depth is limited on software devices.

mod common;

use common::{devices, program, run_batch};
use portcullis_core::device::{Device, DeviceError, DeviceKind, LoadOptions};
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{Batch, Metadata, Verdict};

/// A filter with `n` nested branches, or `n` branches in sequence with jumps out of them, which
/// compilers turn into nested ones.
type Nested = fn(usize) -> String;

fn repeat(n: usize, part: impl Fn(usize) -> String) -> String {
    (0..n).map(part).collect()
}

/// Mixes `y`; true for few packets.
fn rare(i: usize) -> String {
    format!("y = y * 5u + {i}u; if y % 251u == {i}u")
}

const KINDS: [(&str, Nested); 8] = [
    ("returns", |n| repeat(n, |i| format!("{} {{ return XDP_TX; }} ", rare(i)))),
    ("breaks", |n| format!("loop {{ {} break; }}", repeat(n, |i| format!("{} {{ break; }} ", rare(i))))),
    ("continues", |n| {
        let body = repeat(n, |i| format!("{} {{ continue; }} ", rare(i)));
        format!("for (var k = 0u; k < 3u; k++) {{ {body} }}")
    }),
    ("cases", |n| {
        let cases = repeat(n, |i| format!("case {}u: {{ store_u8(pkt, 0u, {i}u); return XDP_TX; }} ", 2 * i));
        format!("switch y % 500u {{ {cases} default: {{}} }}")
    }),
    ("alternatives", |n| {
        repeat(n, |i| format!("{} mix(&y, {i}u) {{ y += 2u; }} ", if i == 0 { "if" } else { "else if" }))
    }),
    ("loops with a return", |n| {
        let body = |i| format!("y = y * 5u + k; if y % 1021u == {i}u {{ return XDP_TX; }}");
        repeat(n, |i| format!("for (var k = 0u; k < 3u; k++) {{ {} }} ", body(i)))
    }),
    ("loops with a break", |n| {
        let body = |i| format!("y = y * 5u + k{i}; if y % 61u == {i}u {{ break; }}");
        let open = repeat(n, |i| format!("for (var k{i} = 0u; k{i} < y % 3u; k{i}++) {{ {} ", body(i)));
        open + &"}".repeat(n)
    }),
    ("loops that are unrolled", |n| {
        let returns = repeat(n, |i| format!("{} {{ return XDP_TX; }} ", rare(i)));
        returns + "for (var k = 0u; k < 24u; k++) { y = y * 5u + k; if y % 61u == 7u { break; } y = y + 3u; }"
    }),
];

fn filter(body: &str) -> String {
    format!(
        "fn mix(y: ptr<function, u32>, i: u32) -> bool {{ *y = *y * 5u + i; return *y % 61u == i; }}
         fn xdp_filter(pkt: u32) -> u32 {{
             var y = load_be32(pkt, 0u);
             {body}
             return 1u + y % 2u;
         }}"
    )
}

/// For each kind, the deepest filter that a device accepts agrees with the interpreter, and a
/// software device refuses deeper ones.
#[test]
fn accepted_filters_agree_with_the_interpreter() {
    let packets: Vec<Vec<u8>> = (0..256u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()).collect();
    for device in devices() {
        for (kind, nested) in KINDS {
            let refused = |n: usize| match device.load(&program(&filter(&nested(n))), &LoadOptions::default()) {
                Ok(_) => None,
                Err(DeviceError::Unsupported { reason, .. }) => Some(reason),
                Err(error) => panic!("{kind}, {n}: {error}"),
            };
            let (mut most, mut beyond) = (1, 90);
            if device.info().kind == DeviceKind::Software {
                let reason = refused(beyond).unwrap_or_else(|| panic!("{kind}: {beyond} are accepted"));
                assert!(reason.contains("deep") && reason.contains("--device cpu"), "{kind}: {reason}");
                while beyond - most > 1 {
                    let n = usize::midpoint(most, beyond);
                    if refused(n).is_none() { most = n } else { beyond = n }
                }
                assert!(most >= 15, "{kind}: only {most} are accepted");
            } else {
                most = beyond;
            }
            let program = program(&filter(&nested(most)));
            let interpreter = Interpreter::new(&program).unwrap();
            let expected: Vec<Verdict> =
                packets.iter().map(|packet| interpreter.run(packet, &Metadata::default()).unwrap().verdict).collect();
            let (verdicts, _) = run_batch(&device, &program, Batch::from_packets(&packets).unwrap());
            assert_eq!(verdicts, expected, "{kind}: {most} on {}", device.info().id);
        }
    }
}
