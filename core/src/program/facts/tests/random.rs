//! Random filters of the patterns that the analysis distinguishes (guards, counted loops, early
//! exits, helpers, moved heads), run by the reference interpreter. Every execution must be within
//! the facts.

use super::super::Window;
use crate::interp::Interpreter;
use crate::packet::Metadata;
use crate::program::ProgramOptions;
use crate::testing::{Random, program_with};

/// Number of filters in a run; `FACTS_FILTERS=N` sets another number, `FACTS_SEED=N` the first
/// seed.
const FILTERS: u64 = 40;

const FUEL: u32 = 150;

struct Writer {
    random: Random,
    /// Number of loops so far, for unique counter names.
    loops: u32,
    /// Counters of the enclosing loops, which expressions may read; a helper has its own.
    counters: Vec<String>,
    in_loop: bool,
    in_switch: bool,
    /// Whether helpers may be called; they do not call each other.
    helpers: bool,
}

const VARIABLES: [&str; 4] = ["a", "b", "ok_at.x", "carried"];

impl Writer {
    fn variable(&mut self) -> String {
        if !self.counters.is_empty() && self.random.below(3) == 0 {
            let at = self.random.below(self.counters.len() as u64) as usize;
            return self.counters[at].clone();
        }
        self.random.pick(&VARIABLES).to_owned()
    }

    fn number(&mut self) -> u64 {
        match self.random.below(8) {
            0 => 0,
            1 => 1,
            7 => 0xffff_fff8 + self.random.below(8),
            _ => self.random.below(60),
        }
    }

    fn expression(&mut self, depth: u32) -> String {
        let n = self.number();
        let small = self.random.below(6) + 1;
        if depth == 0 {
            return if self.random.below(3) == 0 { format!("{n}u") } else { self.variable() };
        }
        let x = self.expression(depth - 1);
        match self.random.below(13) {
            0 => format!("load_u8(pkt, {x})"),
            1 => format!("({} & load_be16(pkt, {x}))", self.random.pick(&["7u", "63u", "255u", "65535u"])),
            2 => format!("({x} + {n}u)"),
            3 if self.random.below(4) == 0 => format!("({x} - {small}u)"),
            3 => format!("(max({x}, {small}u) - {small}u)"),
            4 => format!("({x} & {}u)", (1u64 << small) - 1),
            5 => format!("({x} * {small}u)"),
            6 => format!("({x} >> {small}u)"),
            7 => format!("min({x}, {n}u)"),
            8 => {
                let (y, c) = (self.expression(depth - 1), self.condition());
                format!("select({x}, {y}, {c})")
            }
            9 => format!("({x} % {small}u)"),
            10 => format!("u32(i32({x}) - {small})"),
            11 if self.helpers => format!("helper(pkt, {x})"),
            _ => format!("({x} | {small}u)"),
        }
    }

    fn condition(&mut self) -> String {
        let (x, n) = (self.expression(1), self.number());
        match self.random.below(8) {
            0 => format!("({} && {})", self.compare(), self.compare()),
            1 => format!("({} || {})", self.compare(), self.compare()),
            2 => format!("!({x} > {n}u)"),
            3 => "flag".into(),
            _ => self.compare(),
        }
    }

    fn compare(&mut self) -> String {
        let (x, n) = (self.expression(1), self.number());
        let op = self.random.pick(&["<", "<=", ">", ">=", "==", "!="]);
        match self.random.below(4) {
            0 => format!("{n}u {op} {x}"),
            1 => format!("{x} {op} {}", self.variable()),
            _ => format!("{x} {op} {n}u"),
        }
    }

    fn block(&mut self, depth: u32) -> String {
        let mut text = String::from("{\n");
        for _ in 0..1 + self.random.below(4) {
            text += &self.statement(depth);
        }
        text + "}\n"
    }

