//! WGSL lexer that splits text exactly as naga's does (a test compares them), so that a text's
//! shape can be checked before naga's recursive parser sees it.

use std::ops::Range;

use portcullis_core::diagnostics::Diagnostic;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// An identifier or a keyword.
    Word,
    /// A number with its suffix.
    Number,
    /// `(`, `[` or `{`.
    Open,
    /// `)`, `]` or `}`.
    Close,
    /// The `<` that opens a template list.
    TemplateStart,
    /// The `>` that closes one.
    TemplateEnd,
    /// Everything else: operators, separators, `@`.
    Symbol,
}

/// A token: its kind and byte range in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub kind: TokenKind,
    start: u32,
    end: u32,
}

impl Token {
    /// The token's byte range in the text.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The token's text.
    pub fn text<'a>(&self, source: &'a str) -> &'a str {
        &source[self.range()]
    }
}

/// Symbols of more than one character, the longest first.
const LONG_SYMBOLS: &[&str] = &[
    "<<=", ">>=", "<=", ">=", "==", "!=", "&&", "||", "<<", ">>", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "++",
    "--", "->",
];

/// A `<` that may open a template list.
struct Candidate {
    token: usize,
    depth: usize,
}

/// Splits a text of at most `u32::MAX` bytes into tokens, without comments and white space.
///
/// Decides which `<` and `>` enclose template lists by the specification's template list discovery
/// (WGSL, section 3.9).
///
/// # Errors
/// An unterminated comment, or a character that no token starts with.
pub(super) fn tokenize(source: &str) -> Result<Vec<Token>, Diagnostic> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut depth = 0usize;
    let mut after_word = false;
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        if is_blank(first) {
            at += first.len_utf8();
            continue;
        }
        if rest.starts_with("//") {
            at += rest.find(is_line_break).unwrap_or(rest.len());
            continue;
        }
        if rest.starts_with("/*") {
            let length = block_comment(rest).ok_or_else(|| {
                Diagnostic::new("unterminated comment")
                    .at(at..at + 2, "starts here")
                    .note("comments nest: every `/*` needs its own `*/`")
            })?;
            at += length;
            continue;
        }
        let template_end = first == '>' && candidates.last().is_some_and(|c| c.depth == depth);
        let (kind, length) = match first {
            '(' | '[' | '{' => (TokenKind::Open, 1),
            ')' | ']' | '}' => (TokenKind::Close, 1),
            '0'..='9' => (TokenKind::Number, number(rest)),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => (TokenKind::Number, number(rest)),
            _ if template_end => (TokenKind::TemplateEnd, 1),
            '_' => (TokenKind::Word, word(rest)),
            _ if unicode_ident::is_xid_start(first) => (TokenKind::Word, word(rest)),
            ':' | ';' | ',' | '.' | '@' | '<' | '>' | '/' | '-' | '+' | '*' | '%' | '^' | '~' | '=' | '!' | '&'
            | '|' => (TokenKind::Symbol, LONG_SYMBOLS.iter().find(|s| rest.starts_with(**s)).map_or(1, |s| s.len())),
            '\u{feff}' if at == 0 => {
                return Err(Diagnostic::new("the text begins with a byte order mark")
                    .at(0..3, "")
                    .note("save the file as UTF-8 without a byte order mark"));
            }
            _ => {
                return Err(Diagnostic::new(format!("unexpected character U+{:04X}", first as u32))
                    .at(at..at + first.len_utf8(), ""));
            }
        };
        tokens.push(Token { kind, start: at as u32, end: (at + length) as u32 });
        let text = &rest[..length];
        at += length;
        match kind {
            TokenKind::Word => {
                after_word = true;
                continue;
            }
            TokenKind::TemplateEnd => {
                if let Some(candidate) = candidates.pop() {
                    tokens[candidate.token].kind = TokenKind::TemplateStart;
                }
            }
            TokenKind::Open if text == "{" => {
                candidates.clear();
                depth = 0;
            }
            TokenKind::Open => depth += 1,
            TokenKind::Close if text != "}" => {
                drop_candidates(&mut candidates, depth);
                depth = depth.saturating_sub(1);
            }
            TokenKind::Symbol => match text {
                "<" if after_word => candidates.push(Candidate { token: tokens.len() - 1, depth }),
                "=" | ":" | ";" => {
                    candidates.clear();
                    depth = 0;
                }
                "&&" | "||" => drop_candidates(&mut candidates, depth),
                _ => {}
            },
            _ => {}
        }
        after_word = false;
    }
    Ok(tokens)
}

/// Drops the candidates at bracket depth `depth` or deeper.
fn drop_candidates(candidates: &mut Vec<Candidate>, depth: usize) {
    while candidates.last().is_some_and(|c| c.depth >= depth) {
        candidates.pop();
    }
}

/// Byte length of the block comment at the start of `text`; `None` if it is unterminated.
fn block_comment(text: &str) -> Option<usize> {
    let mut depth = 1;
    let mut previous = '\0';
    for (at, c) in text.char_indices().skip(2) {
        match (previous, c) {
            ('*', '/') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
                previous = '\0';
            }
            ('/', '*') => {
                depth += 1;
                previous = '\0';
            }
            _ => previous = c,
        }
    }
    None
}

