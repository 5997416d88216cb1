//! Values of constants (C11 6.4.4).

use crate::token::TokenKind;
use portcullis_core::diagnostics::elide;

/// Why a constant is invalid, and a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiteralError {
    pub reason: String,
    pub note: &'static str,
}

fn invalid<T>(reason: impl Into<String>, note: &'static str) -> Result<T, LiteralError> {
    Err(LiteralError { reason: reason.into(), note })
}

/// An integer constant as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Integer {
    pub value: u64,
    /// Whether the base is 10; a decimal constant without suffix is never unsigned.
    pub decimal: bool,
    /// Whether the suffix contains `u`.
    pub unsigned: bool,
    /// Number of `l` in the suffix.
    pub longs: usize,
}

/// Converts a preprocessing number to a token.
///
/// # Errors
/// If the number is malformed or fits no type.
pub(super) fn number(text: &str) -> Result<TokenKind, LiteralError> {
    if is_float(text) {
        return float(text);
    }
    let Integer { value, decimal, unsigned, longs } = integer(text)?;
    if longs > 1 {
        return invalid("there is no `long long`", "`long` has 64 bits: leave one `l` out");
    }
    // C11 6.4.4.1p5: the first type of the list that can represent the value.
    let fits = |limit: u64, is_unsigned: bool, long: bool| {
        let allowed = (is_unsigned || !unsigned) && (!is_unsigned || unsigned || !decimal) && (long || longs == 0);
        (allowed && value <= limit).then_some(TokenKind::Integer { value, unsigned: is_unsigned, long })
    };
    let types = [
        (i32::MAX as u64, false, false),
        (u64::from(u32::MAX), true, false),
        (i64::MAX as u64, false, true),
        (u64::MAX, true, true),
    ];
    match types.into_iter().find_map(|(limit, is_unsigned, long)| fits(limit, is_unsigned, long)) {
        Some(token) => Ok(token),
        None => invalid("this decimal constant does not fit `long`", "add the suffix `u` to make it `ulong`"),
    }
}

/// Whether a preprocessing number is a floating constant.
pub(super) fn is_float(text: &str) -> bool {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let exponent: &[char] = if hexadecimal { &['.', 'p', 'P'] } else { &['.', 'e', 'E'] };
    text.contains(exponent)
}

/// Parses an integer constant.
///
/// # Errors
/// If it is malformed or has more than 64 bits.
pub(super) fn integer(text: &str) -> Result<Integer, LiteralError> {
    let prefix = text.get(..2).unwrap_or_default();
    let (base, digits) = match prefix {
        "0x" | "0X" => (16, &text[2..]),
        "0b" | "0B" => return invalid("C99 has no binary constants", "write it in hexadecimal: `0x...`"),
        _ if text.starts_with('0') => (8, text),
        _ => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(base.max(10))).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(end);
    if digits.is_empty() {
        return invalid("no digits after `0x`", "write a digit, 0 to 9 or a to f");
    }
    let mut value = Some(0u64);
    for digit in digits.chars() {
        let Some(digit) = digit.to_digit(base) else {
            let reason = format!("`{digit}` is not an octal digit, and a number that starts with 0 is octal");
            return invalid(reason, "leave out the leading zeros to write it in decimal");
        };
        value = value.and_then(|v| v.checked_mul(u64::from(base))?.checked_add(u64::from(digit)));
    }
    let (unsigned, longs) = match suffix {
        "" => (false, 0),
        "u" | "U" => (true, 0),
        "l" | "L" => (false, 1),
        "ll" | "LL" => (false, 2),
        "ul" | "uL" | "Ul" | "UL" | "lu" | "lU" | "Lu" | "LU" => (true, 1),
        "ull" | "uLL" | "Ull" | "ULL" | "llu" | "llU" | "LLu" | "LLU" => (true, 2),
        _ => {
            return invalid(
                format!("`{}` is not a suffix of an integer constant", elide(suffix)),
                "valid suffixes are `u`, `l` and `ul`, in either case",
            );
        }
    };
    match value {
        Some(value) => Ok(Integer { value, decimal: base == 10, unsigned, longs }),
        None => {
            invalid("it has more than 64 bits", "the largest integer is 18446744073709551615u, or 0xffffffffffffffff")
        }
    }
}

