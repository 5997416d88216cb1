//! Texts made to exhaust the compiler's stack, memory or time.

use super::*;
use portcullis_core::stack::COMPILE_STACK_BYTES;

/// `unit` repeated up to the maximum size of a text.
fn fill(before: &str, unit: &str, after: &str) -> String {
    let times = (MAX_SOURCE_BYTES - before.len() - after.len()) / unit.len();
    format!("{before}{}{after}", unit.repeat(times))
}

fn body(statements: &str) -> String {
    format!("fn xdp_filter(pkt: u32) -> u32 {{ {statements} return XDP_PASS; }}")
}

#[test]
fn maximum_size_texts_are_rejected_cheaply() {
    for (text, words) in [
        (fill("", "(", ""), "brackets"),
        (fill("const a = ", "[", ""), "brackets"),
        (fill("", "{", ""), "brackets"),
        (fill("alias a = ", "array<", ""), "too deep"),
        (fill("", "/*", ""), "unterminated comment"),
        (fill("", "\0", ""), "U+0000"),
        (fill("fn f() { let a = ", "!", "true; }"), "too deep"),
        (fill("fn f() { let a = ", "- ", "1; }"), "too deep"),
        (fill("fn f() { let a = 1", "+1", "; }"), "too deep"),
        (fill("fn f() { let a = true", "&&true", "; }"), "too deep"),
        (fill("fn f() { let a = 1", "<1", "; }"), "too deep"),
        (fill("fn f() { a", "[0]", "= 1; }"), "too deep"),
        (fill("fn f() { a", ".a", "= 1; }"), "too deep"),
        (fill("fn f() { if a {} ", "else if a {} ", "}"), "else if"),
        (fill("", "a<b,", ""), "middle of a declaration"),
        (fill("", "alias a = b;", ""), "declarations"),
        (fill("", "fn a() {}", ""), "declarations"),
        (fill("", "enable f16;", ""), "no function"),
        (fill("fn xdp_filter(pkt: u32) -> u32 {", "let a = 1 ", "}"), "expected `;`"),
        (fill("fn xdp_filter(pkt: u32) -> u32 {", "const a = array(a) ", "}"), "expected `;`"),
        (fill("fn xdp_filter(pkt: u32) -> u32 {", "var a = a ", "}"), "expected `;`"),
    ] {
        assert!(text.len() <= MAX_SOURCE_BYTES);
        let errors = compile(&Source::new("f", text.as_str()), &ProgramOptions::default()).unwrap_err();
        let message = &errors.errors[0].message;
        assert!(message.contains(words), "{}...: {message}", &text[..40]);
        assert!(errors.render().len() < 10_000, "{}...", &text[..40]);
    }
}

// Each text is as deep in one dimension as the limits permit. A quarter of the stack is enough for
// them, even with an unoptimised naga.
#[test]
fn deep_texts_fit_the_stack() {
    let chain = |make: &dyn Fn(usize) -> String| (0..8_000).map(make).collect::<String>();
    let texts = [
        body(&format!("let a = {}1u{};", "(".repeat(190), ")".repeat(190))),
        body(&format!("let a = {}1i{};", "abs(".repeat(190), ")".repeat(190))),
        body(&format!("let a = {}true;", "!".repeat(255))),
        body(&format!("let a = {};", vec!["pkt_len(pkt)"; 255].join("*"))),
        body(&format!("let a = {}1u{};", "1u+(".repeat(120), ")".repeat(120))),
        body(&format!("if pkt_len(pkt) == 1u {{}} {}", "else if pkt_len(pkt) == 2u {}".repeat(250))),
        body(&format!(
            "{}let a = {}1u{};{}",
            "loop { ".repeat(90),
            "(".repeat(98),
            ")".repeat(98),
            "break; }".repeat(90)
        )),
        body(
            &(0..10_000)
                .fold("let a0 = pkt_len(pkt);".to_owned(), |text, i| text + &format!("let a{} = a{i}*2u;", i + 1)),
        ),
        chain(&|i| format!("const a{i} = a{};", i + 1)) + "const a8000 = 1u;" + &body("let a = a0;"),
        chain(&|i| format!("alias a{i} = a{};", i + 1)) + "alias a8000 = u32;" + &body("var a: a0;"),
        chain(&|i| format!("fn a{i}() {{ a{}(); }}", i + 1)) + "fn a8000() {}" + &body(""),
        chain(&|i| format!("struct a{i} {{ m: a{} }}", i + 1)) + "struct a8000 { m: u32 }" + &body(""),
        chain(&|i| format!("override a{i} = a{};", i + 1)) + "override a8000 = 1u;" + &body(""),
    ];
    for text in texts {
        let source = Source::new("f", text.as_str());
        let thread = std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES / 4);
        let compiled = thread.spawn(move || compile_here(&source, &ProgramOptions::default()).map(drop)).unwrap();
        if let Err(errors) = compiled.join().unwrap() {
            let message = &errors.errors[0].message;
            assert!(message.contains("15 deep"), "{}...: {}", &text[..60], errors.render());
        }
    }
}
