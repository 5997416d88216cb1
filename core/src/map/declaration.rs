//! Lines that declare maps: `//! map flows: hash key=4 value=6 entries=1048576`.
//!
//! They are comments in both languages, so that editors, linters and other compilers take the text as it is. Sizes are
//! in words of 32 bits.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::annotations::Annotations;
use super::fields::{self, Field};
use super::layout::{Layout, MAX_WORDS};
use super::lpm::TrieLayout;
use super::typed::TypeInfo;
use crate::diagnostics::Diagnostic;
use crate::program::{FILTER_FUNCTION, prelude};
use crate::spelling::nearest;

/// Maps that a filter may declare: as many as Linux' verifier takes of a program (`MAX_USED_MAPS`).
pub const MAX_MAPS: usize = 64;

/// Letters of a map's name.
pub const MAX_NAME_BYTES: usize = 48;

/// Entries of a map.
pub const MAX_ENTRIES: u32 = 16 << 20;

/// Words of a key and of a value.
pub const MAX_KEY_WORDS: u32 = 16;
/// See [`MAX_KEY_WORDS`].
pub const MAX_VALUE_WORDS: u32 = 64;

/// What kind of map it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapKind {
    /// Values by number, from 0 on. All of them are always there.
    Array,
    /// Values by key.
    Hash,
    /// The same; where it is full, what was not used for longest goes.
    LruHash,
    /// Values by prefix of an IPv4 or IPv6 address, of which the longest that fits is found.
    Lpm,
    /// Sums of 64 bits by number, from 0 on.
    Counter,
}

impl MapKind {
    /// Every kind, in the order in which they are told of.
    pub const ALL: [MapKind; 5] = [MapKind::Array, MapKind::Hash, MapKind::LruHash, MapKind::Lpm, MapKind::Counter];

    /// Its name in a declaration.
    pub fn name(self) -> &'static str {
        match self {
            MapKind::Array => "array",
            MapKind::Hash => "hash",
            MapKind::LruHash => "lru_hash",
            MapKind::Lpm => "lpm",
            MapKind::Counter => "counter",
        }
    }

    /// What `key=` may be; `None` where there is none to say.
    fn keys(self) -> Option<RangeInclusive<u32>> {
        match self {
            MapKind::Hash | MapKind::LruHash | MapKind::Lpm => Some(1..=MAX_KEY_WORDS),
            MapKind::Array | MapKind::Counter => None,
        }
    }

    /// What `value=` may be.
    fn values(self) -> Option<RangeInclusive<u32>> {
        match self {
            MapKind::Hash | MapKind::LruHash => Some(0..=MAX_VALUE_WORDS),
            MapKind::Array | MapKind::Lpm => Some(1..=MAX_VALUE_WORDS),
            MapKind::Counter => None,
        }
    }
}

impl fmt::Display for MapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A map as a filter declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Its name, which begins those of its functions.
    pub name: String,
    /// What kind it is.
    pub kind: MapKind,
    /// Words of a key: 1 where it is a number.
    pub key: u32,
    /// Words of a value: 2 of a counter.
    pub value: u32,
    /// How many entries it has room for at least.
    pub entries: u32,
    /// What the words of an entry are called, key before value, and how they are written; nothing where that is not said.
    pub fields: Vec<Field>,
    /// Whether the filter writes to none of its values, as the maps of a [`Program`](crate::program::Program) say: of an
    /// `lpm`, prefixes of equal values share an entry then.
    pub read_only: bool,
    /// The declaration's bytes in the text.
    pub place: Range<usize>,
    /// What an object says of it, in place of `fields`; nothing of a filter in text.
    pub typed: Option<Arc<TypeInfo>>,
    /// What is said of its entries besides, of a map by number.
    pub annotations: Option<Arc<Annotations>>,
    /// Whether it is a ring of records, which whoever reads events takes out of it ([`portcullis_xdp::events`]): what is in
    /// its entries means nothing to anybody else.
    pub is_ring: bool,
}

impl Declaration {
    /// One that nothing more is said of: `key`, `value` and `entries` as the members of these names.
    pub fn new(name: impl Into<String>, kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
        Declaration {
            name: name.into(),
            kind,
            key,
            value,
            entries,
            fields: Vec::new(),
            read_only: false,
            place: 0..0,
            typed: None,
            annotations: None,
            is_ring: false,
        }
    }

    /// Whether what is in it is of use to another run: a ring's records are read in their own, and what is counted of a program's
    /// instructions is of that program.
    pub fn is_persistent(&self) -> bool {
        !self.is_ring && self.annotations.is_none()
    }

