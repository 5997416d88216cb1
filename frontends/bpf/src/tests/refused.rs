//! Programs that are none.

use super::*;
use crate::MAX_INSTRUCTIONS;

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

#[test]
fn programs_as_long_as_can_be_are_taken_or_refused_in_good_time() {
    let most = MAX_INSTRUCTIONS as u32;
    let long = |line: &dyn Fn(u32) -> Code| {
        let mut code: Vec<Code> = (0..most - 1).map(line).collect();
        // Nothing behind the return is jumped to.
        code[most as usize - 2].1 = 0;
        code.push((0x06, 0, 0, 1));
        let begun = std::time::Instant::now();
        let compiled = compile_program(&Source::new("long", ""), &program(&code), &ProgramOptions::default());
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
        compiled.map(drop).map_err(|errors| errors.to_string())
    };
    let last = |at: u32| most - 1 - at;
    // Nothing but jumps to the next one, and to the last; nothing but questions; loads; blocks that meet again.
    long(&|_| (0x05, 0, 0, 0)).unwrap();
    long(&|at| (0x05, 0, 0, last(at) - 1)).unwrap();
    long(&|at| (0x15, 0, 0, at)).unwrap();
    long(&|at| (0x30, 0, 0, at % 50_000)).unwrap();
    // To the one before and the one behind, by turns: no end is come to.
    long(&|at| (0x05, 0, 0, if at % 2 == 0 { 0 } else { -2_i32 as u32 })).unwrap();
    let diamonds = |at: u32| -> Code {
        match at % 4 {
            0 => (0x30, 0, 0, at % 900),
            1 => (0x15, 1, 0, 5),
            2 => (0x04, 0, 0, 1),
            _ => (0x07, 0, 0, 0),
        }
    };
    let over_the_next = |at: u32| (0x15, 1, 0, at);
    let back = |at: u32| if at % 3 == 2 { (0x05, 0, 0, (-1 - at.min(300) as i32) as u32) } else { (0x15, 1, 0, at) };
    for line in [&diamonds as &dyn Fn(u32) -> Code, &over_the_next, &back] {
        let Err(error) = long(line) else { continue };
        assert!(["at most", "deeper", "private memory"].iter().any(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn parameters_are_none_of_these_programs() {
    let options = ProgramOptions { parameters: vec![("x".into(), "1".into())], ..ProgramOptions::default() };
    let said =
        compile_program(&Source::new("expression", ""), &program(&[(6, 0, 0, 1)]), &options).unwrap_err().render();
    assert!(
        said.contains("the filter has no parameter `x`") && said.contains("classic BPF has no parameters"),
        "{said}"
    );
    assert!(!said.contains("override"), "{said}");
}
