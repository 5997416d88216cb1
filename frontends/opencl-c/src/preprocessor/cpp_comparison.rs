//! Differential tests against the preprocessors of GCC and Clang, on handwritten and random texts.

use std::io::Write;
use std::process::{Command, Stdio};

use super::*;
use crate::files::NoIncludes;

/// Compilers installed here. Without any, the tests print that they are skipped.
fn compilers() -> Vec<String> {
    let works = |name: &String| {
        let run = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    // Debian's executables have the version in their name.
    let clangs = std::iter::once("clang".to_owned()).chain((13..=24).rev().map(|version| format!("clang-{version}")));
    let found: Vec<_> = [Some("gcc".to_owned()).filter(works), { clangs }.find(works)].into_iter().flatten().collect();
    if found.is_empty() {
        println!("skipped: neither gcc nor clang is installed");
    }
    found
}

/// Output of a compiler's preprocessor with warnings handled by `warnings` (`-w` or `-Werror`);
/// `None` if it reports an error.
fn cpp_output(compiler: &str, warnings: &str, text: &str) -> Option<String> {
    let mut child = Command::new(compiler)
        .args(["-E", "-P", "-undef", "-nostdinc", warnings, "-std=gnu11", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the compiler was found before");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("a compiler reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("a compiler ends");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("UTF-8 went in"))
}

/// Output of our preprocessor, before literals are evaluated.
fn our_output(text: &str) -> Result<Vec<String>, Diagnostics> {
    let source = Source::new("f.c", text);
    let mut includes = NoIncludes;
    let mut preprocessor = Preprocessor::new(&source, &mut includes);
    let mut tokens = Vec::new();
    let mut run = || {
        preprocessor.define_builtins()?;
        preprocessor.push_input(FileId::FILTER, PathBuf::new(), None)?;
        while !preprocessor.inputs.is_empty() {
            while let Some(token) = preprocessor.next_expanded()? {
                tokens.push(preprocessor.spelled(token).to_owned());
            }
            match preprocessor.at_directive() {
                true => preprocessor.directive()?,
                false => drop(preprocessor.pop_input()?),
            }
        }
        Ok(())
    };
    let _: Result<(), Abort> = run();
    match preprocessor.errors.is_empty() {
        true => Ok(tokens),
        false => Err(preprocessor.files.diagnostics(preprocessor.errors)),
    }
}

/// Splits preprocessed text into tokens by longest match, independently of our lexer.
fn split_tokens(text: &str) -> Vec<String> {
    const SYMBOLS: &[&str] = &[
        "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "*=", "/=", "%=", "+=",
        "-=", "&=", "^=", "|=", "##",
    ];
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let quote_at = word(rest);
        let quoted =
            rest[quote_at..].starts_with(['"', '\'']) && ["", "L", "u", "U", "u8"].contains(&&rest[..quote_at]);
        let is_number = first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()));
        let length = if quoted {
            let quote = rest.as_bytes()[quote_at];
            let mut end = quote_at + 1;
            while rest.as_bytes()[end] != quote {
                end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
            }
            end + 1
        } else if is_number {
            let mut end = 1;
            let bytes = rest.as_bytes();
            while end < bytes.len()
                && (bytes[end].is_ascii_alphanumeric()
                    || matches!(bytes[end], b'.' | b'_')
                    || (matches!(bytes[end], b'+' | b'-') && matches!(bytes[end - 1], b'e' | b'E' | b'p' | b'P')))
            {
                end += 1;
            }
            end
        } else if first.is_alphabetic() || first == '_' {
            word(rest)
        } else {
            SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)).map_or(first.len_utf8(), |symbol| symbol.len())
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Compares the outputs; returns a description of the difference. Where we report an error, the
/// compiler must at least warn.
fn difference(compiler: &str, text: &str) -> Option<String> {
    let ours = our_output(text);
    let warnings = if ours.is_ok() { "-w" } else { "-Werror" };
    let theirs = cpp_output(compiler, warnings, text).map(|text| split_tokens(&text));
    match (theirs, ours) {
        (Some(theirs), Ok(ours)) if theirs == ours => None,
        (None, Err(_)) => None,
        (theirs, ours) => {
            let theirs = theirs.map_or("an error".to_owned(), |tokens| tokens.join(" "));
            let ours = ours.map_or_else(|errors| errors.render(), |tokens| tokens.join(" "));
            Some(format!("{text}\n{compiler}: {theirs}\nours: {ours}"))
        }
    }
}

/// Cases that the standard or compilers make difficult, separated by blank lines.
const HANDWRITTEN: &str = include_str!("cpp_comparison.txt");

