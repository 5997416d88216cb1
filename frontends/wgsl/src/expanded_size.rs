//! Bounds the size of types and of constants once naga has expanded them: a few lines can stand for
//! more than memory holds (`const b = array(a, a); const c = array(b, b); ...`).
//!
//! A type's *size* is its number of scalars, a value's the number of expressions that naga writes
//! it out to. Sizes are computed on tokens, without types; they are never less than what naga
//! builds, and more only in invalid text.

use std::collections::HashMap;

use super::const_integers::{self, Integer};
use super::declaration::{DECLARATION_KEYWORDS, Declaration};
use super::lexer::{Token, TokenKind};
use portcullis_core::diagnostics::Diagnostic;

/// Maximum number of scalars of a type: the number of bytes of private memory.
pub const MAX_TYPE_SCALARS: u64 = portcullis_core::program::MAX_PRIVATE_BYTES;

/// Maximum number of expressions that all uses of constants together expand to.
pub const MAX_CONSTANT_EXPRESSIONS: u64 = 1 << 20;

/// Maximum number of nesting levels of a value that are tracked; types nest no deeper.
const MAX_LEVELS: usize = 16;

/// A value's size, the size of its largest member, of that one's largest member, and so on.
type NestedSizes = Vec<u64>;

/// A name declared in a function.
#[derive(Debug, Clone)]
struct Local {
    sizes: NestedSizes,
    integer: Option<Integer>,
}

/// Checks the sizes of all types and constants of a text whose shape has been checked.
///
/// # Errors
/// The first type or constant that is too large, or array whose size cannot be determined.
pub(super) fn check_expanded_sizes(source: &str, tokens: &[Token], declared: &[Declaration]) -> Result<(), Diagnostic> {
    let mut estimator = SizeEstimator {
        source,
        tokens,
        closing_brackets: closing_brackets(source, tokens),
        declarations: declared.iter().map(|d| (&source[d.name.clone()], d)).collect(),
        type_sizes: HashMap::new(),
        values: HashMap::new(),
        integers: HashMap::new(),
        scopes: Vec::new(),
        module_scope_depth: 0,
        total: 0,
    };
    estimator.run()
}

/// Index of the closing bracket of each opening one; other tokens map to themselves.
fn closing_brackets(source: &str, tokens: &[Token]) -> Vec<usize> {
    let mut open = Vec::new();
    let mut closing_brackets: Vec<usize> = (0..tokens.len()).collect();
    for (i, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Open | TokenKind::TemplateStart => open.push(i),
            TokenKind::Close | TokenKind::TemplateEnd => {
                if let Some(start) = open.pop() {
                    closing_brackets[start] = i;
                }
            }
            _ => {}
        }
    }
    debug_assert!(open.is_empty(), "the scan balances brackets: {source}");
    closing_brackets
}

struct SizeEstimator<'a> {
    source: &'a str,
    tokens: &'a [Token],
    closing_brackets: Vec<usize>,
    declarations: HashMap<&'a str, &'a Declaration>,
    /// Sizes of named types; `None` while one is being computed, since naga reports cycles.
    type_sizes: HashMap<&'a str, Option<u64>>,
    /// Sizes of module-scope constants, in the same way.
    values: HashMap<&'a str, Option<NestedSizes>>,
    integers: HashMap<&'a str, Option<Integer>>,
    /// Names declared in the enclosing blocks, innermost last.
    scopes: Vec<HashMap<&'a str, Local>>,
    /// Nesting of module-scope lookups; local names are invisible while it is not 0.
    module_scope_depth: usize,
    total: u64,
}

