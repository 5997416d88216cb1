//! Formats of prints (`bpf_trace_printk`, `bpf_trace_vprintk`). The text is known at compile time,
//! so a record holds only the arguments.
//!
//! Accepts what the kernel accepts (`bpf_bprintf_prepare`, kernel/bpf/helpers.c) and renders like
//! its `vsnprintf` (lib/vsprintf.c).

use std::fmt::Write as _;

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PrintFormat {
    parts: Vec<FormatPart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FormatPart {
    Text(String),
    Argument(FormatSpec, Argument),
}

/// Flags and width of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct FormatSpec {
    zeros: bool,
    left: bool,
    plus: bool,
    space: bool,
    width: usize,
}

/// Kind of an argument.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Argument {
    /// `%d`, `%i`, with `l` 64 bits.
    Signed {
        /// Whether the argument has 64 bits.
        long: bool,
    },
    /// `%u`
    Unsigned {
        /// Whether the argument has 64 bits.
        long: bool,
    },
    /// `%x`, `%X`
    Hex {
        /// Whether the argument has 64 bits.
        long: bool,
        /// Whether digits are upper case.
        upper: bool,
    },
    /// `%c`
    Char,
    /// `%p` and the like: an address. The kernel prints a hash instead of it, or the address.
    Pointer,
    /// `%pI4`, `%pi4`: the IPv4 address at a pointer, in network byte order.
    Ipv4 {
        /// Whether each number has three digits.
        padded: bool,
    },
    /// `%pI6`, `%pi6`: the IPv6 address at a pointer, in network byte order.
    Ipv6 {
        /// Whether groups are separated by colons.
        colons: bool,
    },
    /// `%s`: text that is known at compile time.
    Text(String),
}

impl Argument {
    /// Number of words that the argument takes in a record.
    pub fn words(&self) -> u32 {
        match self {
            Argument::Signed { long } | Argument::Unsigned { long } | Argument::Hex { long, .. } => {
                1 + u32::from(*long)
            }
            Argument::Char | Argument::Ipv4 { .. } => 1,
            Argument::Pointer => 2,
            Argument::Ipv6 { .. } => 4,
            Argument::Text(_) => 0,
        }
    }
}

/// State of parsing a format.
struct FormatParser<'a> {
    rest: &'a [u8],
}

impl FormatParser<'_> {
    fn next_if(&mut self, is_it: impl Fn(u8) -> bool) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        is_it(first).then(|| {
            self.rest = rest;
            first
        })
    }

    fn accept(&mut self, byte: u8) -> bool {
        self.next_if(|it| it == byte).is_some()
    }

    /// Whether a word ends at the current position.
    fn at_end_of_word(&self) -> bool {
        self.rest.first().is_none_or(|byte| byte.is_ascii_whitespace() || byte.is_ascii_punctuation())
    }

    fn parse_spec(&mut self) -> FormatSpec {
        let mut form = FormatSpec::default();
        while let Some(flag) = self.next_if(|it| matches!(it, b'0' | b'+' | b'-' | b' ')) {
            match flag {
                b'0' => form.zeros = true,
                b'+' => form.plus = true,
                b'-' => form.left = true,
                _ => form.space = true,
            }
        }
        while let Some(digit) = self.next_if(|it| it.is_ascii_digit()) {
            form.width = (form.width * 10 + usize::from(digit - b'0')).min(MAX_WIDTH);
        }
        form
    }

    fn parse_argument(&mut self) -> Option<Argument> {
        if self.accept(b'p') {
            return self.parse_pointer();
        }
        if self.accept(b's') {
            return self.at_end_of_word().then(|| Argument::Text(String::new()));
        }
        if self.accept(b'c') {
            return Some(Argument::Char);
        }
        let long = self.accept(b'l');
        self.accept(b'l');
        Some(match self.next_if(|it| it.is_ascii_alphabetic())? {
            b'd' | b'i' => Argument::Signed { long },
            b'u' => Argument::Unsigned { long },
            b'x' => Argument::Hex { long, upper: false },
            b'X' => Argument::Hex { long, upper: true },
            _ => return None,
        })
    }

    fn parse_pointer(&mut self) -> Option<Argument> {
        if self.at_end_of_word() {
            return Some(Argument::Pointer);
        }
        if let [b'k' | b'u', b's', rest @ ..] = self.rest {
            self.rest = rest;
            return self.at_end_of_word().then(|| Argument::Text(String::new()));
        }
        if self.next_if(|it| matches!(it, b'K' | b'x' | b's' | b'S' | b'B')).is_some() {
            return Some(Argument::Pointer);
        }
        let kind = self.next_if(|it| matches!(it, b'i' | b'I'))?;
        let size = self.next_if(|it| matches!(it, b'4' | b'6'))?;
        // The rest of the word does not matter.
        while self.next_if(|it| it.is_ascii_alphanumeric()).is_some() {}
        Some(match size {
            b'4' => Argument::Ipv4 { padded: kind == b'i' },
            _ => Argument::Ipv6 { colons: kind == b'I' },
        })
    }
}