#[test]
fn handwritten_texts_match_cpp() {
    for compiler in compilers() {
        let differences: Vec<_> = HANDWRITTEN.split("\n\n").filter_map(|text| difference(&compiler, text)).collect();
        assert!(differences.is_empty(), "{}", differences.join("\n----\n"));
    }
}

/// SplitMix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// Generates random macro definitions and text that uses them.
struct Program<'a> {
    random: &'a mut Random,
    /// Macro names, with their number of parameters (-1 for object-like), and whether they are
    /// variadic.
    macros: Vec<(String, i32, bool)>,
    /// Whether line breaks are allowed, which would end a definition.
    in_text: bool,
}

impl Program<'_> {
    fn text(random: &mut Random) -> String {
        let mut macros = Vec::new();
        for i in 0..2 + random.below(5) {
            let parameters = random.below(5) as i32 - 1;
            macros.push((format!("{}{i}", random.one(&["M", "f", "G"])), parameters.min(2), random.below(4) == 0));
        }
        let mut program = Program { random, macros, in_text: false };
        let mut text = String::new();
        for (name, parameters, variadic) in program.macros.clone() {
            let mut names: Vec<&str> = ["x", "y"][..parameters.max(0) as usize].to_vec();
            let mut list = names.clone();
            if variadic && parameters >= 0 {
                list.push("...");
                names.push("__VA_ARGS__");
            }
            let list = if parameters < 0 { String::new() } else { format!("({})", list.join(", ")) };
            let body = program.replacement_list(&names);
            text += &format!("#define {name}{list} {body}\n");
        }
        program.in_text = true;
        for _ in 0..1 + program.random.below(4) {
            text += &program.tokens(&[], 3);
            text += "\n";
        }
        text
    }

    fn replacement_list(&mut self, parameters: &[&str]) -> String {
        let mut body = String::new();
        for i in 0..self.random.below(6) {
            let before = body.len();
            match self.random.below(8) {
                0 if !parameters.is_empty() => body += &format!("#{}", self.random.one(parameters)),
                1..=3 if !parameters.is_empty() => body += self.random.one(parameters),
                _ => body += &self.tokens(parameters, 1),
            }
            if i > 0 && before > 0 && body.len() > before {
                let between = self.random.one(&[" ", " ", " ", " ", " ", "", "", " ## "]);
                body.insert_str(before, between);
            }
        }
        body
    }

    /// A few random tokens, including macro uses, mostly with the right number of arguments.
    fn tokens(&mut self, parameters: &[&str], depth: usize) -> String {
        let mut text = String::new();
        for i in 0..self.random.below(4) + 1 {
            if i > 0 {
                text += self.random.one(&[" ", "  ", "", "/**/"]);
            }
            match self.random.below(9) {
                0..=3 => {
                    let number = self.random.below(self.macros.len());
                    let (name, wanted, variadic) = self.macros[number].clone();
                    text += &name;
                    let list = if wanted < 0 { 8 } else { 1 };
                    if self.random.below(10) >= list && depth > 0 {
                        let more = if variadic { self.random.below(3) as i32 } else { 0 };
                        let count = (wanted.max(0) + more).max(i32::from(self.random.below(9) == 0));
                        let arguments: Vec<_> = (0..count).map(|_| self.argument(parameters, depth - 1)).collect();
                        let leading_space = self.random.one(&["", "", " ", "\n"]);
                        let leading_space =
                            if self.in_text { leading_space } else { leading_space.trim_end_matches('\n') };
                        text += &format!("{leading_space}({})", arguments.join(self.random.one(&[",", ", ", " ,"])));
                    }
                }
                4 if !parameters.is_empty() => text += self.random.one(parameters),
                5 => text += self.random.one(&["1", "2e", ".3", "a", "b", "L", "'c'", "\"s\"", "'\\n'", "\"\\\\\""]),
                6 => text += self.random.one(&["+", "-", "<", "=", ".", "&", "|", ">", "*"]),
                7 => match self.random.below(4) {
                    0 => text += self.random.one(&["(", ")", ","]),
                    _ if depth > 0 => text += &format!("({})", self.tokens(parameters, depth - 1)),
                    _ => text += "()",
                },
                _ => text += self.random.one(&["a", "b", "3"]),
            }
        }
        text
    }

    fn argument(&mut self, parameters: &[&str], depth: usize) -> String {
        match self.random.below(6) {
            0 => String::new(),
            1 => format!("({})", self.tokens(parameters, depth)),
            _ => self.tokens(parameters, depth),
        }
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// `PREPROCESSOR_PROGRAMS` sets the number of programs, `PREPROCESSOR_SEED` the first seed.
#[test]
fn random_programs_match_cpp() {
    let (first, count) = (number("PREPROCESSOR_SEED", 0), number("PREPROCESSOR_PROGRAMS", 100));
    for compiler in compilers() {
        let mut expanded = 0;
        for seed in first..first + count {
            let text = Program::text(&mut Random(seed));
            expanded += u64::from(our_output(&text).is_ok());
            if let Some(difference) = difference(&compiler, &text) {
                panic!("seed {seed}:\n{difference}");
            }
        }
        println!("{compiler}: {expanded} of {count} programs without an error");
        assert!(expanded * 4 > count, "too few programs without errors: {expanded} of {count}");
    }
}

/// A random condition with all operators and values at the limits of their ranges.
fn condition(random: &mut Random, depth: usize) -> String {
    if depth == 0 {
        return match random.below(5) {
            0 => random.below(5).to_string(),
            1 => random.one(&["0", "0u", "1", "'\\377'", "nothing", "07", "2L"]).to_owned(),
            2 => {
                let most = "9223372036854775807";
                random.one(&[most, "0x8000000000000000", "0xffffffffffffffff", "18446744073709551615u"]).to_owned()
            }
            3 => format!("{:#x}", random.next() >> random.below(64)),
            _ => format!("{}u", random.next() >> random.below(64)),
        };
    }
    let one = |random: &mut Random| {
        let depth = random.below(depth);
        let text = condition(random, depth);
        if random.below(3) == 0 { format!("({text})") } else { text }
    };
    match random.below(8) {
        0 => format!("{}{}", random.one(&["-", "~", "!", "+", "- -"]), one(random)),
        1 => format!("({} ? {} : {})", one(random), one(random), one(random)),
        2 => format!("(({}) {} {})", one(random), random.one(&["<<", ">>"]), random.below(64)),
        _ => {
            let operator =
                random.one(&["+", "-", "*", "/", "%", "&", "|", "^", "&&", "||", "==", "!=", "<", ">", "<=", ">="]);
            let (left, mut right) = (one(random), one(random));
            if matches!(operator, "/" | "%") {
                // For an unevaluated division by zero, GCC uses the type of the left operand alone.
                right = if random.below(8) == 0 { "0".into() } else { format!("({right} | 1)") };
            }
            // Keep a sign from merging with the operator before it.
            format!("{left} {operator} {right}")
        }
    }
}

/// The value that our preprocessor gives a condition; `None` for an error.
fn evaluated(text: &str) -> Option<super::condition::Value> {
    let source = Source::new("f.c", text);
    let mut includes = NoIncludes;
    let mut preprocessor = Preprocessor::new(&source, &mut includes);
    preprocessor.push_input(FileId::FILTER, PathBuf::new(), None).ok()?;
    let directive = preprocessor.take();
    preprocessor.value(directive).ok()?
}

#[test]
fn random_conditions_match_cpp() {
    let (first, count) = (number("PREPROCESSOR_SEED", 0), number("PREPROCESSOR_CONDITIONS", 1000));
    for compiler in compilers() {
        let (mut text, mut values, mut errors) = (String::new(), 0, 0);
        for seed in first..first + count {
            let condition = condition(&mut Random(seed), 4);
            match evaluated(&format!("if {condition}")) {
                Some(value) => {
                    // The result is larger than 0 if its type is unsigned.
                    let unsigned = if value.unsigned { ">" } else { "<" };
                    text += &format!(
                        "#if ({condition}) == {}u && ({condition}) * 0 - 1 {unsigned} 0\nok\n#else\nseed{seed}\n#endif\n",
                        value.bits
                    );
                    values += 1;
                }
                None => {
                    errors += 1;
                    let refused =
                        errors > 20 || cpp_output(&compiler, "-w", &format!("#if {condition}\n#endif\n")).is_none();
                    assert!(refused, "seed {seed}: {compiler} accepts {condition}");
                }
            }
        }
        println!("{compiler}: {} conditions with a value, {errors} without", values);
        assert!(values as u64 * 2 > count, "too few programs without errors");
        let theirs = split_tokens(
            &cpp_output(&compiler, "-w", &text).unwrap_or_else(|| panic!("{compiler} rejects one of\n{text}")),
        );
        let others: Vec<_> = theirs.iter().filter(|token| *token != "ok").collect();
        assert!(others.is_empty() && theirs.len() == values, "{compiler} computes other values: {others:?}");
    }
}
