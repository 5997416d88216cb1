//! Parses map declarations in a filter's source: `//! map flows: hash key=4 value=6
//! entries=1048576`.
//!
//! They are comments in WGSL and in C, so that editors, linters and other compilers accept the
//! source.

mod comments;
mod fields;

use std::ops::{Range, RangeInclusive};

use super::{FILTER_FUNCTION, prelude};
use crate::diagnostics::Diagnostic;
use crate::map::declaration::{Declaration, MAX_ENTRIES, MAX_MAPS, MAX_NAME_BYTES, MapKind};
use crate::map::fields::Field;
use crate::map::layout::{Layout, MAX_WORDS, TrieLayout};
use crate::spelling::nearest;

pub use comments::{CommentSyntax, map_directives};

/// Parses the map declarations in a source, in order.
///
/// # Errors
/// All errors in declarations.
pub fn declarations(text: &str, comments: CommentSyntax) -> Result<Vec<Declaration>, Vec<Diagnostic>> {
    let (mut found, mut errors): (Vec<Declaration>, Vec<Diagnostic>) = (Vec::new(), Vec::new());
    for source_range in map_directives(text, comments) {
        match DeclarationParser::new(text, source_range).declaration() {
            Err(error) => errors.push(error),
            Ok(map) => match found.iter().find(|other| other.name == map.name) {
                Some(other) => errors.push(
                    Diagnostic::new(format!("there are two maps with the name `{}`", map.name))
                        .at(map.source_range, "the second")
                        .at(other.source_range.clone(), "the first"),
                ),
                None if found.len() == MAX_MAPS => errors.push(
                    Diagnostic::new(format!("a filter may declare at most {MAX_MAPS} maps"))
                        .at(map.source_range, "one too many"),
                ),
                None => found.push(map),
            },
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// A declaration of a map of this kind, for tools that list what a map adds to the prelude.
pub fn example_declaration(kind: MapKind, number: u32) -> String {
    let size = |name: &str, range: Option<RangeInclusive<u32>>| range.map(|_| format!(" {name}=4")).unwrap_or_default();
    let (key, value) = (size("key", kind.keys()), size("value", kind.values()));
    format!("//! map example{number}: {kind}{key}{value} entries=1\n")
}

const DECLARATION_SYNTAX: &str =
    "a map is declared as in `//! map flows: hash key=4 value=6 entries=1048576`, sizes in words of 32 bits";

/// Parser of one declaration.
struct DeclarationParser<'a> {
    text: &'a str,
    source_range: Range<usize>,
    /// Start of the unparsed rest.
    at: usize,
}

impl<'a> DeclarationParser<'a> {
    fn new(text: &'a str, source_range: Range<usize>) -> DeclarationParser<'a> {
        DeclarationParser { text, at: source_range.start, source_range }
    }

    /// The next token, if any; a colon is a token of its own.
    fn word(&mut self) -> Option<Range<usize>> {
        self.word_up_to(|c| c.is_whitespace() || c == ':')
    }

    /// The next attribute, which may contain colons.
    fn attribute(&mut self) -> Option<Range<usize>> {
        self.word_up_to(char::is_whitespace)
    }

    fn word_up_to(&mut self, is_end: fn(char) -> bool) -> Option<Range<usize>> {
        let rest = &self.text[self.at..self.source_range.end];
        let start = self.at + rest.find(|c: char| !c.is_whitespace())?;
        let rest = &self.text[start..self.source_range.end];
        let length = match rest.find(is_end) {
            Some(0) => 1,
            Some(length) => length,
            None => rest.len(),
        };
        self.at = start + length;
        Some(start..self.at)
    }

    /// An error at `word`, or at the whole line if it is `None`.
    fn expected(&self, word: Option<Range<usize>>, what: &str) -> Diagnostic {
        let source_range = word.unwrap_or_else(|| self.source_range.clone());
        Diagnostic::new(format!("a map's {what} is missing"))
            .at(source_range, format!("{what} expected"))
            .note(DECLARATION_SYNTAX)
    }

    fn declaration(mut self) -> Result<Declaration, Diagnostic> {
        let text = self.text;
        // `//!` and `map`, with or without space in between.
        while let Some(word) = self.word() {
            if text[word].ends_with("map") {
                break;
            }
        }
        let name = self.word().filter(|word| &text[word.clone()] != ":");
        let name = name.ok_or_else(|| self.expected(None, "name"))?;
        check_name(text, name.clone())?;
        match self.word() {
            Some(colon) if &text[colon.clone()] == ":" => {}
            other => return Err(self.expected(other, "`:` behind the name")),
        }
        let word = self.word().ok_or_else(|| self.expected(None, "kind"))?;
        let kind = parse_kind(&text[word.clone()]).map_err(|error| error.at(word, ""))?;
        let mut attributes = Attributes::default();
        let mut fields_at = None;
        while let Some(word) = self.attribute() {
            if text[word.clone()].starts_with("fields=") {
                fields_at = Some(word.clone());
            }
            attributes.parse_attribute(kind, &text[word.clone()]).map_err(|error| error.at(word, ""))?;
        }
        let missing = |size: &str| {
            Diagnostic::new(format!("the map `{}` has no `{size}=`", &text[name.clone()]))
                .at(self.source_range.clone(), "")
                .note(DECLARATION_SYNTAX)
        };
        let key = attributes.key.or(kind.keys().is_none().then_some(1)).ok_or_else(|| missing("key"))?;
        let value = attributes.value.or(kind.values().is_none().then_some(2)).ok_or_else(|| missing("value"))?;
        let entries = attributes.entries.ok_or_else(|| missing("entries"))?;
        let fields = attributes.fields.unwrap_or_default();
        if let Some(at) = fields_at {
            fields::check(&fields, kind, key, value).map_err(|error| error.at(at, ""))?;
        }
        let name = text[name].to_owned();
        let map = Declaration {
            fields,
            source_range: self.source_range,
            ..Declaration::new(name, kind, key, value, entries)
        };
        let words = if kind == MapKind::Lpm { TrieLayout::of(&map).end } else { Layout::of(&map).words() as u64 };
        if words <= MAX_WORDS {
            return Ok(map);
        }
        let message = format!("the map `{}` would take {words} words of memory at worst", map.name);
        let note = format!("at most {MAX_WORDS} are possible: declare fewer entries, or shorter keys and values");
        Err(Diagnostic::new(message).at(map.source_range, "").note(note))
    }
}

/// Rejects names that cannot prefix function names.
fn check_name(text: &str, source_range: Range<usize>) -> Result<(), Diagnostic> {
    let name = &text[source_range.clone()];
    let wrong = |message: String, note: String| Err(Diagnostic::new(message).at(source_range.clone(), "").note(note));
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !letters || name.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
        let note = "a map's name is letters, digits and `_`, a letter first".into();
        return wrong(format!("`{}` is not a valid map name", name.escape_debug()), note);
    }
    if name.len() > MAX_NAME_BYTES {
        return wrong(
            format!("the map's name has {} letters", name.len()),
            format!("at most {MAX_NAME_BYTES} are allowed"),
        );
    }
    if let Some(known) = reserved_name_conflict(name) {
        let note = format!("names of the prelude begin with it (`{known}`): choose another");
        return wrong(format!("a map cannot be called `{name}`"), note);
    }
    Ok(())
}

/// A name of the prelude that begins like the names of this map's functions would.
pub fn reserved_name_conflict(name: &str) -> Option<&'static str> {
    let begins = |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    let all = prelude::FUNCTIONS.iter().map(|(known, _)| *known).chain([FILTER_FUNCTION, "map", "pc", "XDP"]);
    all.into_iter().find(|known| begins(known))
}

fn parse_kind(name: &str) -> Result<MapKind, Diagnostic> {
    if let Some(kind) = MapKind::ALL.into_iter().find(|kind| kind.name() == name) {
        return Ok(kind);
    }
    let error = Diagnostic::new(format!("there is no map kind `{}`", name.escape_debug()));
    let error = match nearest(name, MapKind::ALL.map(MapKind::name)) {
        Some(near) => error.note(format!("did you mean `{near}`?")),
        None => error,
    };
    Err(error.note(format!("the kinds are {}", MapKind::ALL.map(MapKind::name).join(", "))))
}

/// Attributes of a declaration parsed so far.
#[derive(Debug, Default)]
struct Attributes {
    key: Option<u32>,
    value: Option<u32>,
    entries: Option<u32>,
    fields: Option<Vec<Field>>,
}

impl Attributes {
    /// Parses an attribute: `key=4`.
    fn parse_attribute(&mut self, kind: MapKind, word: &str) -> Result<(), Diagnostic> {
        let (name, number) = word.split_once('=').unwrap_or((word, ""));
        let (slot, range) = match name {
            "fields" => {
                return match self.fields.replace(fields::parse(number, kind)?) {
                    None => Ok(()),
                    Some(_) => Err(Diagnostic::new("`fields=` is given twice")),
                };
            }
            "key" => (&mut self.key, kind.keys()),
            "value" => (&mut self.value, kind.values()),
            "entries" => (&mut self.entries, Some(1..=MAX_ENTRIES)),
            _ => {
                let error = Diagnostic::new(format!("a map has no attribute `{}`", name.escape_debug()));
                let error = match nearest(name, ["key", "value", "entries", "fields"]) {
                    Some(near) => error.note(format!("did you mean `{near}=`?")),
                    None => error,
                };
                return Err(error.note(DECLARATION_SYNTAX));
            }
        };
        let Some(range) = range else {
            let what = if kind == MapKind::Counter { "index, and its values are 64-bit sums" } else { "index" };
            return Err(Diagnostic::new(format!("a map of kind `{kind}` takes no `{name}=`"))
                .note(format!("its key is an {what}")));
        };
        let sizes = match kind {
            // IPv4 and IPv6 addresses.
            MapKind::Lpm if name == "key" => "1 word, for IPv4, or 4, for IPv6".to_owned(),
            _ => format!("{} to {}", range.start(), range.end()),
        };
        let fits = |n: &u32| range.contains(n) && (kind != MapKind::Lpm || name != "key" || matches!(n, 1 | 4));
        let Some(number) = number.parse().ok().filter(fits) else {
            let shown = number.escape_debug();
            return Err(Diagnostic::new(format!("`{name}={shown}` is not a valid size for a map of kind `{kind}`"))
                .note(format!("`{name}=` is {sizes}")));
        };
        if slot.replace(number).is_some() {
            return Err(Diagnostic::new(format!("`{name}=` is given twice")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Declaration {
        let mut maps = declarations(text, CommentSyntax::Wgsl).unwrap();
        assert_eq!(maps.len(), 1, "{text}");
        maps.remove(0)
    }

    /// The message of the only error, and the source at its first label.
    fn error(text: &str) -> (String, &str) {
        let errors = declarations(text, CommentSyntax::Wgsl).unwrap_err();
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        let notes = error.notes.join("; ");
        (format!("{} ({notes})", error.message), &text[error.labels[0].range.clone()])
    }

    #[test]
    fn maps_beyond_the_word_limit_are_rejected() {
        for (line, fits) in [
            ("//! map m: lru_hash key=1 value=64 entries=16777216", false),
            ("//! map m: hash key=16 value=64 entries=16777216", false),
            ("//! map m: hash key=4 value=6 entries=16777216", true),
            ("//! map m: array value=64 entries=16777216", true),
        ] {
            let declared = declarations(line, CommentSyntax::Wgsl);
            assert_eq!(declared.is_ok(), fits, "{line}");
            let said = declared.err().map_or(String::new(), |errors| errors[0].message.clone());
            assert!(fits || said.contains("words of memory at worst"), "{said}");
        }
    }

    #[test]
    fn every_kind_can_be_declared() {
        let text = "fn f() {}\n  //! map flows: hash key=4 value=6 entries=1048576 \r\n";
        let flows = one(text);
        assert_eq!(&text[flows.source_range.clone()], "//! map flows: hash key=4 value=6 entries=1048576");
        let Declaration { name, kind, key, value, entries, .. } = flows;
        assert_eq!((name.as_str(), kind, key, value, entries), ("flows", MapKind::Hash, 4, 6, 1 << 20));
        for (text, kind, key, value) in [
            ("//! map a : array entries=5 value=3", MapKind::Array, 1, 3),
            ("//!map a:lru_hash value=0 key=16 entries=5", MapKind::LruHash, 16, 0),
            ("//! map a: lpm key=4 value=1 entries=5", MapKind::Lpm, 4, 1),
            ("//!\tmap a:counter entries=5", MapKind::Counter, 1, 2),
        ] {
            let map = one(text);
            assert_eq!((map.kind, map.key, map.value, map.entries), (kind, key, value, 5), "{text}");
        }
    }

    #[test]
    fn fields_name_the_words_of_an_entry() {
        let map = one("//! map a: hash fields=from:ip,port,mac:mac,bytes:u64 key=5 value=4 entries=9");
        let fields: Vec<_> = map.fields.iter().map(|field| (field.name.as_str(), field.ty.name())).collect();
        assert_eq!(fields, [("from", "ip"), ("port", "u32"), ("mac", "mac"), ("bytes", "u64")]);
        for text in
            ["//! map a: counter entries=1 fields=group,drops:u64", "//! map a: counter entries=1 fields=group,drops"]
        {
            assert_eq!(one(text).fields[1].ty.name(), "u64");
        }
        for key in ["fields=network,port,mac:mac key=1", "key=4 fields=network:prefix,port,mac:mac"] {
            let map = one(&format!("//! map a: lpm {key} value=3 entries=9"));
            let fields: Vec<_> = map.fields.iter().map(|field| (field.name.as_str(), field.ty.name())).collect();
            assert_eq!(fields, [("network", "prefix"), ("port", "u32"), ("mac", "mac")]);
        }
        assert_eq!(one("//! map a: hash key=1 value=0 entries=1 fields=a:ipv4").fields.len(), 1);
    }

    #[test]
    fn only_comments_on_their_own_line_declare_maps() {
        let map = "//! map a: counter entries=1";
        for text in [
            format!("// {map}"),
            format!("let x = 1; {map}"),
            format!("/*\n{map}\n*/"),
            format!("/* /* */\n{map}\n*/"),
            "//! mapped: counter entries=1\n//! a map of things\n//!\n///! map a: x".into(),
        ] {
            assert_eq!(declarations(&text, CommentSyntax::Wgsl).unwrap(), [], "{text}");
        }
        // C's block comments do not nest, and a backslash continues a line comment.
        let c = |text: &str| declarations(text, CommentSyntax::C).unwrap().len();
        assert_eq!(c(&format!("/* /* */\n{map}\n")), 1);
        assert_eq!(c(&format!("// over \\\n{map}\n")), 0);
        assert_eq!(c(&format!("// over \\\r\n{map}\n{map}")), 1);
        assert_eq!(c(&format!("char c = '\"'; char *s = \"/*\\\"\";\n{map}\n")), 1);
        assert_eq!(c(&format!("/* no end\n{map}")), 0);
    }

    #[test]
    fn errors_are_reported_at_their_location() {
        for (text, message, source_range) in [
            ("//! map", "a map's name is missing", "//! map"),
            ("//! map : hash", "a map's name is missing", "//! map : hash"),
            ("//! map a hash key=1", "a map's `:` behind the name is missing", "hash"),
            ("//! map 2a: hash", "`2a` is not a valid map name (a map's name is letters", "2a"),
            (
                "//! map load: hash",
                "a map cannot be called `load` (names of the prelude begin with it (`load_u8`)",
                "load",
            ),
            ("//! map a:", "a map's kind is missing", "//! map a:"),
            (
                "//! map a: hahs key=1",
                "there is no map kind `hahs` (did you mean `hash`?; the kinds are array, h",
                "hahs",
            ),
            ("//! map a: hash key=1 value=1", "the map `a` has no `entries=`", "//! map a: hash key=1 value=1"),
            ("//! map a: hash value=1 entries=1", "has no `key=`", "//! map a: hash value=1 entries=1"),
            ("//! map a: hash kye=1", "a map has no attribute `kye` (did you mean `key=`?", "kye=1"),
            (
                "//! map a: hash key=17",
                "`key=17` is not a valid size for a map of kind `hash` (`key=` is 1 to 16)",
                "key=17",
            ),
            ("//! map a: hash key=x", "`key=x` is not a valid size", "key=x"),
            ("//! map a: hash key", "`key=` is not a valid size", "key"),
            (
                "//! map a: lpm key=4 value=1 entries=16777216",
                "the map `a` would take 2592079888 words of memory at worst (at most 2147483648 are possible: declare fewer",
                "//! map a: lpm key=4 value=1 entries=16777216",
            ),
            ("//! map a: lpm key=2", "(`key=` is 1 word, for IPv4, or 4, for IPv6)", "key=2"),
            ("//! map a: array key=1", "a map of kind `array` takes no `key=` (its key is an index)", "key=1"),
            ("//! map a: counter value=1", "takes no `value=`", "value=1"),
            ("//! map a: array value=1 entries=0", "`entries=` is 1 to 16777216", "entries=0"),
            ("//! map a: array value=1 value=1", "`value=` is given twice", "value=1"),
            (
                "//! map a: lpm key=1 value=1 entries=1 fields=a:ipv4,b",
                "the field `a` cannot have the type `ipv4` (the key of an `lpm` has the type `prefix`, which may be",
                "fields=a:ipv4,b",
            ),
            (
                "//! map a: lpm key=1 value=1 entries=1 fields=a,b:prefix",
                "the field `b` cannot have the type `prefix` (only the whole key of an `lpm` is a prefix)",
                "fields=a,b:prefix",
            ),
            (
                "//! map a: hash key=2 value=0 entries=1 fields=a:prefix",
                "the field `a` cannot have the type `prefix`",
                "fields=a:prefix",
            ),
            (
                "//! map a: lpm key=4 value=1 entries=1 fields=a",
                "`fields=` does not cover the words of a key (4) and of a value (1) (it covers 4;",
                "fields=a",
            ),
            (
                "//! map a: counter entries=1 fields=a,b:u32,c:u32",
                "the field `b` cannot have the type `u32` (the sum of a `counter` has the type `u64`",
                "fields=a,b:u32,c:u32",
            ),
            ("//! map a: array fields=a fields=a", "`fields=` is given twice", "fields=a"),
            ("//! map a: array fields=a,", "`` is not a valid field name (a field's name is letters", "fields=a,"),
            ("//! map a: array fields=2a", "`2a` is not a valid field name", "fields=2a"),
            ("//! map a: array fields=a:ip,a", "there are two fields with the name `a`", "fields=a:ip,a"),
            (
                "//! map a: array fields=a:ipv5",
                "there is no field type `ipv5` (did you mean `ipv4`?; the types are u32, u64",
                "fields=a:ipv5",
            ),
            (
                "//! map a: hash key=3 value=1 entries=1 fields=a,b:ipv4",
                "`fields=` does not cover the words of a key (3) and of a value (1) (it covers 2; words per type: `u32` 1",
                "fields=a,b:ipv4",
            ),
            (
                "//! map a: hash key=3 value=1 entries=1 fields=a:ip",
                "does not cover the words of a key (3)",
                "fields=a:ip",
            ),
            (
                "//! map a: array value=1 entries=1 fields=a",
                "does not cover the words of a key (1) and of a value (1) (it covers 1;",
                "fields=a",
            ),
        ] {
            let (said, at) = error(text);
            assert!(said.contains(message), "{text}: {said}");
            assert_eq!(at, source_range, "{text}");
        }
        let two = "//! map a: counter entries=1\n//! map a: counter entries=2";
        assert_eq!(error(two), ("there are two maps with the name `a` ()".into(), "//! map a: counter entries=2"));
        let many: String = (0..=MAX_MAPS).map(|i| format!("//! map m{i}: counter entries=1\n")).collect();
        assert_eq!(error(&many).1, format!("//! map m{MAX_MAPS}: counter entries=1"));
        let long = format!("//! map {}: hash", "n".repeat(MAX_NAME_BYTES + 1));
        assert!(error(&long).0.contains("at most 48 are allowed"));
    }
}
