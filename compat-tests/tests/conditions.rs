//! Short-circuit evaluation: random combinations of `&&`, `||` and `!` in every statement that
//! takes a condition. A code generator may branch on each operand, evaluate all of them, or mix
//! both. One packet for each assignment of the operands covers all cases.

use portcullis_compat_tests::harness;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Number of bytes that conditions test; each is 0 or 1.
const BYTES: u32 = 6;
const FILTERS: u64 = 30;
/// Number of cases that a device with a slow compiler runs.
const SHARE: usize = 8;

/// A boolean expression over bytes of the packet.
enum Condition {
    Byte(u32),
    Not(Box<Condition>),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
}

impl Condition {
    fn random(rng: &mut Pcg64Mcg, depth: u32) -> Condition {
        let part = |rng: &mut Pcg64Mcg| Box::new(Condition::random(rng, depth - 1));
        match rng.random_range(0..if depth == 0 { 1 } else { 8 }) {
            0 => Condition::Byte(rng.random_range(0..BYTES)),
            1 => Condition::Not(part(rng)),
            2..=4 => Condition::And(part(rng), part(rng)),
            _ => Condition::Or(part(rng), part(rng)),
        }
    }

    fn text(&self) -> String {
        match self {
            Condition::Byte(at) => format!("(load_u8(pkt, {at}u) == 1u)"),
            Condition::Not(a) => format!("!({})", a.text()),
            Condition::And(a, b) => format!("({} && {})", a.text(), b.text()),
            Condition::Or(a, b) => format!("({} || {})", a.text(), b.text()),
        }
    }

    fn holds(&self, packet: &[u8]) -> bool {
        match self {
            Condition::Byte(at) => packet[*at as usize] == 1,
            Condition::Not(a) => !a.holds(packet),
            Condition::And(a, b) => a.holds(packet) && b.holds(packet),
            Condition::Or(a, b) => a.holds(packet) || b.holds(packet),
        }
    }
}

/// Returns a filter that redirects to a port with one bit per condition, and a model of that port.
fn filter(seed: u64) -> (String, impl Fn(&[u8]) -> u32) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let conditions: Vec<Condition> = (0..7).map(|_| Condition::random(&mut rng, 4)).collect();
    let [a, b, c, d, e, f, g] = [0, 1, 2, 3, 4, 5, 6].map(|i| conditions[i].text());
    let text = format!(
        "fn helper(pkt: u32) -> bool {{ return {a}; }}
fn early(pkt: u32) -> u32 {{
    if {b} {{ return 2u; }}
    return 0u;
}}
fn xdp_filter(pkt: u32) -> u32 {{
    var bits = early(pkt);
    if helper(pkt) {{ bits |= 1u; }}
    let kept = {c};
    if kept {{ bits |= 4u; }} else if {d} {{ bits |= 8u; }}
    if kept && {e} {{ bits |= 16u; }}
    for (var i = 0u; i < 3u && {f}; i++) {{ bits += 32u; }}
    while {g} {{
        bits |= 128u;
        break;
    }}
    if !kept {{ bits |= 256u; }}
    return redirect(bits);
}}
"
    );
    let model = move |packet: &[u8]| {
        let holds: Vec<bool> = conditions.iter().map(|c| c.holds(packet)).collect();
        let bit = |condition: bool, bit: u32| if condition { bit } else { 0 };
        bit(holds[0], 1)
            | bit(holds[1], 2)
            | bit(holds[2], 4)
            | bit(!holds[2] && holds[3], 8)
            | bit(holds[2] && holds[4], 16)
            | bit(holds[5], 3 * 32)
            | bit(holds[6], 128)
            | bit(!holds[2], 256)
    };
    (text, model)
}

/// Returns one packet for each assignment.
fn packets() -> Vec<Vec<u8>> {
    (0..1u32 << BYTES).map(|bits| (0..BYTES).map(|at| (bits >> at & 1) as u8).collect()).collect()
}

#[test]
fn conditions_agree_with_the_model() {
    harness::compare_with_models("conditions", (0..FILTERS).map(filter), &packets(), SHARE);
}