    /// Keys that it takes at most: of an object's `hash` and trie as many as it has entries, as in the kernel. Others take
    /// as many as they have places for.
    pub fn max_keys(&self) -> u32 {
        if self.kind == MapKind::Hash && self.typed.is_some() { self.entries } else { u32::MAX }
    }

    /// Words of a key as the host has it: of an `lpm` the address, and behind it the prefix's length.
    pub fn key_words(&self) -> u32 {
        self.key + u32::from(self.kind == MapKind::Lpm)
    }
}

/// Whose comments a text has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommentSyntax {
    /// WGSL's: those that have an end nest (section 3.3).
    Wgsl,
    /// C's: they do not nest; a line that ends in `\` goes on in the next; and there are literals that
    /// comments do not begin in (C11, sections 5.1.1.2, 6.4.5 and 6.4.9).
    C,
}

/// The maps that a text declares, in the text's order.
///
/// # Errors
/// Everything that is wrong with its declarations.
pub fn declarations(text: &str, comments: CommentSyntax) -> Result<Vec<Declaration>, Vec<Diagnostic>> {
    let (mut found, mut errors): (Vec<Declaration>, Vec<Diagnostic>) = (Vec::new(), Vec::new());
    for place in map_directives(text, comments) {
        match Line::new(text, place).declaration() {
            Err(error) => errors.push(error),
            Ok(map) => match found.iter().find(|other| other.name == map.name) {
                Some(other) => errors.push(
                    Diagnostic::new(format!("there are two maps with the name `{}`", map.name))
                        .at(map.place, "the second")
                        .at(other.place.clone(), "the first"),
                ),
                None if found.len() == MAX_MAPS => errors.push(
                    Diagnostic::new(format!("a filter has no more than {MAX_MAPS} maps")).at(map.place, "one too many"),
                ),
                None => found.push(map),
            },
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// A declaration of a map of this kind, for whoever wants to see what it brings.
pub fn example_declaration(kind: MapKind, number: u32) -> String {
    let size = |name: &str, range: Option<RangeInclusive<u32>>| range.map(|_| format!(" {name}=4")).unwrap_or_default();
    let (key, value) = (size("key", kind.keys()), size("value", kind.values()));
    format!("//! map example{number}: {kind}{key}{value} entries=1\n")
}

/// The lines that are nothing but a comment which begins with `//! map`, from there to their ends.
pub fn map_directives(text: &str, comments: CommentSyntax) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut fresh) = (0, true);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            let length = line(rest, comments);
            let words = rest[..length].strip_prefix("//!").map(|words| words.split_whitespace().next());
            if fresh && words == Some(Some("map")) {
                found.push(at..at + rest[..length].trim_end().len());
            }
            length
        } else if rest.starts_with("/*") {
            block(rest, comments)
        } else if comments == CommentSyntax::C && matches!(first, '"' | '\'') {
            literal(rest, first)
        } else {
            first.len_utf8()
        };
        fresh = match first {
            '\n' | '\r' => true,
            _ => fresh && first.is_whitespace(),
        };
        at += length;
    }
    found
}

/// Bytes of a comment that ends with its line.
fn line(rest: &str, comments: CommentSyntax) -> usize {
    let mut end = 0;
    loop {
        end += rest[end..].find(['\n', '\r']).unwrap_or(rest.len() - end);
        if comments == CommentSyntax::Wgsl || !rest[..end].ends_with('\\') || end == rest.len() {
            return end;
        }
        end += if rest[end..].starts_with("\r\n") { 2 } else { 1 };
    }
}

/// Bytes of a comment that has an end, or of the text where it has none.
fn block(rest: &str, comments: CommentSyntax) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let marks = rest[at..].find("*/").map(|end| (end, rest[at..].find("/*").filter(|open| *open < end)));
        match marks {
            None => return rest.len(),
            Some((_, Some(open))) if comments == CommentSyntax::Wgsl => (at, depth) = (at + open + 2, depth + 1),
            Some((end, _)) => (at, depth) = (at + end + 2, depth - 1),
        }
    }
    at
}

/// Bytes of a literal, which ends with its line at the latest.
fn literal(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

const SHAPE: &str =
    "a map is declared as in `//! map flows: hash key=4 value=6 entries=1048576`, sizes in words of 32 bits";

/// A declaration being read.
struct Line<'a> {
    text: &'a str,
    place: Range<usize>,
    /// Where the next word may begin.
    at: usize,
}