impl<'a> SizeEstimator<'a> {
    fn text(&self, i: usize) -> &'a str {
        self.tokens.get(i).map_or("", |token| token.text(self.source))
    }

    fn is_word(&self, i: usize) -> bool {
        self.tokens.get(i).is_some_and(|token| token.kind == TokenKind::Word)
    }

    /// Index of the token after the bracket that closes the one at `i`.
    fn after_bracket(&self, i: usize) -> usize {
        self.closing_brackets.get(i).map_or(self.tokens.len(), |close| close + 1)
    }

    fn run(&mut self) -> Result<(), Diagnostic> {
        let mut parentheses = 0u32;
        // Initialised names whose initialiser ends at the index; they become visible there.
        let mut pending: Vec<(usize, &'a str, Local)> = Vec::new();
        for i in 0..self.tokens.len() {
            while let Some((_, name, local)) = pending.pop_if(|(end, ..)| *end <= i) {
                self.bind_local(name, local, parentheses > 0);
            }
            let text = self.text(i);
            match (self.tokens[i].kind, text) {
                (TokenKind::Open, "{") => self.scopes.push(HashMap::new()),
                (TokenKind::Close, "}") => drop(self.scopes.pop()),
                (TokenKind::Open, "(") => parentheses += 1,
                (TokenKind::Close, ")") => parentheses = parentheses.saturating_sub(1),
                (TokenKind::Word, "let" | "const" | "var") if self.begins_statement(i) => {
                    pending.extend(self.local(i, text)?);
                }
                (TokenKind::Word, name) if i == 0 || self.text(i - 1) != "." => self.add_mention(i, name)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a declaration in a function may start at `i`. Elsewhere naga's parser rejects it
    /// before anything is expanded.
    fn begins_statement(&self, i: usize) -> bool {
        let before = |n: usize| i.checked_sub(n).map_or("", |i| self.text(i));
        !self.scopes.is_empty() && (matches!(before(1), ";" | "{" | "}") || (before(1) == "(" && before(2) == "for"))
    }

    /// Parses the declaration in a function whose keyword is at `i`; returns its end, name and
    /// value.
    fn local(&mut self, i: usize, keyword: &str) -> Result<Option<(usize, &'a str, Local)>, Diagnostic> {
        let name = if self.text(i + 1) == "<" { self.after_bracket(i + 1) } else { i + 1 };
        if !self.is_word(name) {
            return Ok(None);
        }
        let (equals, end) = self.initialiser(name + 1);
        let mut local = Local { sizes: vec![1], integer: None };
        if keyword != "var" {
            local.sizes = self.sizes(equals + 1, end)?;
        }
        if keyword == "const" {
            local.integer = self.integer(equals + 1, end)?;
        }
        Ok(Some((end, self.text(name), local)))
    }

    /// Indices of a declaration's `=` and of its end, searched from the token after its name.
    fn initialiser(&self, from: usize) -> (usize, usize) {
        let mut equals = None;
        let mut i = from;
        while i < self.tokens.len() {
            match (self.tokens[i].kind, self.text(i)) {
                (TokenKind::Open | TokenKind::TemplateStart, _) => i = self.after_bracket(i) - 1,
                (TokenKind::Symbol, "=") if equals.is_none() => equals = Some(i),
                (TokenKind::Symbol, ";") | (TokenKind::Close, _) => break,
                // Valid text has none of these before the end; without this, repetitive invalid
                // text would take quadratic time.
                (TokenKind::Word, word) if DECLARATION_KEYWORDS.contains(&word) || word == "let" || word == "for" => {
                    break;
                }
                _ => {}
            }
            i += 1;
        }
        (equals.unwrap_or(i).min(i), i)
    }

    /// Binds a name in the innermost block. A `for` binds in the block around it, though its names
    /// end with the loop, so the larger of both meanings counts there.
    fn bind_local(&mut self, name: &'a str, mut local: Local, in_parentheses: bool) {
        if in_parentheses {
            if let Some(other) = self.find_local(name) {
                local.sizes = max_by_level(local.sizes, &other.sizes);
                local.integer = local.integer.filter(|_| local.integer == other.integer);
            } else if self.declarations.contains_key(name) {
                return;
            }
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, local);
        }
    }

    fn find_local(&self, name: &str) -> Option<&Local> {
        if self.module_scope_depth > 0 {
            return None;
        }
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Adds the expanded size of the use of a name at `i`.
    fn add_mention(&mut self, i: usize, name: &'a str) -> Result<(), Diagnostic> {
        let size = if name == "array" || self.is_constructor(name) {
            self.type_size(i)?
        } else {
            self.value(name)?.first().copied().unwrap_or(1)
        };
        if size > 1 {
            self.total = self.total.saturating_add(size);
        }
        if self.total > MAX_CONSTANT_EXPRESSIONS {
            return Err(Diagnostic::new("the constants are too large")
                .at(self.tokens[i].range(), format!("this one has {size} values"))
                .note(format!(
                    "constants are expanded wherever they are used; up to here they have more than \
                     {MAX_CONSTANT_EXPRESSIONS} values"
                )));
        }
        Ok(())
    }

    /// Whether a call of this name builds a composite value.
    fn is_constructor(&self, name: &str) -> bool {
        match self.declarations.get(name) {
            Some(declaration) => matches!(declaration.keyword, "struct" | "alias"),
            None => name == "array" || name.starts_with("vec") || name.starts_with("mat"),
        }
    }

    /// Runs `work` on a module-scope declaration, with local names hidden.
    fn with_locals_hidden<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.module_scope_depth += 1;
        let result = work(self);
        self.module_scope_depth -= 1;
        result
    }

    /// Size of the type at `i`.
    fn type_size(&mut self, i: usize) -> Result<u64, Diagnostic> {
        let name = self.text(i);
        if let Some(&declaration) = self.declarations.get(name) {
            return self.named_type(name, declaration);
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
        if !self.tokens.get(i + 1).is_some_and(|token| token.kind == TokenKind::TemplateStart) {
            return Ok(1);
        }
        let end = self.after_bracket(i + 1) - 1;
        let parts = self.split_at_commas(i + 2, end);
        let Some(&(element, _)) = parts.first() else { return Ok(1) };
        let element = self.type_size(element)?;
        let Some(&(from, to)) = parts.get(1) else { return Ok(element) };
        let place = self.tokens[from.min(self.tokens.len() - 1)].range();
        let count = self.integer(from, to)?.ok_or_else(|| {
            Diagnostic::new("the size of this array is not a simple constant")
                .at(place.clone(), "")
                .note("use numbers, and constants computed from them with + - * / % << >> & | ^, `u32()` and `i32()`")
        })?;
        let size = element.saturating_mul(u64::from(count));
        if size > MAX_TYPE_SCALARS {
            return Err(Diagnostic::new("this array is too large")
                .at(place, format!("{size} values"))
                .note(format!("private memory is {MAX_TYPE_SCALARS} bytes per packet")));
        }
        Ok(size)
    }

    fn named_type(&mut self, name: &'a str, declaration: &Declaration) -> Result<u64, Diagnostic> {
        if let Some(size) = self.type_sizes.get(name) {
            return Ok(size.unwrap_or(1));
        }
        self.type_sizes.insert(name, None);
        let from = declaration.token + 1;
        let size = self.with_locals_hidden(|this| match declaration.keyword {
            "alias" => this.type_size(from + 1),
            "struct" => {
                let end = this.after_bracket(from) - 1;
                let mut size = 0u64;
                for (start, end) in this.split_at_commas(from + 1, end) {
                    // Attributes contain no colon outside brackets.
                    let colon = (start..end).find(|&i| this.text(i) == ":").unwrap_or(end);
                    size = size.saturating_add(this.type_size(colon + 1)?);
                }
                Ok(size)
            }
            _ => Ok(1),
        })?;
        self.type_sizes.insert(name, Some(size));
        if size > MAX_TYPE_SCALARS {
            return Err(Diagnostic::new(format!("`{name}` is too large"))
                .at(declaration.name.clone(), format!("{size} values"))
                .note(format!("private memory is {MAX_TYPE_SCALARS} bytes per packet")));
        }
        Ok(size)
    }

    /// Size of the value that a name stands for.
    fn value(&mut self, name: &'a str) -> Result<NestedSizes, Diagnostic> {
        if let Some(local) = self.find_local(name) {
            return Ok(local.sizes.clone());
        }
        let Some(&declaration) = self.declarations.get(name).filter(|declaration| declaration.keyword == "const")
        else {
            return Ok(vec![1]);
        };
        if let Some(sizes) = self.values.get(name) {
            return Ok(sizes.clone().unwrap_or_else(|| vec![1]));
        }
        self.values.insert(name, None);
        let (equals, end) = self.initialiser(declaration.token + 1);
        let sizes = self.with_locals_hidden(|this| this.sizes(equals + 1, end))?;
        self.values.insert(name, Some(sizes.clone()));
        Ok(sizes)
    }

    /// Size of an expression's value; operators make nothing larger than their operands.
    fn sizes(&mut self, from: usize, end: usize) -> Result<NestedSizes, Diagnostic> {
        let mut largest = vec![1];
        let mut i = from;
        while i < end {
            let mut value = match (self.tokens[i].kind, self.text(i)) {
                (TokenKind::Word, name) => {
                    let mut open = i + 1;
                    if self.tokens.get(open).is_some_and(|token| token.kind == TokenKind::TemplateStart) {
                        open = self.after_bracket(open);
                    }
                    if open < end && self.text(open) == "(" {
                        let close = self.after_bracket(open) - 1;
                        let value = self.call(i, name, open, close)?;
                        i = close;
                        value
                    } else {
                        i = open - 1;
                        self.value(name)?
                    }
                }
                (TokenKind::Open, "(") => {
                    let close = self.after_bracket(i) - 1;
                    let value = self.sizes(i + 1, close)?;
                    i = close;
                    value
                }
                _ => vec![1],
            };
            i += 1;
            // Member accesses and indices.
            while i < end && matches!(self.text(i), "." | "[") {
                if value.len() > 1 {
                    value.remove(0);
                }
                i = if self.text(i) == "." { i + 2 } else { self.after_bracket(i) };
            }
            largest = max_by_level(largest, &value);
        }
        Ok(largest)
    }

    fn call(&mut self, i: usize, name: &'a str, open: usize, close: usize) -> Result<NestedSizes, Diagnostic> {
        let arguments = self.split_at_commas(open + 1, close);
        if arguments.is_empty() {
            return Ok(vec![if self.is_constructor(name) { self.type_size(i)? } else { 1 }]);
        }
        let mut sum = 1u64;
        let mut largest = vec![1];
        for (from, end) in arguments {
            let sizes = self.sizes(from, end)?;
            sum = sum.saturating_add(sizes.first().copied().unwrap_or(1));
            largest = max_by_level(largest, &sizes);
        }
        if self.is_constructor(name) {
            largest.insert(0, sum);
            largest.truncate(MAX_LEVELS);
        }
        Ok(largest)
    }

    /// Value of a constant integer expression; `None` if it cannot be determined.
    fn integer(&mut self, from: usize, end: usize) -> Result<Option<Integer>, Diagnostic> {
        let (source, tokens) = (self.source, self.tokens);
        const_integers::evaluate(source, &tokens[from.min(end)..end], &mut |name| self.named_integer(name))
    }

    fn named_integer(&mut self, name: &'a str) -> Result<Option<Integer>, Diagnostic> {
        if let Some(local) = self.find_local(name) {
            return Ok(local.integer);
        }
        let Some(&declaration) = self.declarations.get(name).filter(|declaration| declaration.keyword == "const")
        else {
            return Ok(None);
        };
        if let Some(&value) = self.integers.get(name) {
            return Ok(value);
        }
        self.integers.insert(name, None);
        let (equals, end) = self.initialiser(declaration.token + 1);
        let value = self.with_locals_hidden(|this| this.integer(equals + 1, end))?;
        self.integers.insert(name, value);
        Ok(value)
    }

    /// Splits `from..end` at commas outside brackets.
    fn split_at_commas(&self, from: usize, end: usize) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        let mut start = from;
        let mut i = from;
        while i < end {
            match (self.tokens[i].kind, self.text(i)) {
                (TokenKind::Open | TokenKind::TemplateStart, _) => i = self.after_bracket(i) - 1,
                (TokenKind::Symbol, ",") => {
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

/// Element-wise maximum.
fn max_by_level(mut a: NestedSizes, b: &NestedSizes) -> NestedSizes {
    a.resize(a.len().max(b.len()), 0);
    for (a, &b) in a.iter_mut().zip(b) {
        *a = (*a).max(b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;

    fn check(text: &str) -> Result<(), String> {
        scan(text, false).map(drop).map_err(|errors| errors[0].message.clone())
    }

    /// Constants that each contain the previous one `times` times.
    fn doubling(count: u32, times: usize) -> String {
        let wider =
            (1..count).map(|i| format!("const a{i} = array({});", vec![format!("a{}", i - 1); times].join(",")));
        format!("const a0 = array(1, 2);{}", wider.collect::<String>())
    }

    #[test]
    fn type_sizes_are_computed_through_names() {
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
            assert_eq!(check(text).is_ok(), fits, "{text}: {:?}", check(text));
        }
    }

    #[test]
    fn exponentially_growing_constants_are_rejected() {
        assert!(check(&doubling(10, 2)).is_ok());
        assert!(check(&doubling(30, 2)).unwrap_err().contains("too large"));
        assert!(check(&doubling(5, 30)).is_err());
        let in_function = |text: String| format!("fn f() {{ {text} }}");
        assert!(check(&in_function(doubling(30, 2))).is_err());
        // A name shadowed again and again in nested blocks.
        let nested = "{ const a = array(a, a);".repeat(40);
        assert!(check(&format!("fn f() {{ const a = array(1, 2); {nested} {} }}", "}".repeat(40))).is_err());
        // Uses add up.
        let table = format!("const t = array({});", vec!["1u"; 1000].join(","));
        let uses = |n: usize| format!("{table} fn f(i: u32) -> u32 {{ return {}; }}", vec!["t[i]"; n].join(","));
        assert!(check(&uses(900)).is_ok());
        assert!(check(&uses(1100)).is_err());
    }

    #[test]
    fn rebuilding_structures_from_members_does_not_grow() {
        let steps = (1..200).map(|i| format!("let s{i} = S(s{0}.a + s{0}.b, s{0}.b);", i - 1));
        let text =
            format!("struct S {{ a: u32, b: u32 }} fn f() {{ let s0 = S(1, 2); {} }}", steps.collect::<String>());
        assert_eq!(check(&text), Ok(()));
        let rows = (1..200).map(|i| format!("const c{i} = max(c{0}, c{0}) * c{0};", i - 1)).collect::<String>();
        assert_eq!(check(&format!("const c0 = 1;{rows}")), Ok(()));
    }
}