    fn statement(&mut self, depth: u32) -> String {
        let target = self.random.pick(&VARIABLES);
        if depth > 0 {
            match self.random.below(12) {
                0 | 1 | 5 | 6 => {
                    let c = self.condition();
                    let (accept, reject) = (self.block(depth - 1), self.block(depth - 1));
                    return match self.random.below(2) {
                        0 => format!("if {c} {accept}"),
                        _ => format!("if {c} {accept} else {reject}"),
                    };
                }
                2 => return self.counted_loop(depth),
                3 if self.random.below(4) == 0 => return self.free_loop(depth),
                4 => {
                    let x = self.expression(1);
                    let around = std::mem::replace(&mut self.in_switch, true);
                    let arms: Vec<String> = (0..3).map(|_| self.block(depth - 1)).collect();
                    self.in_switch = around;
                    let (m, n) = (self.random.below(30), 30 + self.random.below(30));
                    return format!(
                        "switch {x} {{ case {m}u: {} case {n}u, 99u: {} default: {} }}\n",
                        arms[0], arms[1], arms[2]
                    );
                }
                _ => {}
            }
        }
        match self.random.below(16) {
            0 if self.in_loop && !self.in_switch => format!("if {} {{ break; }}\n", self.condition()),
            0 if self.in_switch => format!("if {} {{ break; }}\n", self.condition()),
            1 if self.in_loop => format!("if {} {{ continue; }}\n", self.condition()),
            2 => format!("if {} {{ return {}; }}\n", self.condition(), self.verdict()),
            3 => format!("flag = {};\n", self.condition()),
            4 => format!("store_u8(pkt, {}, {});\n", self.expression(1), self.expression(1)),
            5 if self.random.below(3) == 0 => format!("adjust_head(pkt, {});\n", self.random.below(9) as i64 - 4),
            6 if self.random.below(3) == 0 => format!("adjust_tail(pkt, {});\n", self.random.below(9) as i64 - 4),
            7 if self.helpers => format!("move_on(pkt, &{}, {}u);\n", self.random.pick(&["a", "b"]), self.number()),
            8 => format!("if {} {{ {target} = {}; }}\n", self.compare(), self.variable()),
            n if n < 12 => format!("{target} = {} & 63u;\n", self.expression(2)),
            _ => format!("{target} = {};\n", self.expression(2)),
        }
    }

    fn verdict(&mut self) -> String {
        match self.random.below(5) {
            0 => format!("redirect({})", self.expression(1)),
            1 => format!("({} & 3u)", self.expression(1)),
            n => n.to_string() + "u",
        }
    }

    fn loop_body(&mut self, depth: u32, counter: Option<String>) -> String {
        let around = (self.in_loop, self.in_switch);
        (self.in_loop, self.in_switch) = (true, false);
        let count = self.counters.len();
        self.counters.extend(counter);
        let text = self.block(depth - 1);
        self.counters.truncate(count);
        (self.in_loop, self.in_switch) = around;
        text
    }

    fn counted_loop(&mut self, depth: u32) -> String {
        self.loops += 1;
        let i = format!("i{}", self.loops);
        let (from, to, step) = (self.random.below(6), self.random.below(14), self.random.below(3) + 1);
        let also = if self.random.below(4) == 0 { format!(" && {}", self.compare()) } else { String::new() };
        let kind = self.random.below(5);
        // Occasionally, the body itself moves the counter.
        let body = self.loop_body(depth, Some(i.clone()));
        let body = match self.random.below(6) {
            0 => body.replacen("{\n", &format!("{{\nif {} {{ {i} = {}u; }}\n", self.compare(), self.number()), 1),
            _ => body,
        };
        match kind {
            0 => format!("for (var {i} = {to}u; {i} > {from}u{also}; {i} -= {step}u) {body}"),
            1 => format!("for (var {i} = {from}u; {i} != {to}u; {i} += {step}u) {body}"),
            2 => format!("for (var {i} = {from}u; {i} <= {to}u{also}; {i} = {step}u + {i}) {body}"),
            3 => format!(
                "for (var s{i} = {}; s{i} < {to}; s{i} += {step}) {{ var {i} = u32(s{i}); {body} }}\n",
                from as i64 - 3
            ),
            _ => format!("for (var {i} = {from}u; {i} < {to}u{also}; {i} += {step}u) {body}"),
        }
    }