impl<'a> Line<'a> {
    fn new(text: &'a str, place: Range<usize>) -> Line<'a> {
        Line { text, at: place.start, place }
    }

    /// The next word, or nothing; a colon is one.
    fn word(&mut self) -> Option<Range<usize>> {
        self.word_up_to(|c| c.is_whitespace() || c == ':')
    }

    /// The next word with a size or with fields, in which colons may be.
    fn size(&mut self) -> Option<Range<usize>> {
        self.word_up_to(char::is_whitespace)
    }

    fn word_up_to(&mut self, is_end: fn(char) -> bool) -> Option<Range<usize>> {
        let rest = &self.text[self.at..self.place.end];
        let start = self.at + rest.find(|c: char| !c.is_whitespace())?;
        let rest = &self.text[start..self.place.end];
        let length = match rest.find(is_end) {
            Some(0) => 1,
            Some(length) => length,
            None => rest.len(),
        };
        self.at = start + length;
        Some(start..self.at)
    }

    /// An error at the next word, or at all of the line where there is none.
    fn expected(&self, word: Option<Range<usize>>, what: &str) -> Diagnostic {
        let place = word.unwrap_or_else(|| self.place.clone());
        Diagnostic::new(format!("a map's {what} is missing")).at(place, format!("{what} expected")).note(SHAPE)
    }

    fn declaration(mut self) -> Result<Declaration, Diagnostic> {
        let text = self.text;
        // `//!` and `map`, which may stand together or apart.
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
        let kind = kind(&text[word.clone()]).map_err(|error| error.at(word, ""))?;
        let mut sizes = Sizes::default();
        let mut fields_at = None;
        while let Some(word) = self.size() {
            if text[word.clone()].starts_with("fields=") {
                fields_at = Some(word.clone());
            }
            sizes.take(kind, &text[word.clone()]).map_err(|error| error.at(word, ""))?;
        }
        let missing = |size: &str| {
            Diagnostic::new(format!("the map `{}` does not say its `{size}=`", &text[name.clone()]))
                .at(self.place.clone(), "")
                .note(SHAPE)
        };
        let key = sizes.key.or(kind.keys().is_none().then_some(1)).ok_or_else(|| missing("key"))?;
        let value = sizes.value.or(kind.values().is_none().then_some(2)).ok_or_else(|| missing("value"))?;
        let entries = sizes.entries.ok_or_else(|| missing("entries"))?;
        let fields = sizes.fields.unwrap_or_default();
        if let Some(at) = fields_at {
            fields::check(&fields, kind, key, value).map_err(|error| error.at(at, ""))?;
        }
        let name = text[name].to_owned();
        let map = Declaration { fields, place: self.place, ..Declaration::new(name, kind, key, value, entries) };
        let words = if kind == MapKind::Lpm { TrieLayout::of(&map).end } else { Layout::of(&map).words() as u64 };
        if words <= MAX_WORDS {
            return Ok(map);
        }
        let message = format!("the map `{}` would take {words} words of memory at worst", map.name);
        let note = format!("{MAX_WORDS} are the most: declare fewer entries, or shorter keys and values");
        Err(Diagnostic::new(message).at(map.place, "").note(note))
    }
}

/// Refuses what cannot begin the names of functions.
fn check_name(text: &str, place: Range<usize>) -> Result<(), Diagnostic> {
    let name = &text[place.clone()];
    let wrong = |message: String, note: String| Err(Diagnostic::new(message).at(place.clone(), "").note(note));
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !letters || name.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
        let note = "a map's name is letters, digits and `_`, a letter first".into();
        return wrong(format!("`{}` is no name for a map", name.escape_debug()), note);
    }
    if name.len() > MAX_NAME_BYTES {
        return wrong(format!("the map's name has {} letters", name.len()), format!("{MAX_NAME_BYTES} are the most"));
    }
    if let Some(known) = reserved_name_conflict(name) {
        let note = format!("the prelude's own names begin so (`{known}`): choose another");
        return wrong(format!("a map cannot be called `{name}`"), note);
    }
    Ok(())
}

/// What of the prelude's own begins as the names of this map's functions would.
pub fn reserved_name_conflict(name: &str) -> Option<&'static str> {
    let begins = |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    let all = prelude::FUNCTIONS.iter().map(|(known, _)| *known).chain([FILTER_FUNCTION, "map", "pc", "XDP"]);
    all.into_iter().find(|known| begins(known))
}

