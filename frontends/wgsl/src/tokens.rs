//! WGSL's tokens, as naga's lexer cuts them (a test holds the two together): what is needed to know
//! a text's shape before a recursive parser sees it.

use std::ops::Range;

use portcullis_core::diagnostics::Diagnostic;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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

/// A token: what it is, and its bytes in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub kind: Kind,
    start: u32,
    end: u32,
}

impl Token {
    /// The bytes of the text.
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

/// A `<` that may turn out to open a template list.
struct Candidate {
    token: usize,
    depth: usize,
}

/// All tokens of a text of at most `u32::MAX` bytes, comments and white space left out.
///
/// Which `<` and `>` enclose template lists is decided by the specification's template list
/// discovery (WGSL, section 3.9).
///
/// # Errors
/// A comment without an end, or a character that no token begins with.
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, Diagnostic> {
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
                Diagnostic::new("this comment has no end")
                    .at(at..at + 2, "begins here")
                    .note("comments nest: every `/*` needs a `*/` of its own")
            })?;
            at += length;
            continue;
        }
        let template_end = first == '>' && candidates.last().is_some_and(|c| c.depth == depth);
        let (kind, length) = match first {
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            '0'..='9' => (Kind::Number, number(rest)),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => (Kind::Number, number(rest)),
            _ if template_end => (Kind::TemplateEnd, 1),
            '_' => (Kind::Word, word(rest)),
            _ if unicode_ident::is_xid_start(first) => (Kind::Word, word(rest)),
            ':' | ';' | ',' | '.' | '@' | '<' | '>' | '/' | '-' | '+' | '*' | '%' | '^' | '~' | '=' | '!' | '&'
            | '|' => (Kind::Symbol, LONG_SYMBOLS.iter().find(|s| rest.starts_with(**s)).map_or(1, |s| s.len())),
            '\u{feff}' if at == 0 => {
                return Err(Diagnostic::new("the text begins with a byte order mark")
                    .at(0..3, "")
                    .note("WGSL is UTF-8 without one: save the file so"));
            }
            _ => {
                return Err(Diagnostic::new(format!("the character U+{:04X} has no meaning here", first as u32))
                    .at(at..at + first.len_utf8(), ""));
            }
        };
        tokens.push(Token { kind, start: at as u32, end: (at + length) as u32 });
        let text = &rest[..length];
        at += length;
        match kind {
            Kind::Word => {
                after_word = true;
                continue;
            }
            Kind::TemplateEnd => {
                if let Some(candidate) = candidates.pop() {
                    tokens[candidate.token].kind = Kind::TemplateStart;
                }
            }
            Kind::Open if text == "{" => {
                candidates.clear();
                depth = 0;
            }
            Kind::Open => depth += 1,
            Kind::Close if text != "}" => {
                drop_from(&mut candidates, depth);
                depth = depth.saturating_sub(1);
            }
            Kind::Symbol => match text {
                "<" if after_word => candidates.push(Candidate { token: tokens.len() - 1, depth }),
                "=" | ":" | ";" => {
                    candidates.clear();
                    depth = 0;
                }
                "&&" | "||" => drop_from(&mut candidates, depth),
                _ => {}
            },
            _ => {}
        }
        after_word = false;
    }
    Ok(tokens)
}

/// Forgets the candidates of bracket depth `depth` and deeper.
fn drop_from(candidates: &mut Vec<Candidate>, depth: usize) {
    while candidates.last().is_some_and(|c| c.depth >= depth) {
        candidates.pop();
    }
}

/// The length of the comment that `text` begins with, `None` when it has no end.
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

/// The length of the number that `text` begins with. Longer than naga would have it only where the
/// text is wrong anyway (`1x`), which naga then says.
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

/// The length of the word that `text` begins with.
fn word(text: &str) -> usize {
    text.find(|c| !unicode_ident::is_xid_continue(c)).unwrap_or(text.len())
}

/// Unicode's Pattern_White_Space.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r' | '\u{85}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}')
}

/// What ends a line comment (WGSL, section 3.2).
fn is_line_break(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(Kind, &str)> {
        tokens(source).unwrap().iter().map(|t| (t.kind, t.text(source))).collect()
    }

    #[test]
    fn comments_nest_and_lines_end() {
        let kinds = texts("a/* /* */ */b//c\nd /**/e /*/ */f");
        assert_eq!(kinds.iter().map(|t| t.1).collect::<String>(), "abdef");
        for open in ["/*", "a /* /* */", "/*/"] {
            assert!(tokens(open).unwrap_err().message.contains("no end"), "{open}");
        }
    }

    #[test]
    fn symbols_are_the_longest_there_are() {
        let found: Vec<_> = texts("a<<=b>>=c<=d->e&&f--g !=h").into_iter().map(|t| t.1).collect();
        assert_eq!(found, ["a", "<<=", "b", ">>=", "c", "<=", "d", "->", "e", "&&", "f", "--", "g", "!=", "h"]);
    }

    #[test]
    fn numbers_keep_their_exponents_and_suffixes() {
        for text in ["0x1Fu", "1e-5f", "0x1p+3", ".5", "1.", "12li"] {
            assert_eq!(texts(text), [(Kind::Number, text)]);
        }
        assert_eq!(texts("0xe+1").len(), 3);
    }

    // The examples of the specification's section 3.9 and what their lists are.
    #[test]
    fn template_lists_are_told_from_comparisons() {
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
            let found = texts(text);
            assert_eq!(found.iter().filter(|t| t.0 == Kind::TemplateStart).count(), starts, "{text}");
            assert_eq!(found.iter().filter(|t| t.0 == Kind::TemplateEnd).count(), starts, "{text}");
        }
    }

    /// What naga makes of a text: the module as text again, or its error.
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

    // If tokens are cut here as naga cuts them, comments between them change nothing. A token cut
    // in two or two left as one would.
    #[test]
    fn tokens_are_nagas() {
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
            let apart: Vec<_> = tokens(text).unwrap().iter().map(|token| token.text(text)).collect();
            assert_eq!(naga(&apart.join(" /*<(*/\n")), naga(text), "{text}");
        }
        // The test can fail.
        assert_ne!(naga("const a=1>/**/>1;"), naga("const a=2>>1;"));
    }

    #[test]
    fn what_begins_no_token_is_named() {
        assert!(tokens("a \0").unwrap_err().message.contains("U+0000"));
        assert!(tokens("\u{feff}fn").unwrap_err().message.contains("byte order mark"));
        assert!(tokens("a $").unwrap_err().message.contains("U+0024"));
    }
}
