//! How large a text's types and constants become: naga writes constants out, and a few lines can
//! stand for more than any memory holds (`const b = array(a, a); const c = array(b, b); ...`).
//!
//! A type's *weight* is the number of scalars in it; a value's is the number of expressions that
//! writing it out takes. Weights are worked out on the tokens, without types: never less than what
//! naga makes, and more only for texts that are wrong.

use std::collections::HashMap;

use super::integers::{self, Integer};
use super::scan::{DECLARING, Declared};
use super::tokens::{Kind, Token};
use portcullis_core::diagnostics::Diagnostic;

/// The most scalars that a type may have: as many as private memory has bytes.
pub const MAX_TYPE_WEIGHT: u64 = portcullis_core::program::MAX_PRIVATE_BYTES;

/// The most expressions that all mentions of constants together may be written out to.
pub const MAX_CONSTANT_WEIGHT: u64 = 1 << 20;

/// How many levels of a value's structure are told apart; types nest no deeper.
const LEVELS: usize = 16;

/// A value's weight, the weight of its heaviest member, of that one's heaviest member and so on.
type Levels = Vec<u64>;

/// What a name stands for in a function.
#[derive(Debug, Clone)]
struct Local {
    levels: Levels,
    integer: Option<Integer>,
}

/// Weighs everything in a text whose shape has been checked.
///
/// # Errors
/// The first type or constant that is too large, or an array whose size is no plain constant.
pub(super) fn weigh(source: &str, tokens: &[Token], declared: &[Declared]) -> Result<(), Diagnostic> {
    let mut weigher = Weigher {
        source,
        tokens,
        partners: partners(source, tokens),
        items: declared.iter().map(|d| (&source[d.name.clone()], d)).collect(),
        type_weights: HashMap::new(),
        values: HashMap::new(),
        integers: HashMap::new(),
        scopes: Vec::new(),
        at_module_scope: 0,
        total: 0,
    };
    weigher.run()
}

/// The number of the bracket that closes each opening bracket; what is no such bracket is its own.
fn partners(source: &str, tokens: &[Token]) -> Vec<usize> {
    let mut open = Vec::new();
    let mut partners: Vec<usize> = (0..tokens.len()).collect();
    for (i, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Open | Kind::TemplateStart => open.push(i),
            Kind::Close | Kind::TemplateEnd => {
                if let Some(start) = open.pop() {
                    partners[start] = i;
                }
            }
            _ => {}
        }
    }
    debug_assert!(open.is_empty(), "the scan balances brackets: {source}");
    partners
}

struct Weigher<'a> {
    source: &'a str,
    tokens: &'a [Token],
    partners: Vec<usize>,
    items: HashMap<&'a str, &'a Declared>,
    /// Of named types; `None` while it is being worked out. A cycle is naga's to refuse.
    type_weights: HashMap<&'a str, Option<u64>>,
    /// Of module-scope constants, in the same way.
    values: HashMap<&'a str, Option<Levels>>,
    integers: HashMap<&'a str, Option<Integer>>,
    /// The names declared in the blocks around the place that is looked at.
    scopes: Vec<HashMap<&'a str, Local>>,
    /// More than 0 while a module-scope declaration is looked at from within a function.
    at_module_scope: usize,
    total: u64,
}