/// Byte length of the number at the start of `text`. Differs from naga's only in invalid text
/// (`1x`), which naga then reports.
fn number(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut previous = '\0';
    for (at, c) in text.char_indices() {
        let exponent = if hexadecimal { matches!(previous, 'p' | 'P') } else { matches!(previous, 'e' | 'E') };
        if !(c.is_ascii_alphanumeric() || c == '.' || (exponent && matches!(c, '+' | '-'))) {
            return at;
        }
        previous = c;
    }
    text.len()
}

/// Byte length of the word at the start of `text`.
fn word(text: &str) -> usize {
    text.find(|c| !unicode_ident::is_xid_continue(c)).unwrap_or(text.len())
}

/// Whether `c` has Unicode's property Pattern_White_Space.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r' | '\u{85}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}')
}

/// Whether `c` ends a line comment (WGSL, section 3.2).
fn is_line_break(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lex(source: &str) -> Vec<(TokenKind, &str)> {
        tokenize(source).unwrap().iter().map(|t| (t.kind, t.text(source))).collect()
    }

    #[test]
    fn block_comments_nest_and_line_comments_end_at_line_breaks() {
        let kinds = lex("a/* /* */ */b//c\nd /**/e /*/ */f");
        assert_eq!(kinds.iter().map(|t| t.1).collect::<String>(), "abdef");
        for open in ["/*", "a /* /* */", "/*/"] {
            assert!(tokenize(open).unwrap_err().message.contains("unterminated comment"), "{open}");
        }
    }

    #[test]
    fn lexes_the_longest_symbol() {
        let found: Vec<_> = lex("a<<=b>>=c<=d->e&&f--g !=h").into_iter().map(|t| t.1).collect();
        assert_eq!(found, ["a", "<<=", "b", ">>=", "c", "<=", "d", "->", "e", "&&", "f", "--", "g", "!=", "h"]);
    }

    #[test]
    fn numbers_keep_their_exponents_and_suffixes() {
        for text in ["0x1Fu", "1e-5f", "0x1p+3", ".5", "1.", "12li"] {
            assert_eq!(lex(text), [(TokenKind::Number, text)]);
        }
        assert_eq!(lex("0xe+1").len(), 3);
    }

    // Examples of the specification, section 3.9, with the number of their template lists.
    #[test]
    fn distinguishes_template_lists_from_comparisons() {
        for (text, starts) in [
            ("A(B<C, D>(E))", 1),
            ("array<array<u32, 4>, (1 << 2)>", 2),
            ("a < b && c > d", 0),
            ("a[b < c] > d", 0),
            ("if (a < b) { c > d; }", 0),
            ("array<u32, select(2, 3, a > b)>", 1),
            ("x<y>=z", 1),
            ("a < b ; c > d", 0),
        ] {
            let found = lex(text);
            assert_eq!(found.iter().filter(|t| t.0 == TokenKind::TemplateStart).count(), starts, "{text}");
            assert_eq!(found.iter().filter(|t| t.0 == TokenKind::TemplateEnd).count(), starts, "{text}");
        }
    }

    /// Returns the module that naga parses, written back to WGSL, or the error.
    fn naga(source: &str) -> String {
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        let module = match naga::front::wgsl::parse_str(source) {
            Ok(module) => module,
            Err(error) => return error.message().to_owned(),
        };
        match Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module) {
            Ok(info) => naga::back::wgsl::write_string(&module, &info, naga::back::wgsl::WriterFlags::empty()).unwrap(),
            Err(error) => format!("{:?}", error.into_inner()),
        }
    }

    // If both lexers agree, comments between our tokens change nothing. A token split in two, or
    // two tokens left as one, would change the module.
    #[test]
    fn lexer_agrees_with_naga() {
        for text in [
            "alias A = array<array<vec2<u32>,2>,(1<<2)>;const B=vec2<u32>(1u,0x1Fu);const_assert 1>=1&&!(2<=1)||1!=2;
             @must_use fn f(a:u32,b:ptr<function,u32>)->u32{*b+=a<<1u;*b>>=1u;return select(a,*b,a>1u);}
             fn g()->u32{var x=array<u32,2>();var i=0u;loop{i++;if i>=2u{break;}x[i]^=i;continuing{break if i==1u;}}
             let y=f(x[0]%3u,&i)&~1u|2u^x[1];for(var k=3i;k>0i;k--){i-=1u;i*=2u;i/=3u;i%=4u;i&=5u;i|=6u;i<<=1u;}
             let z=1e-3+.5+1.+0x1p-2+f32(y);return u32(z)+u32(-z)-i/2u;}",
            "fn f(){let a=1<2;let b=(a>3);}",
            "fn f(a:i32,b:i32)->bool{return a<b&&b>a;}",
            "fn f(a:i32,b:array<i32,2>)->bool{var c=b;return c[a<1]>2;}",
            "const a=1--1;",
            "const a=array<u32,2>>=1;",
            "const a=2>>=1;",
            "fn é_1(){let ñ=1;}",
            "const a=1.5.x;",
            "const a=1->2;",
        ] {
            let split: Vec<_> = tokenize(text).unwrap().iter().map(|token| token.text(text)).collect();
            assert_eq!(naga(&split.join(" /*<(*/\n")), naga(text), "{text}");
        }
        // The comparison can tell a difference.
        assert_ne!(naga("const a=1>/**/>1;"), naga("const a=2>>1;"));
    }

    #[test]
    fn invalid_characters_are_named() {
        assert!(tokenize("a \0").unwrap_err().message.contains("U+0000"));
        assert!(tokenize("\u{feff}fn").unwrap_err().message.contains("byte order mark"));
        assert!(tokenize("a $").unwrap_err().message.contains("U+0024"));
    }
}
