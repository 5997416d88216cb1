//! Invalid programs and their errors.

use super::*;
use crate::MAX_INSTRUCTIONS;

fn text(code: &[Code]) -> String {
    let lines: String = code.iter().map(|(code, jt, jf, k)| format!("{code} {jt} {jf} {k}\n")).collect();
    format!("{}\n{lines}", code.len())
}

#[test]
fn errors_name_the_instruction() {
    const RET: Code = (0x06, 0, 0, 0);
    for (code, message, place) in [
        (&[(0x99, 0, 0, 0), RET][..], "unknown opcode 0x99", "x.bpf:2:1"),
        (&[(0x1ff, 0, 0, 0), RET], "unknown opcode 0x1ff", "x.bpf:2:1"),
        // eBPF: BPF_MOV, BPF_LDX | BPF_MEM | BPF_DW
        (&[RET, (0xb7, 0, 0, 0), RET], "unknown opcode 0xb7", "x.bpf:3:1"),
        (&[(0x60, 0, 0, 16), RET], "M[16] does not exist", "x.bpf:2:1"),
        (&[(0x61, 0, 0, u32::MAX), RET], "M[4294967295] does not exist", "x.bpf:2:1"),
        (&[(0x02, 0, 0, 16), RET], "M[16] does not exist", "x.bpf:2:1"),
        (&[(0x03, 0, 0, 99), RET], "M[99] does not exist", "x.bpf:2:1"),
        (&[(0x34, 0, 0, 0), RET], "division by zero", "x.bpf:2:1"),
        (&[RET, (0x94, 0, 0, 0), RET], "division by zero", "x.bpf:3:1"),
        (&[(0x15, 1, 0, 0), RET], "jump to instruction 2, out of the program", "x.bpf:2:1"),
        (&[(0x15, 0, 255, 0), RET], "jump to instruction 256, out of the program", "x.bpf:2:1"),
        (&[(0x05, 0, 0, 1), RET], "jump to instruction 2, out of the program", "x.bpf:2:1"),
        (&[(0x05, 0, 0, 0x7fff_ffff), RET], "jump to instruction 2147483648", "x.bpf:2:1"),
        (&[(0x05, 0, 0, -2_i32 as u32), RET], "jump to instruction -1, out of the program", "x.bpf:2:1"),
        (&[(0x05, 0, 0, 0x8000_0000), RET], "jump to instruction -2147483647", "x.bpf:2:1"),
        (&[RET, (0x04, 0, 0, 1)], "the last instruction is not a `ret`", "x.bpf:3:1"),
        (&[RET, (0x05, 0, 0, -1_i32 as u32)], "the last instruction is not a `ret`", "x.bpf:3:1"),
        (&[(0x15, 0, 0, 1)], "the last instruction is not a `ret`", "x.bpf:2:1"),
        (&[(0x28, 0, 0, 0xffff_f004), RET], "the load of SKF_AD_PKTTYPE is not supported", "x.bpf:2:1"),
        (&[(0x20, 0, 0, 0xffff_f014), RET], "the load of SKF_AD_MARK is not supported", "x.bpf:2:1"),
        (&[(0x30, 0, 0, 0xffff_f038), RET], "the load of SKF_AD_RANDOM is not supported", "x.bpf:2:1"),
    ] {
        let shown = rejected(&text(code));
        assert!(shown.contains(message), "{shown}");
        assert!(shown.contains(place), "{shown}");
    }
}

#[test]
fn errors_without_places_name_the_instruction_number() {
    let source = Source::new("--expr", "tcp");
    let errors = compile_program(&source, &program(&[(6, 0, 0, 0), (0x99, 0, 0, 0)]), &ProgramOptions::default());
    let errors = errors.unwrap_err().to_string();
    assert!(errors.contains("--expr: instruction 1: unknown opcode 0x99"), "{errors}");
    let errors = compile_program(&source, &[], &ProgramOptions::default()).unwrap_err().to_string();
    assert!(errors.contains("at least one instruction"), "{errors}");
    let long = program(&vec![(6, 0, 0, 0); MAX_INSTRUCTIONS + 1]);
    let errors = compile_program(&source, &long, &ProgramOptions::default()).unwrap_err().to_string();
    assert!(errors.contains("at most 65535 instructions"), "{errors}");
}

#[test]
fn an_unknown_parameter_is_attributed_to_its_name() {
    let options = ProgramOptions::default().with_parameters(vec![("port".into(), "1".into())]);
    let errors = compile(&Source::new("x.bpf", "1\n6 0 0 0"), &options).unwrap_err();
    assert_eq!(errors.errors[0].parameter.as_deref(), Some("port"));
}

#[test]
fn limits_errors_and_adds_the_missing_return() {
    let mut code = vec![(0x99, 0, 0, 0); 100];
    code.push((0x04, 0, 0, 0));
    let shown = rejected(&text(&code));
    assert_eq!(shown.matches("error:").count(), 21, "{shown}");
}

#[test]
fn programs_of_maximum_length_compile_or_fail_quickly() {
    let max_length = MAX_INSTRUCTIONS as u32;
    let compile_long = |line: &dyn Fn(u32) -> Code| {
        let mut code: Vec<Code> = (0..max_length - 1).map(line).collect();
        // The last instruction before the return has only the return to jump to.
        code[max_length as usize - 2].1 = 0;
        code.push((0x06, 0, 0, 1));
        let started = std::time::Instant::now();
        let compiled = compile_program(&Source::new("long", ""), &program(&code), &ProgramOptions::default());
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
        compiled.map(drop).map_err(|errors| errors.to_string())
    };
    let distance_to_last = |at: u32| max_length - 1 - at;
    // Jumps to the next instruction; jumps to the last; conditional jumps only; loads only.
    compile_long(&|_| (0x05, 0, 0, 0)).unwrap();
    compile_long(&|at| (0x05, 0, 0, distance_to_last(at) - 1)).unwrap();
    compile_long(&|at| (0x15, 0, 0, at)).unwrap();
    compile_long(&|at| (0x30, 0, 0, at % 50_000)).unwrap();
    // Alternating jumps forward and back that never end.
    compile_long(&|at| (0x05, 0, 0, if at % 2 == 0 { 0 } else { -2_i32 as u32 })).unwrap();
    let diamonds = |at: u32| -> Code {
        match at % 4 {
            0 => (0x30, 0, 0, at % 900),
            1 => (0x15, 1, 0, 5),
            2 => (0x04, 0, 0, 1),
            _ => (0x07, 0, 0, 0),
        }
    };
    let overlapping_skips = |at: u32| (0x15, 1, 0, at);
    let back_jumps =
        |at: u32| if at % 3 == 2 { (0x05, 0, 0, (-1 - at.min(300) as i32) as u32) } else { (0x15, 1, 0, at) };
    for line in [&diamonds as &dyn Fn(u32) -> Code, &overlapping_skips, &back_jumps] {
        let Err(error) = compile_long(line) else { continue };
        assert!(["at most", "deeper", "private memory"].iter().any(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn parameters_are_rejected_with_an_explanation() {
    let options = ProgramOptions::default().with_parameters(vec![("x".into(), "1".into())]);
    let rendered =
        compile_program(&Source::new("expression", ""), &program(&[(6, 0, 0, 1)]), &options).unwrap_err().render();
    assert!(
        rendered.contains("the filter has no parameter `x`")
            && rendered.contains("classic BPF programs have no parameters"),
        "{rendered}"
    );
    assert!(!rendered.contains("override"), "{rendered}");
}
