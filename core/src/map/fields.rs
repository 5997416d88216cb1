//! Names for the words of a map's entries, and how they are written: `fields=srcaddr:ip,port,bytes:u64`.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::lang::Diagnostic;
use crate::lang::nearest::nearest;

use super::declare::MAX_NAME;

/// Words of an entry that mean one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// What it is called.
    pub name: String,
    /// What its words are.
    pub form: Form,
}

/// What a field's words are, and how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// A number of 32 bits.
    U32,
    /// A number of 64 bits, low word first.
    U64,
    /// An IPv4 address, as `load_be32` gives it.
    Ipv4,
    /// An IPv6 address, its first 32 bits first; one that stands for an IPv4 address (`::ffff:0:0/96`) is written as that.
    Ip,
    /// A MAC address: its first two bytes, then its last four.
    Mac,
}

impl Form {
    /// Every form, in the order in which they are told of.
    pub const ALL: [Form; 5] = [Form::U32, Form::U64, Form::Ipv4, Form::Ip, Form::Mac];

    /// Its name in a declaration.
    pub fn name(self) -> &'static str {
        match self {
            Form::U32 => "u32",
            Form::U64 => "u64",
            Form::Ipv4 => "ipv4",
            Form::Ip => "ip",
            Form::Mac => "mac",
        }
    }

    /// How many words it has.
    pub fn words(self) -> u32 {
        match self {
            Form::U32 | Form::Ipv4 => 1,
            Form::U64 | Form::Mac => 2,
            Form::Ip => 4,
        }
    }

    /// Whether it is a number, which needs no quotes.
    pub fn is_number(self) -> bool {
        matches!(self, Form::U32 | Form::U64)
    }

    /// Its words as people write them; there are as many as it has.
    pub fn text(self, words: &[u32]) -> String {
        let bits = |high_first: &[u32]| high_first.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
        match (self, words) {
            (Form::U64, [low, high]) => bits(&[*high, *low]).to_string(),
            (Form::Ipv4, [word]) => Ipv4Addr::from_bits(*word).to_string(),
            (Form::Ip, words) => Ipv6Addr::from_bits(bits(words)).to_canonical().to_string(),
            (Form::Mac, [first, last]) => {
                let bytes = (u64::from(*first) << 32 | u64::from(*last)).to_be_bytes();
                let mut text = String::new();
                for (i, byte) in bytes[2..].iter().enumerate() {
                    let colon = if i == 0 { "" } else { ":" };
                    let _ = write!(text, "{colon}{byte:02x}");
                }
                text
            }
            (_, words) => bits(words).to_string(),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a list of fields: `srcaddr:ip,port`.
pub(super) fn parse(list: &str) -> Result<Vec<Field>, Diagnostic> {
    let mut fields: Vec<Field> = Vec::new();
    for part in list.split(',') {
        let (name, form) = part.split_once(':').unwrap_or((part, Form::U32.name()));
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.len() <= MAX_NAME;
        if !is_name {
            return Err(Diagnostic::new(format!("`{}` is no name for a field", name.escape_debug())).note(format!(
                "a field's name is letters, digits and `_`, a letter first, {MAX_NAME} at the most; commas stand between \
                 fields, and no spaces"
            )));
        }
        if fields.iter().any(|field| field.name == name) {
            return Err(Diagnostic::new(format!("there are two fields with the name `{name}`")));
        }
        let Some(known) = Form::ALL.into_iter().find(|known| known.name() == form) else {
            let error = Diagnostic::new(format!("a field cannot be of the form `{}`", form.escape_debug()));
            let error = match nearest(form, Form::ALL.map(Form::name)) {
                Some(near) => error.note(format!("did you mean `{near}`?")),
                None => error,
            };
            return Err(error.note(format!("there are {}", Form::ALL.map(Form::name).join(", "))));
        };
        fields.push(Field { name: name.to_owned(), form: known });
    }
    Ok(fields)
}

/// Refuses fields that are not the words of a key and then those of a value.
pub(super) fn check(fields: &[Field], key: u32, value: u32) -> Result<(), Diagnostic> {
    let mut ends = fields.iter().scan(0, |end, field| {
        *end += field.form.words();
        Some(*end)
    });
    let words: u32 = fields.iter().map(|field| field.form.words()).sum();
    if words == key + value && ends.any(|end| end == key) {
        return Ok(());
    }
    let forms = Form::ALL.map(|form| format!("`{form}` {}", form.words())).join(", ");
    let message = format!("`fields=` is not the words of a key ({key}) and then of a value ({value})");
    Err(Diagnostic::new(message).note(format!("it has {words}; words of a field: {forms}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_people_do() {
        for (form, words, text) in [
            (Form::U32, &[u32::MAX][..], "4294967295"),
            (Form::U64, &[1, 2], "8589934593"),
            (Form::U64, &[u32::MAX, u32::MAX], "18446744073709551615"),
            (Form::Ipv4, &[0x0a00_0013], "10.0.0.19"),
            (Form::Ip, &[0, 0, 0xffff, 0x0a00_0013], "10.0.0.19"),
            (Form::Ip, &[0x2001_0db8, 0, 0, 7], "2001:db8::7"),
            (Form::Ip, &[0; 4], "::"),
            (Form::Mac, &[0x021a, 0x2b3c_4d5e], "02:1a:2b:3c:4d:5e"),
        ] {
            assert_eq!(form.text(words), text);
            assert_eq!(form.words() as usize, words.len());
        }
    }
}
