//! What is checked on a text's tokens before naga's recursive parser and lowering see it: that
//! nothing nests deeper than they can take, that the text is whole (the prelude stands behind it),
//! and that it leaves the prelude's names alone.
//!
//! Depth is exact where it matters: an expression's depth is that of its syntax tree, with the
//! parser's precedences, so that `a + b + c` counts as deep as the tree that naga walks.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::LazyLock;

use super::tokens::{Kind, Token, tokens};
use super::weigh::weigh;
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::map;
use portcullis_core::map::declare::Comments;
use portcullis_core::program::prelude;

/// How deep an expression may be, and how deep blocks may nest, every `else if` counting as one.
pub const MAX_DEPTH: usize = 256;

/// How many brackets of any kind may be open in one place. naga's parser gives up at 200 and cannot
/// say where.
pub const MAX_BRACKETS: usize = 192;

/// How many declarations there may be at module scope: some of naga's passes take time in the square
/// of their number.
pub const MAX_DECLARATIONS: usize = 8_192;

/// A declaration at module scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    /// `fn`, `const` and so on.
    pub keyword: &'static str,
    /// The name's bytes in the text.
    pub name: Range<usize>,
    /// The name's number among the tokens.
    pub token: usize,
}

/// The words that declare something at module scope.
pub(super) const DECLARING: [&str; 6] = ["fn", "struct", "alias", "const", "override", "var"];

/// Checks the text of a filter, which has maps or not.
///
/// # Errors
/// All reserved names used, or the first thing that is wrong with the text's shape.
pub(super) fn scan(source: &str, has_maps: bool) -> Result<Vec<Declared>, Vec<Diagnostic>> {
    let tokens = tokens(source).map_err(|error| vec![error])?;
    let declared = Scan::new(source, &tokens).run().map_err(|error| vec![error])?;
    let errors = names(source, &tokens, &declared, has_maps);
    if !errors.is_empty() {
        return Err(errors);
    }
    weigh(source, &tokens, &declared).map_err(|error| vec![error])?;
    Ok(declared)
}

/// Reserved names used, and prelude names declared.
fn names(source: &str, tokens: &[Token], declared: &[Declared], has_maps: bool) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for token in tokens.iter().filter(|t| t.kind == Kind::Word) {
        let name = token.text(source);
        if name.starts_with(prelude::RESERVED_PREFIX) && seen.insert(name) {
            errors.push(
                Diagnostic::new(format!("the name `{name}` is reserved"))
                    .at(token.range(), "")
                    .note(format!("names that begin with `{}` are the prelude's own", prelude::RESERVED_PREFIX)),
            );
        }
    }
    let prelude: &PreludeNames = if has_maps { &WITH_MAPS } else { &PRELUDE };
    for declaration in declared {
        let name = &source[declaration.name.clone()];
        let error = if prelude.declared.contains(name) {
            Diagnostic::new(format!("`{name}` is a name of the prelude"))
                .at(declaration.name.clone(), "declared again here")
                .note("the prelude is part of every filter; choose another name")
        } else if prelude.relied_on.contains(name) {
            Diagnostic::new(format!("`{name}` cannot be declared at module scope"))
                .at(declaration.name.clone(), "")
                .note(format!("the prelude, which is part of every filter, relies on WGSL's own `{name}`"))
        } else {
            continue;
        };
        errors.push(error);
    }
    errors
}

/// The names in the prelude's text.
struct PreludeNames {
    /// Declared at module scope.
    declared: HashSet<&'static str>,
    /// Used and not declared anywhere in it: WGSL's own.
    relied_on: HashSet<&'static str>,
}

static PRELUDE: LazyLock<PreludeNames> = LazyLock::new(|| PreludeNames::of(prelude::TEXT));

/// The same with maps of every kind: what they rely on stays WGSL's own in a filter that has any.
static WITH_MAPS: LazyLock<PreludeNames> = LazyLock::new(|| {
    let kinds = map::Kind::ALL.into_iter().zip(1..);
    let maps: String = kinds.map(|(kind, number)| map::declare::example(kind, number)).collect();
    let maps = map::declare::declarations(&maps, Comments::Wgsl).expect("the examples are right");
    PreludeNames::of(format!("{}{}", prelude::TEXT, map::text(&maps)).leak())
});