/// Maximum width of a conversion, the size of a print (`MAX_BPRINTF_BUF`).
const MAX_WIDTH: usize = 1024;

impl PrintFormat {
    /// Parses a format up to its first zero byte; `None` if the kernel would return -EINVAL for it.
    pub(crate) fn parse(format: &[u8]) -> Option<PrintFormat> {
        let end = format.iter().position(|&byte| byte == 0)?;
        let mut parser = FormatParser { rest: &format[..end] };
        let mut parts = Vec::new();
        let mut plain = String::new();
        while let Some(byte) = parser.next_if(|_| true) {
            if !byte.is_ascii_graphic() && byte != b' ' && !(9..=13).contains(&byte) {
                return None;
            }
            if byte != b'%' || parser.accept(b'%') {
                plain.push(byte.into());
                continue;
            }
            if !plain.is_empty() {
                parts.push(FormatPart::Text(std::mem::take(&mut plain)));
            }
            let form = parser.parse_spec();
            parts.push(FormatPart::Argument(form, parser.parse_argument()?));
        }
        if !plain.is_empty() {
            parts.push(FormatPart::Text(plain));
        }
        Some(PrintFormat { parts })
    }

    /// Arguments in order.
    pub fn arguments(&self) -> impl Iterator<Item = &Argument> {
        self.parts.iter().filter_map(|part| match part {
            FormatPart::Text(_) => None,
            FormatPart::Argument(_, argument) => Some(argument),
        })
    }

    /// Sets the text of a `%s` argument, by position.
    pub(crate) fn set_text(&mut self, place: usize, text: String) {
        let given = self.parts.iter_mut().filter_map(|part| match part {
            FormatPart::Text(_) => None,
            FormatPart::Argument(_, argument) => Some(argument),
        });
        if let Some(argument) = { given }.nth(place) {
            *argument = Argument::Text(text);
        }
    }

    /// Number of words that all arguments take in a record.
    pub fn words(&self) -> u32 {
        self.arguments().map(Argument::words).sum()
    }

    /// Renders a record's words as a line, without a trailing newline.
    pub fn render(&self, words: &[u32]) -> String {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or(0);
        let mut text = String::new();
        for part in &self.parts {
            match part {
                FormatPart::Text(plain) => text += plain,
                FormatPart::Argument(form, argument) => form.write(argument, &mut next, &mut text),
            }
        }
        text.truncate(text.trim_end_matches('\n').len());
        text
    }
}

impl FormatSpec {
    fn write(self, argument: &Argument, next: &mut dyn FnMut() -> u32, text: &mut String) {
        let mut number = |long: bool| {
            let low = u64::from(next());
            if long { u64::from(next()) << 32 | low } else { low }
        };
        match argument {
            Argument::Signed { long } => {
                let value = match long {
                    true => number(true) as i64,
                    false => i64::from(number(false) as u32 as i32),
                };
                let sign = match value {
                    ..0 => "-",
                    _ if self.plus => "+",
                    _ if self.space => " ",
                    _ => "",
                };
                self.write_digits(sign, &value.unsigned_abs().to_string(), text);
            }
            Argument::Unsigned { long } => self.write_digits("", &number(*long).to_string(), text),
            Argument::Hex { long, upper: false } => self.write_digits("", &format!("{:x}", number(*long)), text),
            Argument::Hex { long, upper: true } => self.write_digits("", &format!("{:X}", number(*long)), text),
            Argument::Char => self.write_padded(&char::from(number(false) as u8).to_string(), text),
            Argument::Pointer => {
                let form = if self.width == 0 { FormatSpec { zeros: true, width: 16, ..self } } else { self };
                form.write_digits("", &format!("{:x}", number(true)), text);
            }
            Argument::Ipv4 { padded } => {
                let [a, b, c, d] = (number(false) as u32).to_le_bytes();
                let _ = match padded {
                    true => write!(text, "{a:03}.{b:03}.{c:03}.{d:03}"),
                    false => write!(text, "{a}.{b}.{c}.{d}"),
                };
            }
            Argument::Ipv6 { colons } => {
                for place in 0..4 {
                    let word = (number(false) as u32).swap_bytes();
                    let (first, second) = (word >> 16, word & 0xffff);
                    let colon = if *colons { ":" } else { "" };
                    let before = if place == 0 { "" } else { colon };
                    let _ = write!(text, "{before}{first:04x}{colon}{second:04x}");
                }
            }
            Argument::Text(given) => self.write_padded(given, text),
        }
    }

    fn write_digits(self, sign: &str, digits: &str, text: &mut String) {
        let missing = self.width.saturating_sub(sign.len() + digits.len());
        match (self.left, self.zeros) {
            (false, true) => *text += &format!("{sign}{}{digits}", "0".repeat(missing)),
            _ => self.write_padded(&format!("{sign}{digits}"), text),
        }
    }

    fn write_padded(self, what: &str, text: &mut String) {
        let blanks = " ".repeat(self.width.saturating_sub(what.chars().count()));
        *text += &if self.left { format!("{what}{blanks}") } else { format!("{blanks}{what}") };
    }
}
