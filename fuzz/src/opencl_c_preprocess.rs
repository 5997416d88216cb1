//! Fuzz target: arbitrary bytes as the source files of an OpenCL C filter. Preprocessing must give
//! tokens or errors.

use std::path::Path;

use portcullis_core::diagnostics::{MAX_SOURCE_BYTES, Source};
use portcullis_opencl_c::files::NoIncludes;
use portcullis_opencl_c::preprocessor::{MAX_ERRORS, MAX_TOKENS, TranslationUnit, preprocess};
use portcullis_opencl_c::token::TokenKind;

use crate::filter::check_rejected;
use crate::mutate::Corpus;

/// Separator between the files of an input: the filter, `a.h` and `b.h`.
pub const SEPARATOR: u8 = 0x1f;

/// Seed sources.
pub const CORPUS: Corpus = Corpus {
    seeds: &[
        include_bytes!("../seeds/preprocessor.cl"),
        b"#define f(a) a*g\n#define g(a) f(a)\nf(2)(9) f(f)(1)\n",
        b"#define A B B\n#define B C C\n#define C D(A, A)\n#define D(x, y) x##y #x\nA C D(1, 2)\n",
        b"#if 1 ? 2 : 3\n1\n#elif (4 << 5) >= -6 && ~7u\n#else\n#endif\n",
    ],
    tokens: r#"
        #define␣ #undef␣ #if␣ #ifdef␣ #ifndef␣ #elif␣ #else␤ #endif␤ #include␣"a.h"␤ #include␣"b.h"␤
        #include␣<portcullis.h>␤ #include␣"../a.h"␤ #pragma␣once␤ #error␣ #line␣1␤ defined
        __VA_ARGS__ __LINE__ __FILE__ A F( (x,␣...) (x) x #x ## # ( ) , ... ␤ \␤ \ /* */ // " '
        '\377' 'ab' L' <<= -> ? : && || /␣0 - = 1u 08 0x 1e+ 0x1p-1074 1e999 18446744073709551615 é
    "#,
    pieces: &[b"\\\r\n", b"\x1f", "\u{feff}".as_bytes(), b"\x1b[0m", b"\0", b"\xff"],
};

/// Preprocesses the bytes as a filter and its files.
///
/// # Panics
/// If an error cannot be rendered, or a token's span does not hold its text.
pub fn run(data: &[u8]) {
    let mut files = data.split(|&byte| byte == SEPARATOR).map(<[u8]>::to_vec);
    let text = files.next().unwrap_or_default();
    let (a, b) = (files.next(), files.next());
    let mut includes = |path: &Path| {
        let file = match path.to_str() {
            Some("a.h") => a.clone(),
            Some("b.h") => b.clone(),
            _ => None,
        };
        file.ok_or_else(|| "no such file".to_owned())
    };
    let tokens = Source::from_bytes("fuzz", text).and_then(|source| preprocess(&source, &[], &mut includes));
    let tokens = match tokens {
        Ok(tokens) => tokens,
        Err(errors) => {
            assert!((1..=MAX_ERRORS).contains(&errors.errors.len()), "{} errors", errors.errors.len());
            for label in errors.errors.iter().flat_map(|error| &error.labels) {
                assert!(errors.source.text.get(label.range.clone()).is_some(), "{label:?} is not in the text");
            }
            return check_rejected(&errors);
        }
    };
    assert!(tokens.tokens.len() <= MAX_TOKENS + 1);
    let joined = tokens.files.joined().text;
    for (i, token) in tokens.tokens.iter().enumerate() {
        assert_eq!(token.kind == TokenKind::End, i + 1 == tokens.tokens.len());
        for place in [Some(token.span), token.expanded].into_iter().flatten() {
            let spelled = tokens.files.spelling(place);
            assert_eq!(spelled.is_empty(), token.kind == TokenKind::End && place == token.span, "{token:?}");
            assert_eq!(spelled, &joined[tokens.files.range(place)]);
        }
    }
    let text = written(&tokens);
    // Preprocessing again would expand predefined macros that the source undefined.
    let undefined = tokens.names.get("undef").is_some();
    match preprocess(&Source::new("again", text.as_str()), &[], &mut NoIncludes) {
        Ok(again) => assert!(written(&again) == format!("; {text}") || undefined, "{text}\n{}", written(&again)),
        Err(errors) => {
            assert!(
                text.len() > MAX_SOURCE_BYTES || tokens.tokens.len() > MAX_TOKENS || undefined,
                "{}",
                errors.render()
            )
        }
    }
}

/// Spells the tokens as source text.
fn written(TranslationUnit { tokens, names, .. }: &TranslationUnit) -> String {
    // Start with `;`, so that a leading `#` is not taken for a directive.
    let mut text = String::from(";");
    for token in tokens {
        text.push(' ');
        match token.kind {
            TokenKind::Identifier(name) | TokenKind::String(name) => text += names.text(name),
            TokenKind::Integer { value, unsigned, long } => {
                text += &value.to_string();
                text += if unsigned { "u" } else { "" };
                text += if long { "l" } else { "" };
            }
            TokenKind::Float { value, single } => text += &format!("{value:e}{}", if single { "f" } else { "" }),
            TokenKind::Character(value) => text += &format!("'\\x{:02x}'", value as u8),
            TokenKind::Punctuator(punctuator) => text += punctuator.text(),
            TokenKind::End => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, check_seeds, run_for};

    #[test]
    fn mutated_seeds_never_panic() {
        println!("{} texts", run_for(A_SECOND, "opencl_c_preprocess", CORPUS, 0, run));
    }

    #[test]
    fn seeds_and_some_mutations_have_no_errors() {
        // If nearly all mutations were errors, valid sources would go untested.
        check_seeds(CORPUS, run, (200, 10), |data| {
            let mut files = data.split(|&byte| byte == SEPARATOR).map(<[u8]>::to_vec);
            let source = Source::from_bytes("f.cl", files.next().unwrap_or_default())?;
            let files: Vec<_> = files.collect();
            let mut includes = |path: &Path| {
                let index = usize::from(path == Path::new("b.h"));
                files.get(index).cloned().ok_or_else(|| "no such file".to_owned())
            };
            preprocess(&source, &[], &mut includes).map(drop)
        });
    }
}
