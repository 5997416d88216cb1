//! Facts about compiled programs and the size of the generated code.

use naga::Statement;

use super::tcpdump_programs::{PROTOCHAIN, TCP_PORT_80};
use super::*;
use crate::parse;
use portcullis_core::program::child_blocks;
use portcullis_core::program::facts::Window;

fn compile_text(text: &str) -> Program {
    compile_ok(&parse(&Source::new("x.bpf", text)).unwrap())
}

/// Number of statements of the filter function that satisfy `is`, nested ones included.
fn count(program: &Program, is: impl Fn(&Statement) -> bool) -> usize {
    let mut all = vec![&program.module().functions[program.filter()].body];
    let mut count = 0;
    while let Some(block) = all.pop() {
        count += block.iter().filter(|statement| is(statement)).count();
        all.extend(block.iter().flat_map(child_blocks));
    }
    count
}

fn calls(program: &Program, name: &str) -> usize {
    let is = |statement: &Statement| match statement {
        Statement::Call { function, .. } => program.module().functions[*function].name.as_deref() == Some(name),
        _ => false,
    };
    count(program, is)
}

fn variables(program: &Program) -> Vec<String> {
    let function = &program.module().functions[program.filter()];
    function.local_variables.iter().filter_map(|(_, variable)| variable.name.clone()).collect()
}

#[test]
fn facts_bound_what_the_program_reads() {
    let program = compile_text(TCP_PORT_80);
    let facts = program.facts();
    // The destination port after the longest IPv4 header.
    assert_eq!(facts.reads, Window::Bytes(14 + 60 + 4));
    assert_eq!((facts.writes, facts.max_iterations, facts.uses_metadata), (Window::Nothing, Some(0), false));
    let verdicts: Vec<_> = facts.verdicts.iter().map(|action| action.name()).collect();
    assert_eq!(verdicts, ["drop", "pass"]);
    let program = compile_text("2,128 0 0 0,22 0 0 0");
    assert_eq!((program.facts().reads, program.facts().uses_wire_length), (Window::Nothing, true));
    assert!(compile_text("2,32 0 0 4294963208,22 0 0 0").facts().uses_port);
    assert_eq!(compile_text(PROTOCHAIN).facts().max_iterations, None);
}

#[test]
fn length_checks_are_combined() {
    // One check for what every accepting path needs, one for each path that needs more.
    let program = compile_text(TCP_PORT_80);
    assert!(calls(&program, "pkt_len") <= 5, "{}", calls(&program, "pkt_len"));
    // The first check covers the second load, and nothing is loaded after the last test.
    let program = compile_text("5,40 0 0 40,48 0 0 12,21 0 1 3,6 0 0 1,6 0 0 0");
    assert_eq!(calls(&program, "pkt_len"), 1);
    // All accepting paths need the second load.
    let program = compile_text("7,48 0 0 0,21 0 1 3,21 0 0 3,48 0 0 99,21 0 1 3,6 0 0 1,6 0 0 0");
    assert_eq!(calls(&program, "pkt_len"), 1);
    // One check covers all loads relative to the same X.
    let program = compile_text("8,177 0 0 14,72 0 0 14,2 0 0 0,72 0 0 16,4 0 0 1,72 0 0 18,22 0 0 0,6 0 0 0");
    assert_eq!(calls(&program, "pkt_len"), 2);
}

#[test]
fn only_live_registers_become_variables() {
    // A, X and scratch memory stay SSA values within a block.
    let program = compile_text("7,48 0 0 0,7 0 0 0,2 0 0 5,48 0 0 1,12 0 0 0,97 0 0 5,22 0 0 0");
    assert_eq!(variables(&program), Vec::<String>::new());
    assert_eq!(count(&program, |it| matches!(it, Statement::Store { .. })), 0);
    // No instruction of this program uses scratch memory.
    assert!(!variables(&compile_text(TCP_PORT_80)).iter().any(|name| name.starts_with('m')));
    assert!(variables(&compile_text(PROTOCHAIN)).contains(&"x".to_owned()));
}

#[test]
fn comparison_lists_become_one_condition() {
    // `jeq #0`, `jeq #3`, ... on the same byte.
    let ports = 40_u32;
    let mut code: Vec<Code> = vec![(0x30, 0, 0, 0)];
    code.extend((0..ports).map(|port| (0x15, (ports - port - 1) as u8, u8::from(port + 1 == ports), 3 * port)));
    code.extend([(6, 0, 0, 1), (6, 0, 0, 0)]);
    let program = compile_ok(&program(&code));
    assert!(count(&program, |it| matches!(it, Statement::If { .. })) <= 2);
}

#[test]
fn lists_of_networks_load_each_address_once() {
    // `ld [26]; and mask; jeq net` for each network: `and` overwrites A, so the address is loaded
    // again each time.
    let nets = 50_u32;
    let mut code: Vec<Code> = Vec::new();
    for net in 0..nets {
        let to_accept = 3 * (nets - net - 1);
        code.extend([
            (0x20, 0, 0, if net % 2 == 0 { 26 } else { 30 }),
            (0x54, 0, 0, 0xffff_0000),
            (0x15, to_accept as u8, u8::from(net + 1 == nets), net << 17),
        ]);
    }
    code.extend([(6, 0, 0, 1), (6, 0, 0, 0)]);
    let program = compile_ok(&program(&code));
    // The first address is loaded once more, in the block before the check for the second.
    assert_eq!(calls(&program, "load_be32"), 3);
    // Loads relative to the same X are shared, too.
    let program = compile_text("9,177 0 0 14,72 0 0 14,84 0 0 1,2 0 0 0,72 0 0 14,84 0 0 2,97 0 0 0,12 0 0 0,22 0 0 0");
    assert_eq!(calls(&program, "load_be16"), 1);
}

#[test]
fn programs_that_never_accept_check_nothing() {
    for text in ["1,6 0 0 0", "3,48 0 0 5,5 0 0 0,6 0 0 0", "4,40 0 0 12,21 0 1 2048,6 0 0 0,6 0 0 0"] {
        let program = compile_text(text);
        assert_eq!(calls(&program, "pkt_len"), 0, "{text}");
        assert_eq!(program.facts().reads, Window::Nothing, "{text}");
    }
}