fn float(text: &str) -> Result<TokenKind, LiteralError> {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let (body, single) = match text.as_bytes().last() {
        // In hexadecimal, `f` is a digit until the exponent.
        Some(b'f' | b'F') if !hexadecimal || text.contains(['p', 'P']) => (&text[..text.len() - 1], true),
        Some(b'l' | b'L') => {
            return invalid("there is no `long double`", "floating constants have the suffix `f` or none");
        }
        Some(b'h' | b'H') => return invalid("there is no `half`", "floating constants have the suffix `f` or none"),
        _ => (text, false),
    };
    let value = match hexadecimal {
        true => hexadecimal_float(&body[2..], single)?,
        false => decimal_float(body, single)?,
    };
    if value.is_infinite() {
        let ty = if single { "float" } else { "double" };
        return invalid(format!("it is larger than any `{ty}`"), "the largest float is 3.4028235e38f");
    }
    Ok(TokenKind::Float { value, single })
}

fn decimal_float(body: &str, single: bool) -> Result<f64, LiteralError> {
    // Rust's syntax equals C's here, once names such as `inf` are excluded.
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (body, None),
    };
    check_parts(mantissa, exponent, 10)?;
    let value = if single { body.parse::<f32>().map(f64::from) } else { body.parse::<f64>() };
    value.or_else(|_| invalid("it is malformed", "floating constants look like 1.5, 1.5e-3 or 1.5f"))
}

/// Checks for digits with at most one point, and an exponent of digits.
fn check_parts(mantissa: &str, exponent: Option<&str>, base: u32) -> Result<(), LiteralError> {
    let bad = |text: &str, base| text.chars().find(|c| !c.is_digit(base)).map(|c| c.to_string());
    let whole = mantissa.replacen('.', "", 1);
    if let Some(bad) = bad(&whole, base) {
        return invalid(format!("`{bad}` is not allowed in a floating constant"), "its suffix is `f` or none");
    }
    if whole.is_empty() {
        return invalid("there are no digits", "write one before or after the point");
    }
    let Some(exponent) = exponent else { return Ok(()) };
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() {
        return invalid("its exponent has no digits", "write one after the `e` or `p`");
    }
    match bad(digits, 10) {
        Some(bad) => {
            invalid(format!("`{bad}` is not allowed in an exponent"), "the suffix of a floating constant is `f`")
        }
        None => Ok(()),
    }
}

/// Parses a hexadecimal floating constant, without its `0x`.
fn hexadecimal_float(body: &str, single: bool) -> Result<f64, LiteralError> {
    let Some((mantissa, exponent)) = body.split_once(['p', 'P']) else {
        return invalid("a hexadecimal floating constant needs an exponent", "write `p0` after it");
    };
    check_parts(mantissa, Some(exponent), 16)?;
    let (mut bits, mut sticky, mut scale, mut after_point) = (0u64, false, 0i64, false);
    for c in mantissa.chars() {
        let Some(digit) = c.to_digit(16) else {
            after_point = true;
            continue;
        };
        if bits >> 60 == 0 {
            bits = bits << 4 | u64::from(digit);
            scale -= if after_point { 4 } else { 0 };
        } else {
            sticky |= digit != 0;
            scale += if after_point { 0 } else { 4 };
        }
    }
    let (negative, digits) = match exponent.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, exponent.strip_prefix('+').unwrap_or(exponent)),
    };
    // No text is long enough for its digits to compensate a larger exponent.
    let exponent = digits.parse::<i64>().unwrap_or(i64::MAX).min(1 << 40);
    Ok(rounded(bits, sticky, scale + if negative { -exponent } else { exponent }, single))
}

/// Rounds `bits` × 2^`scale`, plus a little if `sticky`, to the nearest `f32` or `f64`, ties to
/// even. `sticky` requires that `bits` has more bits than the result.
fn rounded(bits: u64, sticky: bool, scale: i64, single: bool) -> f64 {
    let (precision, min_exponent, max_exponent) = if single { (24, -126, 127) } else { (53, -1022, 1023) };
    if bits == 0 {
        return 0.0;
    }
    let width = i64::from(64 - bits.leading_zeros());
    let exponent = scale + width - 1;
    if exponent > max_exponent {
        return f64::INFINITY;
    }
    // Subnormal numbers have fewer bits.
    let precision_bits = precision - (min_exponent - exponent).max(0);
    let drop = (width - precision_bits).max(0);
    if drop > 64 {
        return 0.0;
    }
    let (whole, rest) = (u128::from(bits) >> drop, u128::from(bits) & ((1 << drop) - 1));
    let half = if drop == 0 { u128::MAX } else { 1 << (drop - 1) };
    let up = rest > half || (rest == half && (sticky || whole & 1 == 1));
    // At most 2^53 times a power of two that may be the least subnormal: exact.
    let power = scale + drop;
    let value = (whole + u128::from(up)) as f64
        * if power >= -1022 {
            f64::from_bits(((power + 1023) as u64) << 52)
        } else {
            f64::from_bits(1 << (power + 1074).max(0))
        };
    if single && value > f64::from(f32::MAX) { f64::INFINITY } else { value }
}