impl PreludeNames {
    fn of(source: &'static str) -> PreludeNames {
        let tokens = tokens(source).expect("the prelude has tokens");
        let declared = Scan::new(source, &tokens).run().expect("the prelude is in shape");
        let declared: HashSet<&str> = declared.into_iter().map(|d| &source[d.name]).collect();
        let text = |i: usize| tokens.get(i).map_or("", |t| t.text(source));
        // Locals, parameters and members: `let x`, `var x` and `x:`.
        let local: HashSet<&str> = (0..tokens.len())
            .filter(|&i| text(i + 1) == ":" || (i > 0 && matches!(text(i - 1), "let" | "var")))
            .map(text)
            .collect();
        let relied_on = (0..tokens.len())
            .filter(|&i| tokens[i].kind == Kind::Word && (i == 0 || !matches!(text(i - 1), "." | "@")))
            .map(text)
            .filter(|word| !KEYWORDS.contains(word) && !declared.contains(word) && !local.contains(word))
            .collect();
        PreludeNames { declared, relied_on }
    }
}

/// WGSL's keywords (section 16.1), which no declaration can use anyway.
const KEYWORDS: [&str; 26] = [
    "alias",
    "break",
    "case",
    "const",
    "const_assert",
    "continue",
    "continuing",
    "default",
    "diagnostic",
    "discard",
    "else",
    "enable",
    "false",
    "fn",
    "for",
    "if",
    "let",
    "loop",
    "override",
    "requires",
    "return",
    "struct",
    "switch",
    "true",
    "var",
    "while",
];

/// An open bracket, or the module itself.
#[derive(Debug)]
struct Frame {
    /// `(`, `[`, `{` or `<`.
    open: char,
    /// The bracket's bytes.
    place: Range<usize>,
    /// Where this frame's operators begin in [`Scan::operators`].
    base: usize,
    /// The depth of the operand just read.
    operand: usize,
    /// Whether an operand comes next.
    expecting: bool,
    /// The deepest of the expressions separated by commas.
    deepest: usize,
    /// Whether the bracket follows an operand: a call, an index, a template list.
    postfix: bool,
    /// How deep the block is, every `else if` counting as one.
    block: usize,
    /// How many `else` lie before the block in its statement.
    chain: usize,
}

struct Scan<'a> {
    source: &'a str,
    tokens: &'a [Token],
    frames: Vec<Frame>,
    /// Operators whose right operand is not complete: precedence and the left operand's depth.
    operators: Vec<(u8, usize)>,
}

/// Prefix operators bind closer than all others.
const PREFIX: u8 = 11;