fn kind(name: &str) -> Result<MapKind, Diagnostic> {
    if let Some(kind) = MapKind::ALL.into_iter().find(|kind| kind.name() == name) {
        return Ok(kind);
    }
    let error = Diagnostic::new(format!("there are no maps of the kind `{}`", name.escape_debug()));
    let error = match nearest(name, MapKind::ALL.map(MapKind::name)) {
        Some(near) => error.note(format!("did you mean `{near}`?")),
        None => error,
    };
    Err(error.note(format!("there are {}", MapKind::ALL.map(MapKind::name).join(", "))))
}

/// What a declaration has said of sizes.
#[derive(Debug, Default)]
struct Sizes {
    key: Option<u32>,
    value: Option<u32>,
    entries: Option<u32>,
    fields: Option<Vec<Field>>,
}

impl Sizes {
    /// Takes a word: `key=4`.
    fn take(&mut self, kind: MapKind, word: &str) -> Result<(), Diagnostic> {
        let (name, number) = word.split_once('=').unwrap_or((word, ""));
        let (slot, range) = match name {
            "fields" => {
                return match self.fields.replace(fields::parse(number, kind)?) {
                    None => Ok(()),
                    Some(_) => Err(Diagnostic::new("`fields=` is said twice")),
                };
            }
            "key" => (&mut self.key, kind.keys()),
            "value" => (&mut self.value, kind.values()),
            "entries" => (&mut self.entries, Some(1..=MAX_ENTRIES)),
            _ => {
                let error = Diagnostic::new(format!("a map has no `{}`", name.escape_debug()));
                let error = match nearest(name, ["key", "value", "entries", "fields"]) {
                    Some(near) => error.note(format!("did you mean `{near}=`?")),
                    None => error,
                };
                return Err(error.note(SHAPE));
            }
        };
        let Some(range) = range else {
            let what =
                if kind == MapKind::Counter { "a number, and its values are sums of 64 bits" } else { "a number" };
            return Err(Diagnostic::new(format!("a map of the kind `{kind}` has no `{name}=`"))
                .note(format!("its key is {what}")));
        };
        let sizes = match kind {
            // An IPv4 address, or an IPv6 one.
            MapKind::Lpm if name == "key" => "1 word, for IPv4, or 4, for IPv6".to_owned(),
            _ => format!("{} to {}", range.start(), range.end()),
        };
        let fits = |n: &u32| range.contains(n) && (kind != MapKind::Lpm || name != "key" || matches!(n, 1 | 4));
        let Some(number) = number.parse().ok().filter(fits) else {
            let shown = number.escape_debug();
            return Err(Diagnostic::new(format!("`{name}={shown}` is no size that a map of the kind `{kind}` has"))
                .note(format!("`{name}=` is {sizes}")));
        };
        if slot.replace(number).is_some() {
            return Err(Diagnostic::new(format!("`{name}=` is said twice")));
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

    /// The message of the only error, and the text that its first label is at.
    fn error(text: &str) -> (String, &str) {
        let errors = declarations(text, CommentSyntax::Wgsl).unwrap_err();
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        let notes = error.notes.join("; ");
        (format!("{} ({notes})", error.message), &text[error.labels[0].range.clone()])
    }

    #[test]
    fn maps_whose_words_have_no_numbers_are_refused() {
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
        assert_eq!(&text[flows.place.clone()], "//! map flows: hash key=4 value=6 entries=1048576");
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
    fn only_comments_on_lines_of_their_own_declare() {
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
        // C's comments do not nest, and one goes on behind a backslash.
        let c = |text: &str| declarations(text, CommentSyntax::C).unwrap().len();
        assert_eq!(c(&format!("/* /* */\n{map}\n")), 1);
        assert_eq!(c(&format!("// over \\\n{map}\n")), 0);
        assert_eq!(c(&format!("// over \\\r\n{map}\n{map}")), 1);
        assert_eq!(c(&format!("char c = '\"'; char *s = \"/*\\\"\";\n{map}\n")), 1);
        assert_eq!(c(&format!("/* no end\n{map}")), 0);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, message, place) in [
            ("//! map", "a map's name is missing", "//! map"),
            ("//! map : hash", "a map's name is missing", "//! map : hash"),
            ("//! map a hash key=1", "a map's `:` behind the name is missing", "hash"),
            ("//! map 2a: hash", "`2a` is no name for a map (a map's name is letters", "2a"),
            (
                "//! map load: hash",
                "a map cannot be called `load` (the prelude's own names begin so (`load_u8`)",
                "load",
            ),
            ("//! map a:", "a map's kind is missing", "//! map a:"),
            (
                "//! map a: hahs key=1",
                "there are no maps of the kind `hahs` (did you mean `hash`?; there are array, h",
                "hahs",
            ),
            (
                "//! map a: hash key=1 value=1",
                "the map `a` does not say its `entries=`",
                "//! map a: hash key=1 value=1",
            ),
            ("//! map a: hash value=1 entries=1", "does not say its `key=`", "//! map a: hash value=1 entries=1"),
            ("//! map a: hash kye=1", "a map has no `kye` (did you mean `key=`?", "kye=1"),
            (
                "//! map a: hash key=17",
                "`key=17` is no size that a map of the kind `hash` has (`key=` is 1 to 16)",
                "key=17",
            ),
            ("//! map a: hash key=x", "`key=x` is no size", "key=x"),
            ("//! map a: hash key", "`key=` is no size", "key"),
            (
                "//! map a: lpm key=4 value=1 entries=16777216",
                "the map `a` would take 2592079888 words of memory at worst (2147483648 are the most: declare fewer",
                "//! map a: lpm key=4 value=1 entries=16777216",
            ),
            ("//! map a: lpm key=2", "(`key=` is 1 word, for IPv4, or 4, for IPv6)", "key=2"),
            ("//! map a: array key=1", "a map of the kind `array` has no `key=` (its key is a number)", "key=1"),
            ("//! map a: counter value=1", "has no `value=`", "value=1"),
            ("//! map a: array value=1 entries=0", "`entries=` is 1 to 16777216", "entries=0"),
            ("//! map a: array value=1 value=1", "`value=` is said twice", "value=1"),
            (
                "//! map a: lpm key=1 value=1 entries=1 fields=a:ipv4,b",
                "the field `a` cannot be of the form `ipv4` (the key of an `lpm` is of the form `prefix`, which need not",
                "fields=a:ipv4,b",
            ),
            (
                "//! map a: lpm key=1 value=1 entries=1 fields=a,b:prefix",
                "the field `b` cannot be of the form `prefix` (only the key of an `lpm` is a prefix, as a whole)",
                "fields=a,b:prefix",
            ),
            (
                "//! map a: hash key=2 value=0 entries=1 fields=a:prefix",
                "the field `a` cannot be of the form `prefix`",
                "fields=a:prefix",
            ),
            (
                "//! map a: lpm key=4 value=1 entries=1 fields=a",
                "`fields=` is not the words of a key (4) and then of a value (1) (it has 4;",
                "fields=a",
            ),
            (
                "//! map a: counter entries=1 fields=a,b:u32,c:u32",
                "the field `b` cannot be of the form `u32` (the sum of a `counter` is of the form `u64`",
                "fields=a,b:u32,c:u32",
            ),
            ("//! map a: array fields=a fields=a", "`fields=` is said twice", "fields=a"),
            ("//! map a: array fields=a,", "`` is no name for a field (a field's name is letters", "fields=a,"),
            ("//! map a: array fields=2a", "`2a` is no name for a field", "fields=2a"),
            ("//! map a: array fields=a:ip,a", "there are two fields with the name `a`", "fields=a:ip,a"),
            (
                "//! map a: array fields=a:ipv5",
                "of the form `ipv5` (did you mean `ipv4`?; there are u32, u64",
                "fields=a:ipv5",
            ),
            (
                "//! map a: hash key=3 value=1 entries=1 fields=a,b:ipv4",
                "`fields=` is not the words of a key (3) and then of a value (1) (it has 2; words of a field: `u32` 1",
                "fields=a,b:ipv4",
            ),
            ("//! map a: hash key=3 value=1 entries=1 fields=a:ip", "is not the words of a key (3)", "fields=a:ip"),
            (
                "//! map a: array value=1 entries=1 fields=a",
                "is not the words of a key (1) and then of a value (1) (it has 1;",
                "fields=a",
            ),
        ] {
            let (said, at) = error(text);
            assert!(said.contains(message), "{text}: {said}");
            assert_eq!(at, place, "{text}");
        }
        let two = "//! map a: counter entries=1\n//! map a: counter entries=2";
        assert_eq!(error(two), ("there are two maps with the name `a` ()".into(), "//! map a: counter entries=2"));
        let many: String = (0..=MAX_MAPS).map(|i| format!("//! map m{i}: counter entries=1\n")).collect();
        assert_eq!(error(&many).1, format!("//! map m{MAX_MAPS}: counter entries=1"));
        let long = format!("//! map {}: hash", "n".repeat(MAX_NAME_BYTES + 1));
        assert!(error(&long).0.contains("48 are the most"));
    }
}