    fn free_loop(&mut self, depth: u32) -> String {
        let x = self.random.pick(&VARIABLES);
        let (n, step, c) = (self.number(), self.random.below(5), self.compare());
        let body = self.loop_body(depth, None);
        match self.random.below(4) {
            0 => format!("while {x} < {n}u {{ {x} = {x} + {step}u; {body} }}\n"),
            1 => format!("loop {{ {body} continuing {{ {x} = {x} + {step}u; break if {c}; }} }}\n"),
            2 => format!("loop {{ if {x} == {n}u {{ break; }} {body} {x}--; }}\n"),
            _ => format!("while {c} {body}"),
        }
    }

    fn filter(seed: u64) -> String {
        let mut writer = Writer {
            random: Random(seed),
            loops: 0,
            counters: Vec::new(),
            in_loop: false,
            in_switch: false,
            helpers: false,
        };
        let variables = "var a = first; var b = load_u8(pkt, 3u); var ok_at = vec2<u32>(4u, b); var flag = a < b;\n";
        let helper = writer.block(1);
        writer.helpers = true;
        let main: String = (0..4).map(|_| writer.statement(3)).collect();
        format!(
            "var<private> carried: u32 = 14u;
             fn helper(pkt: u32, first: u32) -> u32 {{ {variables} {helper} return a + b; }}
             fn move_on(pkt: u32, at: ptr<function, u32>, by: u32) {{
                 if *at > 40u {{ return; }}
                 carried = *at;
                 *at = *at + by;
             }}
             fn xdp_filter(pkt: u32) -> u32 {{ let first = 1u; {variables} {main} return {}; }}",
            writer.verdict()
        )
    }
}

fn environment_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn executions_stay_within_the_facts() {
    let first = environment_number("FACTS_SEED", 1);
    let (mut bounded, mut ended, mut reached) = (0, 0, 0);
    let filters = environment_number("FACTS_FILTERS", FILTERS);
    for seed in first..first + filters {
        let text = Writer::filter(seed);
        let program = program_with(&text, &ProgramOptions { fuel: FUEL, ..ProgramOptions::default() });
        let facts = program.facts();
        bounded += u64::from(matches!(facts.reads, Window::Bytes(_)));
        ended += u64::from(facts.max_iterations.is_some());
        let interpreter = Interpreter::new(&program).expect("the verifier let it through");
        let mut random = Random(!seed);
        for _ in 0..12 {
            let length = [0, 1, 17, 64, 300][random.below(5) as usize];
            let most = [3, 20, 70, 256][random.below(4) as usize];
            let packet: Vec<u8> = (0..length).map(|_| random.below(most) as u8).collect();
            let outcome = interpreter.run(&packet, &Metadata::default()).expect("it runs");
            let trace = outcome.trace;
            let context = || format!("seed {seed}: {facts:?}\n{outcome:?}\n{text}");
            let end = |window: Window, end: Option<u32>| window.bytes_in(u32::MAX) >= end.unwrap_or(0);
            assert!(end(facts.reads, trace.read_end), "reads {}", context());
            assert!(end(facts.writes, trace.written_end), "writes {}", context());
            assert!(facts.verdicts.contains(outcome.verdict.action()), "verdicts {}", context());
            assert!(facts.changes_length || outcome.packet.len() == packet.len(), "length {}", context());
            assert!(facts.rewrites() || outcome.packet == packet, "bytes {}", context());
            assert!(
                facts.max_iterations.is_none_or(|most| trace.iterations <= u64::from(most)),
                "iterations {}",
                context()
            );
            reached += u64::from(facts.max_iterations.is_some_and(|most| most > 0 && trace.iterations > 0));
        }
    }
    // The comparison is only worth something if enough filters have bounds and loops.
    assert!(bounded * 10 > filters && ended * 4 > filters && reached * 2 > filters, "{bounded} {ended} {reached}");
}