impl<'a> Scan<'a> {
    fn new(source: &'a str, tokens: &'a [Token]) -> Scan<'a> {
        Scan { source, tokens, frames: Vec::new(), operators: Vec::new() }
    }

    /// Walks over the tokens and gathers what is declared at module scope.
    fn run(mut self) -> Result<Vec<Declared>, Diagnostic> {
        let mut declared = Vec::new();
        let mut naming = None;
        // How many `else` lie before the next block; and before the block that was just closed.
        let (mut chain, mut closed_chain) = (0, 0);
        self.push('{', 0..0, false, 0, 0);
        for i in 0..self.tokens.len() {
            let token = self.tokens[i];
            let text = token.text(self.source);
            let previous = i.checked_sub(1).map_or("", |p| self.tokens[p].text(self.source));
            let at_module_scope = self.frames.len() == 1;
            match token.kind {
                Kind::Word => {
                    if at_module_scope {
                        if let Some(keyword) = DECLARING.iter().find(|k| **k == text) {
                            naming = Some(*keyword);
                        } else if let Some(keyword) = naming.take() {
                            declared.push(Declared { keyword, name: token.range(), token: i });
                            if declared.len() > MAX_DECLARATIONS {
                                let message = format!("more than {MAX_DECLARATIONS} declarations at module scope");
                                return Err(Diagnostic::new(message)
                                    .at(token.range(), "one too many")
                                    .note("tables of constants are better as one `const` array"));
                            }
                        }
                    }
                    if text == "else" && previous == "}" {
                        chain = closed_chain + 1;
                    }
                    self.word(text, previous, token.range())?;
                }
                Kind::Number => self.operand(1),
                Kind::Open | Kind::TemplateStart => self.open(text, token, &mut chain)?,
                Kind::Close | Kind::TemplateEnd => {
                    let frame = self.close(text, token)?;
                    closed_chain = if text == "}" { frame.chain } else { 0 };
                }
                Kind::Symbol => {
                    if text == ";" {
                        chain = 0;
                    }
                    self.symbol(text, token.range())?;
                }
            }
        }
        if self.frames.len() > 1 {
            let frame = self.frames.pop().expect("more than one");
            return Err(Diagnostic::new(format!("this `{}` is never closed", frame.open))
                .at(frame.place, "opened here")
                .note("the text ends before it"));
        }
        match self.tokens.last() {
            Some(last) if !matches!(last.text(self.source), ";" | "}") => {
                Err(Diagnostic::new("the text ends in the middle of a declaration")
                    .at(last.range(), "the last thing there is")
                    .note("declarations end with `;` or `}`"))
            }
            _ => Ok(declared),
        }
    }

    fn top(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the module's frame is never closed")
    }

    fn push(&mut self, open: char, place: Range<usize>, postfix: bool, block: usize, chain: usize) {
        let base = self.operators.len();
        self.frames.push(Frame { open, place, base, operand: 0, expecting: true, deepest: 0, postfix, block, chain });
    }

    fn word(&mut self, text: &str, previous: &str, place: Range<usize>) -> Result<(), Diagnostic> {
        if previous == "." {
            return self.deepen(place);
        }
        if matches!(text, "return" | "if" | "while" | "switch" | "case" | "const_assert" | "else") {
            self.finish(place)?;
            let top = self.top();
            (top.operand, top.expecting) = (0, true);
        } else {
            self.operand(1);
        }
        Ok(())
    }

    fn operand(&mut self, depth: usize) {
        let top = self.top();
        (top.operand, top.expecting) = (depth, false);
    }

    /// One more node around the operand just read: `.member`.
    fn deepen(&mut self, place: Range<usize>) -> Result<(), Diagnostic> {
        let top = self.top();
        top.operand += 1;
        let depth = top.operand;
        too_deep(depth, place)
    }

    fn open(&mut self, text: &str, token: Token, chain: &mut usize) -> Result<(), Diagnostic> {
        let place = token.range();
        let open = if token.kind == Kind::TemplateStart { '<' } else { text.chars().next().unwrap_or('(') };
        if self.frames.len() > MAX_BRACKETS {
            return Err(Diagnostic::new(format!("more than {MAX_BRACKETS} brackets are open here"))
                .at(place, format!("the {}th", MAX_BRACKETS + 1))
                .note("split the expression with `let`, or move blocks into functions"));
        }
        if open == '{' {
            self.finish(place.clone())?;
            let block = self.top().block + 1 + *chain;
            if block > MAX_DEPTH {
                let what = if *chain > 0 { "this chain of `else if`s is too deep" } else { "blocks nest too deep" };
                return Err(Diagnostic::new(what)
                    .at(place, format!("{block} deep, every `else if` counting as one"))
                    .note(format!("at most {MAX_DEPTH}: use `switch`, a loop over a table, or functions")));
            }
            self.push(open, place, false, block, std::mem::take(chain));
        } else {
            let top = self.top();
            let (postfix, block) = (!top.expecting, top.block);
            self.push(open, place, postfix, block, 0);
        }
        Ok(())
    }

    fn close(&mut self, text: &str, token: Token) -> Result<Frame, Diagnostic> {
        let place = token.range();
        let matching = match text {
            ")" => '(',
            "]" => '[',
            "}" => '{',
            _ => '<',
        };
        let top = self.top();
        let open = top.open;
        let opened = top.place.clone();
        if self.frames.len() == 1 {
            return Err(Diagnostic::new(format!("nothing is open that this `{text}` could close")).at(place, ""));
        }
        if open != matching {
            return Err(Diagnostic::new(format!("`{text}` closes `{open}`"))
                .at(place, "here")
                .at(opened, format!("this `{open}`")));
        }
        self.finish(place.clone())?;
        let frame = self.frames.pop().expect("more than one");
        if open == '{' {
            let top = self.top();
            (top.operand, top.expecting) = (0, true);
        } else {
            let top = self.top();
            let depth = if frame.postfix { top.operand.max(frame.deepest) } else { frame.deepest } + 1;
            (top.operand, top.expecting) = (depth, false);
            too_deep(depth, place)?;
        }
        Ok(frame)
    }

    fn symbol(&mut self, text: &str, place: Range<usize>) -> Result<(), Diagnostic> {
        let precedence = match text {
            "." => return Ok(()),
            "-" | "!" | "~" | "*" | "&" if self.top().expecting => {
                self.operators.push((PREFIX, 0));
                return too_deep(self.operators.len() - self.top().base, place);
            }
            "||" => 1,
            "&&" => 2,
            "|" => 3,
            "^" => 4,
            "&" => 5,
            "==" | "!=" => 6,
            "<" | ">" | "<=" | ">=" => 7,
            "<<" | ">>" => 8,
            "+" | "-" => 9,
            "*" | "/" | "%" => 10,
            _ => {
                self.finish(place)?;
                let top = self.top();
                (top.operand, top.expecting) = (0, true);
                return Ok(());
            }
        };
        self.reduce(precedence, place)?;
        let operand = self.top().operand;
        self.operators.push((precedence, operand));
        self.top().expecting = true;
        Ok(())
    }

    /// Builds the nodes of all waiting operators that bind at least as close as `precedence`.
    fn reduce(&mut self, precedence: u8, place: Range<usize>) -> Result<(), Diagnostic> {
        let base = self.top().base;
        while self.operators.len() > base {
            let &(waiting, left) = self.operators.last().expect("longer than its base");
            if waiting < precedence {
                break;
            }
            self.operators.pop();
            let top = self.top();
            top.operand = top.operand.max(left) + 1;
            let depth = top.operand;
            too_deep(depth, place.clone())?;
        }
        Ok(())
    }

    /// Ends the expression that is being read.
    fn finish(&mut self, place: Range<usize>) -> Result<(), Diagnostic> {
        self.reduce(0, place)?;
        let top = self.top();
        top.deepest = top.deepest.max(top.operand);
        Ok(())
    }
}