/// Parses a character constant to its value as an `int`, in two's complement.
///
/// # Errors
/// If it does not contain exactly one character that fits `char`.
pub(super) fn character(text: &str) -> Result<u32, LiteralError> {
    let Some(body) = text.strip_prefix('\'').and_then(|body| body.strip_suffix('\'')) else {
        return invalid("there are no wide characters", "remove the prefix before the quote");
    };
    let mut characters = body.chars();
    let value = match characters.next() {
        None => return invalid("it is empty", "a quote itself is written '\\''"),
        Some('\\') => return escape(characters.as_str()),
        Some(c) => c,
    };
    if characters.next().is_some() {
        return invalid("it contains more than one character", "write several as a number: 0x4142 for 'AB'");
    }
    match u8::try_from(value) {
        Ok(value) if value.is_ascii() => Ok(u32::from(value)),
        _ => invalid(format!("`{value}` does not fit a `char`"), "only ASCII characters fit a `char`"),
    }
}

/// Parses an escape sequence, without its backslash.
fn escape(text: &str) -> Result<u32, LiteralError> {
    let Some(first) = text.chars().next() else {
        return invalid("nothing follows the `\\`", "a backslash itself is written '\\\\'");
    };
    let (value, rest) = match first {
        'x' => {
            let digits = text[1..].find(|c: char| !c.is_ascii_hexdigit()).map_or(text.len(), |end| end + 1);
            let significant = text[1..digits].trim_start_matches('0');
            if digits == 1 {
                return invalid("no digits after `\\x`", "write one or two, 0 to 9 or a to f");
            }
            (u32::from_str_radix(&significant[..significant.len().min(3)], 16).unwrap_or(0), &text[digits..])
        }
        '0'..='7' => {
            let digits = text.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            (u32::from_str_radix(&text[..digits], 8).unwrap_or(0), &text[digits..])
        }
        _ => {
            let value = match first {
                'a' => 7,
                'b' => 8,
                't' => b'\t',
                'n' => b'\n',
                'v' => 11,
                'f' => 12,
                'r' => b'\r',
                '\'' | '"' | '?' | '\\' => first as u8,
                _ => {
                    return invalid(
                        format!("unknown escape `\\{first}`"),
                        "valid escapes are \\n \\t \\r \\0 \\xff and so on",
                    );
                }
            };
            (u32::from(value), &text[1..])
        }
    };
    if !rest.is_empty() {
        return invalid("it contains more than one character", "write several as a number: 0x4142 for 'AB'");
    }
    match u8::try_from(value) {
        Ok(byte) => Ok(byte as i8 as i32 as u32),
        Err(_) => invalid("the escape is larger than a `char`", "the largest is '\\xff' or '\\377'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer_of(text: &str) -> (u64, bool, bool) {
        match number(text) {
            Ok(TokenKind::Integer { value, unsigned, long }) => (value, unsigned, long),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn integers_take_the_first_type_that_fits() {
        let (int, uint, long, ulong) = ((false, false), (true, false), (false, true), (true, true));
        for (text, value, (unsigned, is_long)) in [
            ("0", 0, int),
            ("017", 15, int),
            ("0X1f", 31, int),
            ("2147483647", 0x7fff_ffff, int),
            ("2147483648", 0x8000_0000, long),
            ("0x80000000", 0x8000_0000, uint),
            ("037777777777", 0xffff_ffff, uint),
            ("0x100000000", 1 << 32, long),
            ("9223372036854775807", i64::MAX as u64, long),
            ("0x8000000000000000", 1 << 63, ulong),
            ("1u", 1, uint),
            ("4294967296U", 1 << 32, ulong),
            ("1l", 1, long),
            ("1LU", 1, ulong),
            ("0xffffffffffffffffL", u64::MAX, ulong),
            ("18446744073709551615u", u64::MAX, ulong),
        ] {
            assert_eq!(integer_of(text), (value, unsigned, is_long), "{text}");
        }
    }

    #[test]
    fn malformed_numbers_are_explained() {
        for (text, reason) in [
            ("08", "not an octal digit"),
            ("0x", "no digits"),
            ("0b1", "binary"),
            ("1ll", "long long"),
            ("1lul", "not a suffix"),
            ("1_000", "not a suffix"),
            ("0xg", "no digits"),
            ("9223372036854775808", "does not fit"),
            ("18446744073709551616u", "64 bits"),
            ("0x10000000000000000", "64 bits"),
            ("1.0l", "long double"),
            ("1.5h", "half"),
            ("1.5x", "not allowed"),
            ("1..2", "not allowed"),
            ("1e", "exponent has no digits"),
            ("1e+", "exponent has no digits"),
            ("1e5.0", "not allowed in an exponent"),
            ("0x.p1", "no digits"),
            ("0x1.8", "needs an exponent"),
            ("1e400", "larger than any `double`"),
            ("1e39f", "larger than any `float`"),
            ("0x1p1024", "larger than any `double`"),
            ("0x1.ffffffp127f", "larger than any `float`"),
            ("10.0.0.1", "not allowed"),
        ] {
            let error = number(text).expect_err(text);
            assert!(error.reason.contains(reason), "{text}: {}", error.reason);
        }
    }

    fn float_of(text: &str) -> f64 {
        match number(text) {
            Ok(TokenKind::Float { value, .. }) => value,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn floats_round_to_nearest() {
        for (text, value) in [
            ("1.", 1.0),
            (".5", 0.5),
            ("1e3", 1000.0),
            ("0x1p-1", 0.5),
            ("0x.8p0", 0.5),
            ("0xAp+0", 10.0),
            ("0x1.8p1f", 3.0),
            ("0x0p999999999999999999999", 0.0),
            ("0x1p-1074", f64::from_bits(1)),
            ("0x1p-1075", 0.0),
            ("0x1.8p-1075", f64::from_bits(1)),
            ("0x1p-99999999999999999999", 0.0),
            ("0x1.fffffep127f", f64::from(f32::MAX)),
            ("0x1p-149f", f64::from(f32::from_bits(1))),
            // Ties to even, and a distant bit that breaks the tie.
            ("0x1.000001p0f", 1.0),
            ("0x1.00000100000000000000001p0f", f64::from(f32::from_bits(0x3f80_0001))),
            ("0x1.000003p0f", f64::from(f32::from_bits(0x3f80_0002))),
            ("0x1.00000000000008p0", 1.0),
            ("0x100000000000000000000p-80", 1.0),
            ("1.00000005960464477540f", f64::from(f32::from_bits(0x3f80_0001))),
        ] {
            assert_eq!(float_of(text).to_bits(), value.to_bits(), "{text}");
        }
        // Every exponent, spelled exactly and parsed back.
        for exponent in 0..0x7ffu64 {
            let bits = exponent << 52 | 0x000c_5a3f_9e17_b244;
            let mantissa = bits & ((1 << 52) - 1);
            let text = match exponent {
                0 => format!("0x0.{mantissa:013x}p-1022"),
                _ => format!("0x1.{mantissa:013x}p{}", exponent as i64 - 1023),
            };
            assert_eq!(float_of(&text).to_bits(), bits, "{text}");
        }
    }

    #[test]
    fn character_constants_are_signed() {
        for (text, value) in [
            ("'a'", 97),
            ("'\"'", 34),
            (r"'\n'", 10),
            (r"'\0'", 0),
            (r"'\377'", u32::MAX),
            (r"'\x7f'", 127),
            (r"'\x80'", 0xffff_ff80),
            (r"'\x00041'", 0x41),
            (r"'\''", 39),
            (r"'\\'", 92),
        ] {
            assert_eq!(character(text), Ok(value), "{text}");
        }
        for text in
            ["''", "'ab'", "'é'", "L'a'", r"'\q'", r"'\x'", r"'\x100'", r"'\xfffffffffffffffff'", r"'\400'", r"'\x4g'"]
        {
            assert!(character(text).is_err(), "{text}");
        }
    }
}