impl<'a> Weigher<'a> {
    fn text(&self, i: usize) -> &'a str {
        self.tokens.get(i).map_or("", |token| token.text(self.source))
    }

    fn is_word(&self, i: usize) -> bool {
        self.tokens.get(i).is_some_and(|token| token.kind == Kind::Word)
    }

    /// The token behind the bracket that closes the one at `i`.
    fn behind(&self, i: usize) -> usize {
        self.partners.get(i).map_or(self.tokens.len(), |close| close + 1)
    }

    fn run(&mut self) -> Result<(), Diagnostic> {
        let mut parentheses = 0u32;
        // Where an initialiser ends, the name it belongs to becomes known.
        let mut pending: Vec<(usize, &'a str, Local)> = Vec::new();
        for i in 0..self.tokens.len() {
            while let Some((_, name, local)) = pending.pop_if(|(end, ..)| *end <= i) {
                self.bind(name, local, parentheses > 0);
            }
            let text = self.text(i);
            match (self.tokens[i].kind, text) {
                (Kind::Open, "{") => self.scopes.push(HashMap::new()),
                (Kind::Close, "}") => drop(self.scopes.pop()),
                (Kind::Open, "(") => parentheses += 1,
                (Kind::Close, ")") => parentheses = parentheses.saturating_sub(1),
                (Kind::Word, "let" | "const" | "var") if self.begins_statement(i) => {
                    pending.extend(self.local(i, text)?);
                }
                (Kind::Word, name) if i == 0 || self.text(i - 1) != "." => self.mention(i, name)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a declaration in a function may begin at `i`. Where none may, naga's parser refuses the
    /// text before anything is written out.
    fn begins_statement(&self, i: usize) -> bool {
        let before = |n: usize| i.checked_sub(n).map_or("", |i| self.text(i));
        !self.scopes.is_empty() && (matches!(before(1), ";" | "{" | "}") || (before(1) == "(" && before(2) == "for"))
    }

    /// The declaration in a function whose keyword is at `i`: where it ends, its name and value.
    fn local(&mut self, i: usize, keyword: &str) -> Result<Option<(usize, &'a str, Local)>, Diagnostic> {
        let name = if self.text(i + 1) == "<" { self.behind(i + 1) } else { i + 1 };
        if !self.is_word(name) {
            return Ok(None);
        }
        let (equals, end) = self.initialiser(name + 1);
        let mut local = Local { levels: vec![1], integer: None };
        if keyword != "var" {
            local.levels = self.levels(equals + 1, end)?;
        }
        if keyword == "const" {
            local.integer = self.integer(equals + 1, end)?;
        }
        Ok(Some((end, self.text(name), local)))
    }

    /// Where the `=` and the end of a declaration are, from the token behind its name on.
    fn initialiser(&self, from: usize) -> (usize, usize) {
        let mut equals = None;
        let mut i = from;
        while i < self.tokens.len() {
            match (self.tokens[i].kind, self.text(i)) {
                (Kind::Open | Kind::TemplateStart, _) => i = self.behind(i) - 1,
                (Kind::Symbol, "=") if equals.is_none() => equals = Some(i),
                (Kind::Symbol, ";") | (Kind::Close, _) => break,
                // Not in a text that is right: without this, looking at one that repeats itself
                // would take time in the square of its length.
                (Kind::Word, word) if DECLARING.contains(&word) || word == "let" || word == "for" => break,
                _ => {}
            }
            i += 1;
        }
        (equals.unwrap_or(i).min(i), i)
    }

    /// A `for` declares in the block around it here, though its names end with the loop: there the
    /// heavier of both meanings counts.
    fn bind(&mut self, name: &'a str, mut local: Local, in_parentheses: bool) {
        if in_parentheses {
            if let Some(other) = self.find_local(name) {
                local.levels = heavier(local.levels, &other.levels);
                local.integer = local.integer.filter(|_| local.integer == other.integer);
            } else if self.items.contains_key(name) {
                return;
            }
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, local);
        }
    }

    fn find_local(&self, name: &str) -> Option<&Local> {
        if self.at_module_scope > 0 {
            return None;
        }
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Adds what the name at `i` is written out to.
    fn mention(&mut self, i: usize, name: &'a str) -> Result<(), Diagnostic> {
        let weight = if name == "array" || self.is_constructor(name) {
            self.type_weight(i)?
        } else {
            self.value(name)?.first().copied().unwrap_or(1)
        };
        if weight > 1 {
            self.total = self.total.saturating_add(weight);
        }
        if self.total > MAX_CONSTANT_WEIGHT {
            return Err(Diagnostic::new("the constants are too large")
                .at(self.tokens[i].range(), format!("this one has {weight} values"))
                .note(format!(
                    "written out wherever they are used, all constants up to here have more than \
                     {MAX_CONSTANT_WEIGHT} values"
                )));
        }
        Ok(())
    }

    /// Whether a call of this name makes a value of several parts.
    fn is_constructor(&self, name: &str) -> bool {
        match self.items.get(name) {
            Some(item) => matches!(item.keyword, "struct" | "alias"),
            None => name == "array" || name.starts_with("vec") || name.starts_with("mat"),
        }
    }

    /// What an item's declaration says, from the token behind its name on; with the functions'
    /// names out of sight.
    fn at_module<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.at_module_scope += 1;
        let result = work(self);
        self.at_module_scope -= 1;
        result
    }

    /// The weight of the type at `i`.
    fn type_weight(&mut self, i: usize) -> Result<u64, Diagnostic> {
        let name = self.text(i);
        if let Some(&item) = self.items.get(name) {
            return self.named_type(name, item);
        }
        if name != "array" {
            let width =
                |from: usize| name.as_bytes().get(from).map_or(4, |&b| u64::from(b.saturating_sub(b'0')).clamp(1, 4));
            return Ok(match name {
                _ if name.starts_with("vec") => width(3),
                _ if name.starts_with("mat") => width(3) * width(5),
                _ => 1,
            });
        }
        if !self.tokens.get(i + 1).is_some_and(|token| token.kind == Kind::TemplateStart) {
            return Ok(1);
        }
        let end = self.behind(i + 1) - 1;
        let parts = self.parts(i + 2, end);
        let Some(&(element, _)) = parts.first() else { return Ok(1) };
        let element = self.type_weight(element)?;
        let Some(&(from, to)) = parts.get(1) else { return Ok(element) };
        let place = self.tokens[from.min(self.tokens.len() - 1)].range();
        let count = self.integer(from, to)?.ok_or_else(|| {
            Diagnostic::new("this array's size is no plain constant")
                .at(place.clone(), "")
                .note("numbers and constants made of them with + - * / % << >> & | ^ and `u32()`, `i32()` are")
        })?;
        let weight = element.saturating_mul(u64::from(count));
        if weight > MAX_TYPE_WEIGHT {
            return Err(Diagnostic::new("this array is too large")
                .at(place, format!("{weight} values"))
                .note(format!("private memory is {MAX_TYPE_WEIGHT} bytes a packet")));
        }
        Ok(weight)
    }

    fn named_type(&mut self, name: &'a str, item: &Declared) -> Result<u64, Diagnostic> {
        if let Some(weight) = self.type_weights.get(name) {
            return Ok(weight.unwrap_or(1));
        }
        self.type_weights.insert(name, None);
        let from = item.token + 1;
        let weight = self.at_module(|this| match item.keyword {
            "alias" => this.type_weight(from + 1),
            "struct" => {
                let end = this.behind(from) - 1;
                let mut weight = 0u64;
                for (start, end) in this.parts(from + 1, end) {
                    // Attributes hold no colon outside of brackets.
                    let colon = (start..end).find(|&i| this.text(i) == ":").unwrap_or(end);
                    weight = weight.saturating_add(this.type_weight(colon + 1)?);
                }
                Ok(weight)
            }
            _ => Ok(1),
        })?;
        self.type_weights.insert(name, Some(weight));
        if weight > MAX_TYPE_WEIGHT {
            return Err(Diagnostic::new(format!("`{name}` is too large"))
                .at(item.name.clone(), format!("{weight} values"))
                .note(format!("private memory is {MAX_TYPE_WEIGHT} bytes a packet")));
        }
        Ok(weight)
    }

    /// The weight of what a name stands for.
    fn value(&mut self, name: &'a str) -> Result<Levels, Diagnostic> {
        if let Some(local) = self.find_local(name) {
            return Ok(local.levels.clone());
        }
        let Some(&item) = self.items.get(name).filter(|item| item.keyword == "const") else { return Ok(vec![1]) };
        if let Some(levels) = self.values.get(name) {
            return Ok(levels.clone().unwrap_or_else(|| vec![1]));
        }
        self.values.insert(name, None);
        let (equals, end) = self.initialiser(item.token + 1);
        let levels = self.at_module(|this| this.levels(equals + 1, end))?;
        self.values.insert(name, Some(levels.clone()));
        Ok(levels)
    }

    /// The weight of an expression: operators make nothing heavier than their operands.
    fn levels(&mut self, from: usize, end: usize) -> Result<Levels, Diagnostic> {
        let mut heaviest = vec![1];
        let mut i = from;
        while i < end {
            let mut value = match (self.tokens[i].kind, self.text(i)) {
                (Kind::Word, name) => {
                    let mut open = i + 1;
                    if self.tokens.get(open).is_some_and(|token| token.kind == Kind::TemplateStart) {
                        open = self.behind(open);
                    }
                    if open < end && self.text(open) == "(" {
                        let close = self.behind(open) - 1;
                        let value = self.call(i, name, open, close)?;
                        i = close;
                        value
                    } else {
                        i = open - 1;
                        self.value(name)?
                    }
                }
                (Kind::Open, "(") => {
                    let close = self.behind(i) - 1;
                    let value = self.levels(i + 1, close)?;
                    i = close;
                    value
                }
                _ => vec![1],
            };
            i += 1;
            // Members and elements.
            while i < end && matches!(self.text(i), "." | "[") {
                if value.len() > 1 {
                    value.remove(0);
                }
                i = if self.text(i) == "." { i + 2 } else { self.behind(i) };
            }
            heaviest = heavier(heaviest, &value);
        }
        Ok(heaviest)
    }

    fn call(&mut self, i: usize, name: &'a str, open: usize, close: usize) -> Result<Levels, Diagnostic> {
        let arguments = self.parts(open + 1, close);
        if arguments.is_empty() {
            return Ok(vec![if self.is_constructor(name) { self.type_weight(i)? } else { 1 }]);
        }
        let mut sum = 1u64;
        let mut heaviest = vec![1];
        for (from, end) in arguments {
            let levels = self.levels(from, end)?;
            sum = sum.saturating_add(levels.first().copied().unwrap_or(1));
            heaviest = heavier(heaviest, &levels);
        }
        if self.is_constructor(name) {
            heaviest.insert(0, sum);
            heaviest.truncate(LEVELS);
        }
        Ok(heaviest)
    }

    /// The value of a constant integer expression, `None` where it is not one that is plain to see.
    fn integer(&mut self, from: usize, end: usize) -> Result<Option<Integer>, Diagnostic> {
        let (source, tokens) = (self.source, self.tokens);
        integers::evaluate(source, &tokens[from.min(end)..end], &mut |name| self.named_integer(name))
    }

    fn named_integer(&mut self, name: &'a str) -> Result<Option<Integer>, Diagnostic> {
        if let Some(local) = self.find_local(name) {
            return Ok(local.integer);
        }
        let Some(&item) = self.items.get(name).filter(|item| item.keyword == "const") else { return Ok(None) };
        if let Some(&value) = self.integers.get(name) {
            return Ok(value);
        }
        self.integers.insert(name, None);
        let (equals, end) = self.initialiser(item.token + 1);
        let value = self.at_module(|this| this.integer(equals + 1, end))?;
        self.integers.insert(name, value);
        Ok(value)
    }

    /// What lies between the commas of `from..end`, outside of brackets.
    fn parts(&self, from: usize, end: usize) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        let mut start = from;
        let mut i = from;
        while i < end {
            match (self.tokens[i].kind, self.text(i)) {
                (Kind::Open | Kind::TemplateStart, _) => i = self.behind(i) - 1,
                (Kind::Symbol, ",") => {
                    parts.push((start, i));
                    start = i + 1;
                }
                _ => {}
            }
            i += 1;
        }
        if start < end {
            parts.push((start, end));
        }
        parts
    }
}

/// The greater of each level.
fn heavier(mut a: Levels, b: &Levels) -> Levels {
    a.resize(a.len().max(b.len()), 0);
    for (a, &b) in a.iter_mut().zip(b) {
        *a = (*a).max(b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;

    fn weighed(text: &str) -> Result<(), String> {
        scan(text, false).map(drop).map_err(|errors| errors[0].message.clone())
    }

    /// Constants of which each holds the one before it `times` times.
    fn doubling(count: u32, times: usize) -> String {
        let wider =
            (1..count).map(|i| format!("const a{i} = array({});", vec![format!("a{}", i - 1); times].join(",")));
        format!("const a0 = array(1, 2);{}", wider.collect::<String>())
    }

    #[test]
    fn sizes_are_seen_through_names() {
        for (text, fits) in [
            ("alias A = array<u32, 16384>;", true),
            ("alias A = array<u32, 16385>;", false),
            ("alias A = array<vec4<u32>, 4096>;", true),
            ("alias A = array<vec4<u32>, 4097>;", false),
            ("alias A = array<vec3f, 5461>; alias B = array<mat4x4<f32>, 1024>;", true),
            ("alias A = array<mat2x3f, 2731>;", false),
            ("const N = 1 << 14; alias A = array<u32, N>;", true),
            ("alias A = array<u32, M + 1>; const M = N * 2; const N = 8192;", false),
            ("struct S { @align(16) a: vec2<u32>, b: array<u32, 2> } alias A = array<S, 4096>;", true),
            ("struct S { a: vec2<u32>, @size(16) b: array<u32, 3> } alias A = array<S, 4096>;", false),
            ("struct S { a: T, b: T } struct T { a: array<u32, 8000> }", true),
            ("struct S { a: T, b: T } struct T { a: array<u32, 9000> }", false),
            ("fn f() { const N = 4; var a: array<u32, N>; { const N = 16385; } var b: array<u32, N>; }", true),
            ("fn f() { const N = 4; { const N = 16385; var a: array<u32, N>; } }", false),
            ("const N = 16385; fn f() { for (let N = 1; ; ) {} var a: array<u32, N>; }", false),
            ("fn f() -> u32 { return array<u32, 100000>()[5]; }", false),
            ("alias A = array<array<u32, 1000>, 1000>;", false),
            ("alias A = array<u32, 65536 * 65536>;", false),
            ("alias A = array<u32, 0 - 5>;", false),
            ("alias A = array<u32, max(1, 2)>;", false),
            ("alias A = array<A, 2>;", true),
            ("const N = N; alias A = array<u32, N>;", false),
        ] {
            assert_eq!(weighed(text).is_ok(), fits, "{text}: {:?}", weighed(text));
        }
    }

    #[test]
    fn constants_that_explode_are_refused() {
        assert!(weighed(&doubling(10, 2)).is_ok());
        assert!(weighed(&doubling(30, 2)).unwrap_err().contains("too large"));
        assert!(weighed(&doubling(5, 30)).is_err());
        let in_function = |text: String| format!("fn f() {{ {text} }}");
        assert!(weighed(&in_function(doubling(30, 2))).is_err());
        // The same name again and again, in blocks inside each other.
        let nested = "{ const a = array(a, a);".repeat(40);
        assert!(weighed(&format!("fn f() {{ const a = array(1, 2); {nested} {} }}", "}".repeat(40))).is_err());
        // Mentions add up.
        let table = format!("const t = array({});", vec!["1u"; 1000].join(","));
        let uses = |n: usize| format!("{table} fn f(i: u32) -> u32 {{ return {}; }}", vec!["t[i]"; n].join(","));
        assert!(weighed(&uses(900)).is_ok());
        assert!(weighed(&uses(1100)).is_err());
    }

    #[test]
    fn structures_rebuilt_from_their_members_do_not_explode() {
        let steps = (1..200).map(|i| format!("let s{i} = S(s{0}.a + s{0}.b, s{0}.b);", i - 1));
        let text =
            format!("struct S {{ a: u32, b: u32 }} fn f() {{ let s0 = S(1, 2); {} }}", steps.collect::<String>());
        assert_eq!(weighed(&text), Ok(()));
        let rows = (1..200).map(|i| format!("const c{i} = max(c{0}, c{0}) * c{0};", i - 1)).collect::<String>();
        assert_eq!(weighed(&format!("const c0 = 1;{rows}")), Ok(()));
    }
}