fn too_deep(depth: usize, place: Range<usize>) -> Result<(), Diagnostic> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Diagnostic::new("this expression is too deep")
        .at(place, format!("more than {MAX_DEPTH} operations deep here"))
        .note("a chain like `a + b + c` is one deeper with every operator: split it with `let`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_plain(source: &str) -> Result<Vec<Declared>, Vec<Diagnostic>> {
        scan(source, false)
    }

    #[test]
    fn the_prelude_relies_on_little_of_wgsl() {
        let mut relied_on: Vec<_> = PRELUDE.relied_on.iter().copied().collect();
        relied_on.sort_unstable();
        assert_eq!(
            relied_on,
            ["array", "bool", "i32", "private", "read", "read_write", "storage", "u32", "vec2"],
            "what a filter may not declare at module scope"
        );
        for (name, _) in prelude::FUNCTIONS {
            assert!(PRELUDE.declared.contains(name), "{name}");
        }
        assert!(PRELUDE.declared.contains("XDP_PASS") && PRELUDE.declared.contains("pc_arena"));
    }

    #[test]
    fn declarations_are_found_at_module_scope() {
        let source = "@must_use fn f(a: u32) -> u32 { const c = 1; var d = 2; return 1; }
            alias A = array<u32, 4>; struct S { m: u32 } const C: u32 = 1u; @id(3) override O: u32;
            var<private> v: array<u32, 4>; const_assert true;";
        let found: Vec<_> =
            scan_plain(source).unwrap().into_iter().map(|d| format!("{} {}", d.keyword, &source[d.name])).collect();
        assert_eq!(found, ["fn f", "alias A", "struct S", "const C", "override O", "var v"]);
    }

    /// The depth at which an expression is refused, found by making it deeper.
    fn limit(make: impl Fn(usize) -> String) -> usize {
        (1..600).find(|&n| scan_plain(&format!("const x = {};", make(n))).is_err()).expect("a limit")
    }

    #[test]
    fn depth_is_that_of_the_tree() {
        // A chain of n operators is n + 1 deep; n prefixes as well.
        assert_eq!(limit(|n| format!("1{}", "+1".repeat(n))), 256);
        assert_eq!(limit(|n| format!("{}true", "!".repeat(n))), 256);
        assert_eq!(limit(|n| format!("a{}", ".b".repeat(n))), 256);
        assert_eq!(limit(|n| format!("a{}", "[0]".repeat(n))), 256);
        // Closer operators lie deeper, but a chain ends with its operand: 101 deep and n more.
        assert_eq!(limit(|n| format!("1{}", "*1".repeat(100) + &"+1*1".repeat(n))), 156);
        // Commas separate trees.
        assert!(scan_plain(&format!("const x = array({});", "1+1,".repeat(1000))).is_ok());
        // Brackets have their own limit.
        assert_eq!(limit(|n| format!("{}1{}", "(".repeat(n), ")".repeat(n))), MAX_BRACKETS + 1);
    }

    #[test]
    fn else_ifs_count_as_nesting() {
        let chain = |n: usize| format!("fn f() {{ if a {{}} {} }}", "else if a {} ".repeat(n));
        // The function's body is the first block, the `if`'s the second.
        assert!(scan_plain(&chain(254)).is_ok());
        let error = &scan_plain(&chain(255)).unwrap_err()[0];
        assert!(error.message.contains("else if"), "{error:?}");
        // Two chains one after the other do not add up; one in another does.
        let twice = format!("fn f() {{ {0} {0} }}", format!("if a {{}} {}", "else if a {} ".repeat(200)));
        assert!(scan_plain(&twice).is_ok());
        let inner = format!("if a {{}} {}", "else if a {} ".repeat(100));
        let nested = format!("fn f() {{ if a {{}} {} else {{ {inner} }} }}", "else if a {} ".repeat(200));
        assert!(scan_plain(&nested).is_err());
    }
}
