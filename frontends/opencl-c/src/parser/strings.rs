//! String literals (C11 6.4.5).

use super::{ParseResult, Parser};
use crate::token::TokenKind;

impl Parser<'_> {
    /// Parses adjacent string literals and returns their bytes, without a terminating zero.
    pub(super) fn string(&mut self) -> ParseResult<Vec<u8>> {
        let mut bytes = Vec::new();
        while let TokenKind::String(spelling) = self.token().kind {
            let names = self.names;
            if let Err(reason) = unescape(names.text(spelling), &mut bytes) {
                return self.fail(reason, "escapes are \\n \\t \\0 \\x41 and those of C11 6.4.4.4");
            }
            self.advance();
        }
        Ok(bytes)
    }
}

fn unescape(spelling: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let inner = spelling.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let mut rest = inner.ok_or("a string with a prefix")?;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let letter = after.chars().next().ok_or("a `\\` at the end of a string")?;
        rest = &after[letter.len_utf8()..];
        out.push(match letter {
            'n' => b'\n',
            't' => b'\t',
            'r' => b'\r',
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            '\\' | '\'' | '"' | '?' => letter as u8,
            '0'..='7' => {
                let digits = after.bytes().take(3).take_while(|b| matches!(b, b'0'..=b'7')).count();
                rest = &after[digits..];
                u8::from_str_radix(&after[..digits], 8).map_err(|_| "an escape that does not fit a byte")?
            }
            'x' => {
                let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
                let value = u8::from_str_radix(&rest[..digits], 16);
                rest = &rest[digits..];
                value.map_err(|_| "an escape that does not fit a byte")?
            }
            other => return Err(format!("`\\{other}` is not an escape")),
        });
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unescapes_c_strings() {
        let bytes = |text: &str| {
            let mut out = Vec::new();
            unescape(text, &mut out).map(|()| out)
        };
        assert_eq!(bytes(r#""a\n\x41\101\0""#), Ok(b"a\nAA\0".to_vec()));
        assert_eq!(bytes("\"é\""), Ok("é".as_bytes().to_vec()));
        for bad in [r#""\q""#, r#""\x""#, r#""\x100""#, r#""\777""#, "\"", "L\"a\""] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
