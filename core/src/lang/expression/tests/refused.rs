//! Programs that are none.

use super::*;
use crate::lang::expression::MAX_INSTRUCTIONS;

fn text(code: &[Code]) -> String {
    let lines: String = code.iter().map(|(code, jt, jf, k)| format!("{code} {jt} {jf} {k}\n")).collect();
    format!("{}\n{lines}", code.len())
}

#[test]
fn each_mistake_is_told_with_its_instruction() {
    const RET: Code = (0x06, 0, 0, 0);
    for (code, message, place) in [
        (&[(0x99, 0, 0, 0), RET][..], "no instruction has the code 0x99", "x.bpf:2:1"),
        (&[(0x1ff, 0, 0, 0), RET], "no instruction has the code 0x1ff", "x.bpf:2:1"),
        // eBPF: BPF_MOV, BPF_LDX | BPF_MEM | BPF_DW
        (&[RET, (0xb7, 0, 0, 0), RET], "no instruction has the code 0xb7", "x.bpf:3:1"),
        (&[(0x60, 0, 0, 16), RET], "there is no M[16]", "x.bpf:2:1"),
        (&[(0x61, 0, 0, u32::MAX), RET], "there is no M[4294967295]", "x.bpf:2:1"),
        (&[(0x02, 0, 0, 16), RET], "there is no M[16]", "x.bpf:2:1"),
        (&[(0x03, 0, 0, 99), RET], "there is no M[99]", "x.bpf:2:1"),
        (&[(0x34, 0, 0, 0), RET], "this divides by zero", "x.bpf:2:1"),
        (&[RET, (0x94, 0, 0, 0), RET], "this divides by zero", "x.bpf:3:1"),
        (&[(0x15, 1, 0, 0), RET], "this jumps to instruction 2, out of the program", "x.bpf:2:1"),
        (&[(0x15, 0, 255, 0), RET], "this jumps to instruction 256, out of the program", "x.bpf:2:1"),
        (&[(0x05, 0, 0, 1), RET], "this jumps to instruction 2, out of the program", "x.bpf:2:1"),
        (&[(0x05, 0, 0, 0x7fff_ffff), RET], "this jumps to instruction 2147483648", "x.bpf:2:1"),
        (&[(0x05, 0, 0, -2_i32 as u32), RET], "this jumps to instruction -1, out of the program", "x.bpf:2:1"),
        (&[(0x05, 0, 0, 0x8000_0000), RET], "this jumps to instruction -2147483647", "x.bpf:2:1"),
        (&[RET, (0x04, 0, 0, 1)], "the last instruction is no `ret`", "x.bpf:3:1"),
        (&[RET, (0x05, 0, 0, -1_i32 as u32)], "the last instruction is no `ret`", "x.bpf:3:1"),
        (&[(0x15, 0, 0, 1)], "the last instruction is no `ret`", "x.bpf:2:1"),
        (&[(0x28, 0, 0, 0xffff_f004), RET], "the load of SKF_AD_PKTTYPE has no value here", "x.bpf:2:1"),
        (&[(0x20, 0, 0, 0xffff_f014), RET], "the load of SKF_AD_MARK has no value here", "x.bpf:2:1"),
        (&[(0x30, 0, 0, 0xffff_f038), RET], "the load of SKF_AD_RANDOM has no value here", "x.bpf:2:1"),
    ] {
        let shown = refused(&text(code));
        assert!(shown.contains(message), "{shown}");
        assert!(shown.contains(place), "{shown}");
    }
}

#[test]
fn programs_of_another_text_are_told_by_number() {
    let source = Source::new("--expr", "tcp");
    let errors = compile_program(&source, &program(&[(6, 0, 0, 0), (0x99, 0, 0, 0)]), &ProgramOptions::default());
    let errors = errors.unwrap_err().to_string();
    assert!(errors.contains("--expr: instruction 1: no instruction has the code 0x99"), "{errors}");
    let errors = compile_program(&source, &[], &ProgramOptions::default()).unwrap_err().to_string();
    assert!(errors.contains("at least one instruction"), "{errors}");
    let long = program(&vec![(6, 0, 0, 0); MAX_INSTRUCTIONS + 1]);
    let errors = compile_program(&source, &long, &ProgramOptions::default()).unwrap_err().to_string();
    assert!(errors.contains("at most 65535 instructions"), "{errors}");
}

#[test]
fn parameters_and_what_is_no_text_are_refused() {
    let options = ProgramOptions { parameters: vec![("port".into(), "1".into())], ..ProgramOptions::default() };
    let errors = compile(&Source::new("x.bpf", "1\n6 0 0 0"), &options).unwrap_err();
    assert_eq!(errors.errors[0].parameter.as_deref(), Some("port"));
}

#[test]
fn a_program_with_every_mistake_has_so_many_errors() {
    let mut code = vec![(0x99, 0, 0, 0); 100];
    code.push((0x04, 0, 0, 0));
    let shown = refused(&text(&code));
    assert_eq!(shown.matches("error:").count(), 21, "{shown}");
}
