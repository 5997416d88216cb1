//! Checks of a text's tokens before naga's recursive parser and lowering see it: nothing nests
//! deeper than they support, the text is complete (the prelude follows it), and it declares none of
//! the prelude's names.
//!
//! Depths are exact where it matters: an expression's depth is that of its syntax tree, built with
//! the parser's precedences, so that `a + b + c` counts as deep as the tree that naga walks.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::LazyLock;

use super::declaration::{DECLARATION_KEYWORDS, Declaration};
use super::expanded_size::check_expanded_sizes;
use super::lexer::{Token, TokenKind, tokenize};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::map;
use portcullis_core::program::map_declarations::{self, CommentSyntax};
use portcullis_core::program::prelude;

/// Maximum depth of an expression, and of nested blocks, where every `else if` counts as one level.
pub const MAX_DEPTH: usize = 256;

/// Maximum number of open brackets of any kind. naga's parser gives up at 200 and reports no place.
pub const MAX_BRACKETS: usize = 192;

/// Maximum number of declarations at module scope; some of naga's passes take time quadratic in it.
pub const MAX_DECLARATIONS: usize = 8_192;

/// Checks a filter's text and returns its module-scope declarations. `has_maps` adds the names of
/// the map functions to the prelude's.
///
/// # Errors
/// All misused names, or the first error of another kind.
pub(super) fn scan(source: &str, has_maps: bool) -> Result<Vec<Declaration>, Vec<Diagnostic>> {
    let tokens = tokenize(source).map_err(|error| vec![error])?;
    let declared = ShapeChecker::new(source, &tokens).run().map_err(|error| vec![error])?;
    let errors = check_names(source, &tokens, &declared, has_maps);
    if !errors.is_empty() {
        return Err(errors);
    }
    check_expanded_sizes(source, &tokens, &declared).map_err(|error| vec![error])?;
    Ok(declared)
}

/// Reports reserved names that are used and prelude names that are declared.
fn check_names(source: &str, tokens: &[Token], declared: &[Declaration], has_maps: bool) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for token in tokens.iter().filter(|t| t.kind == TokenKind::Word) {
        let name = token.text(source);
        if name.starts_with(prelude::RESERVED_PREFIX) && seen.insert(name) {
            errors.push(
                Diagnostic::new(format!("the name `{name}` is reserved"))
                    .at(token.range(), "")
                    .note(format!("names that start with `{}` belong to the prelude", prelude::RESERVED_PREFIX)),
            );
        }
    }
    let prelude: &PreludeNames = if has_maps { &PRELUDE_NAMES_WITH_MAPS } else { &PRELUDE_NAMES };
    for declaration in declared {
        let name = &source[declaration.name.clone()];
        let error = if prelude.declared.contains(name) {
            Diagnostic::new(format!("`{name}` is a name of the prelude"))
                .at(declaration.name.clone(), "redeclared here")
                .note("the prelude is compiled into every filter; choose another name")
        } else if prelude.builtins_used.contains(name) {
            Diagnostic::new(format!("`{name}` cannot be declared at module scope"))
                .at(declaration.name.clone(), "")
                .note(format!("the prelude, which is compiled into every filter, uses WGSL's own `{name}`"))
        } else {
            continue;
        };
        errors.push(error);
    }
    errors
}

/// Names in the prelude's text.
struct PreludeNames {
    /// Declared at module scope.
    declared: HashSet<&'static str>,
    /// WGSL's own names that the prelude uses; a filter that declares them would break it.
    builtins_used: HashSet<&'static str>,
}

static PRELUDE_NAMES: LazyLock<PreludeNames> = LazyLock::new(|| PreludeNames::of(prelude::TEXT));

/// Names of the prelude with maps of every kind: a filter that has any map must not redeclare what
/// their functions use.
static PRELUDE_NAMES_WITH_MAPS: LazyLock<PreludeNames> = LazyLock::new(|| {
    let kinds = map::MapKind::ALL.into_iter().zip(1..);
    let maps: String = kinds.map(|(kind, number)| map_declarations::example_declaration(kind, number)).collect();
    let maps = map_declarations::declarations(&maps, CommentSyntax::Wgsl).expect("the example maps parse");
    PreludeNames::of(format!("{}{}", prelude::TEXT, map::wgsl_text(&maps)).leak())
});

impl PreludeNames {
    fn of(source: &'static str) -> PreludeNames {
        let tokens = tokenize(source).expect("the prelude lexes");
        let declared = ShapeChecker::new(source, &tokens).run().expect("the prelude passes the shape checks");
        let declared: HashSet<&str> = declared.into_iter().map(|d| &source[d.name]).collect();
        let text = |i: usize| tokens.get(i).map_or("", |t| t.text(source));
        // Local variables, parameters and members: `let x`, `var x` and `x:`.
        let local: HashSet<&str> = (0..tokens.len())
            .filter(|&i| text(i + 1) == ":" || (i > 0 && matches!(text(i - 1), "let" | "var")))
            .map(text)
            .collect();
        let keywords: HashSet<&str> = KEYWORDS.split(' ').collect();
        let builtins_used = (0..tokens.len())
            .filter(|&i| tokens[i].kind == TokenKind::Word && (i == 0 || !matches!(text(i - 1), "." | "@")))
            .map(text)
            .filter(|word| !keywords.contains(word) && !declared.contains(word) && !local.contains(word))
            .collect();
        PreludeNames { declared, builtins_used }
    }
}

/// WGSL's keywords (section 16.1), separated by spaces; no declaration can use them.
const KEYWORDS: &str = "\
    alias break case const const_assert continue continuing default diagnostic discard else enable \
    false fn for if let loop override requires return struct switch true var while";

/// An open bracket, or the module itself.
#[derive(Debug)]
struct Frame {
    /// `(`, `[`, `{` or `<`.
    open: char,
    /// Byte range of the bracket.
    span: Range<usize>,
    /// Index of the frame's first operator in [`ShapeChecker::operators`].
    base: usize,
    /// Depth of the operand just read.
    operand_depth: usize,
    /// Whether an operand comes next, so that `-` is a prefix operator.
    expects_operand: bool,
    /// Maximum depth of the comma-separated expressions.
    max_depth: usize,
    /// Whether the bracket follows an operand: call, index or template list.
    is_postfix: bool,
    /// Nesting depth of the block; every `else if` counts as one level.
    block_depth: usize,
    /// Number of `else` before the block in its statement.
    else_chain: usize,
}

/// Operator-precedence parser that computes depths without building a tree.
struct ShapeChecker<'a> {
    source: &'a str,
    tokens: &'a [Token],
    frames: Vec<Frame>,
    /// Operators whose right operand is incomplete: precedence, and depth of the left operand.
    operators: Vec<(u8, usize)>,
}

/// Precedence of prefix operators, above all others.
const PREFIX_PRECEDENCE: u8 = 11;

impl<'a> ShapeChecker<'a> {
    fn new(source: &'a str, tokens: &'a [Token]) -> ShapeChecker<'a> {
        ShapeChecker { source, tokens, frames: Vec::new(), operators: Vec::new() }
    }

    /// Checks all tokens and returns the declarations at module scope.
    fn run(mut self) -> Result<Vec<Declaration>, Diagnostic> {
        let mut declared = Vec::new();
        let mut naming = None;
        // Number of `else` before the next block, and before the block closed last.
        let (mut else_chain, mut closed_chain) = (0, 0);
        self.push('{', 0..0, false, 0, 0);
        for i in 0..self.tokens.len() {
            let token = self.tokens[i];
            let text = token.text(self.source);
            let previous = i.checked_sub(1).map_or("", |p| self.tokens[p].text(self.source));
            let at_module_scope = self.frames.len() == 1;
            match token.kind {
                TokenKind::Word => {
                    if at_module_scope {
                        if let Some(keyword) = DECLARATION_KEYWORDS.iter().find(|k| **k == text) {
                            naming = Some(*keyword);
                        } else if let Some(keyword) = naming.take() {
                            declared.push(Declaration { keyword, name: token.range(), token: i });
                            if declared.len() > MAX_DECLARATIONS {
                                let message = format!("more than {MAX_DECLARATIONS} declarations at module scope");
                                return Err(Diagnostic::new(message)
                                    .at(token.range(), "one too many")
                                    .note("put tables of constants into one `const` array"));
                            }
                        }
                    }
                    if text == "else" && previous == "}" {
                        else_chain = closed_chain + 1;
                    }
                    self.word(text, previous, token.range())?;
                }
                TokenKind::Number => self.operand(1),
                TokenKind::Open | TokenKind::TemplateStart => self.open(text, token, &mut else_chain)?,
                TokenKind::Close | TokenKind::TemplateEnd => {
                    let frame = self.close(text, token)?;
                    closed_chain = if text == "}" { frame.else_chain } else { 0 };
                }
                TokenKind::Symbol => {
                    if text == ";" {
                        else_chain = 0;
                    }
                    self.symbol(text, token.range())?;
                }
            }
        }
        if self.frames.len() > 1 {
            let frame = self.frames.pop().expect("more than one");
            return Err(Diagnostic::new(format!("this `{}` is never closed", frame.open))
                .at(frame.span, "opened here")
                .note("the text ends before the matching bracket"));
        }
        match self.tokens.last() {
            Some(last) if !matches!(last.text(self.source), ";" | "}") => {
                Err(Diagnostic::new("the text ends in the middle of a declaration")
                    .at(last.range(), "the last token")
                    .note("declarations end with `;` or `}`"))
            }
            _ => Ok(declared),
        }
    }

    fn top_frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the module's frame is never closed")
    }

    fn push(&mut self, open: char, span: Range<usize>, is_postfix: bool, block_depth: usize, else_chain: usize) {
        let base = self.operators.len();
        self.frames.push(Frame {
            open,
            span,
            base,
            operand_depth: 0,
            expects_operand: true,
            max_depth: 0,
            is_postfix,
            block_depth,
            else_chain,
        });
    }

    fn word(&mut self, text: &str, previous: &str, span: Range<usize>) -> Result<(), Diagnostic> {
        if previous == "." {
            return self.deepen(span);
        }
        if matches!(text, "return" | "if" | "while" | "switch" | "case" | "const_assert" | "else") {
            self.finish(span)?;
            let top = self.top_frame();
            (top.operand_depth, top.expects_operand) = (0, true);
        } else {
            self.operand(1);
        }
        Ok(())
    }

    fn operand(&mut self, depth: usize) {
        let top = self.top_frame();
        (top.operand_depth, top.expects_operand) = (depth, false);
    }

    /// Adds a node around the operand just read: `.member`.
    fn deepen(&mut self, span: Range<usize>) -> Result<(), Diagnostic> {
        let top = self.top_frame();
        top.operand_depth += 1;
        let depth = top.operand_depth;
        check_depth(depth, span)
    }

    fn open(&mut self, text: &str, token: Token, else_chain: &mut usize) -> Result<(), Diagnostic> {
        let span = token.range();
        let open = if token.kind == TokenKind::TemplateStart { '<' } else { text.chars().next().unwrap_or('(') };
        if self.frames.len() > MAX_BRACKETS {
            return Err(Diagnostic::new(format!("more than {MAX_BRACKETS} brackets are open here"))
                .at(span, format!("the {}th", MAX_BRACKETS + 1))
                .note("split the expression with `let`, or move blocks into functions"));
        }
        if open == '{' {
            self.finish(span.clone())?;
            let block_depth = self.top_frame().block_depth + 1 + *else_chain;
            if block_depth > MAX_DEPTH {
                let what =
                    if *else_chain > 0 { "this chain of `else if`s is too deep" } else { "blocks nest too deep" };
                return Err(Diagnostic::new(what)
                    .at(span, format!("{block_depth} levels deep, counting every `else if`"))
                    .note(format!(
                        "at most {MAX_DEPTH} are allowed: use `switch`, a loop over a table, or functions"
                    )));
            }
            self.push(open, span, false, block_depth, std::mem::take(else_chain));
        } else {
            let top = self.top_frame();
            let (is_postfix, block_depth) = (!top.expects_operand, top.block_depth);
            self.push(open, span, is_postfix, block_depth, 0);
        }
        Ok(())
    }

    fn close(&mut self, text: &str, token: Token) -> Result<Frame, Diagnostic> {
        let span = token.range();
        let matching = match text {
            ")" => '(',
            "]" => '[',
            "}" => '{',
            _ => '<',
        };
        let top = self.top_frame();
        let open = top.open;
        let opened = top.span.clone();
        if self.frames.len() == 1 {
            return Err(Diagnostic::new(format!("this `{text}` has no opening bracket")).at(span, ""));
        }
        if open != matching {
            return Err(Diagnostic::new(format!("`{text}` closes `{open}`"))
                .at(span, "here")
                .at(opened, format!("this `{open}`")));
        }
        self.finish(span.clone())?;
        let frame = self.frames.pop().expect("more than one");
        if open == '{' {
            let top = self.top_frame();
            (top.operand_depth, top.expects_operand) = (0, true);
        } else {
            let top = self.top_frame();
            let depth = if frame.is_postfix { top.operand_depth.max(frame.max_depth) } else { frame.max_depth } + 1;
            (top.operand_depth, top.expects_operand) = (depth, false);
            check_depth(depth, span)?;
        }
        Ok(frame)
    }

    fn symbol(&mut self, text: &str, span: Range<usize>) -> Result<(), Diagnostic> {
        let precedence = match text {
            "." => return Ok(()),
            "-" | "!" | "~" | "*" | "&" if self.top_frame().expects_operand => {
                self.operators.push((PREFIX_PRECEDENCE, 0));
                return check_depth(self.operators.len() - self.top_frame().base, span);
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
                self.finish(span)?;
                let top = self.top_frame();
                (top.operand_depth, top.expects_operand) = (0, true);
                return Ok(());
            }
        };
        self.reduce(precedence, span)?;
        let operand_depth = self.top_frame().operand_depth;
        self.operators.push((precedence, operand_depth));
        self.top_frame().expects_operand = true;
        Ok(())
    }

    /// Completes all pending operators of at least this precedence.
    fn reduce(&mut self, precedence: u8, span: Range<usize>) -> Result<(), Diagnostic> {
        let base = self.top_frame().base;
        while self.operators.len() > base {
            let &(waiting, left) = self.operators.last().expect("longer than its base");
            if waiting < precedence {
                break;
            }
            self.operators.pop();
            let top = self.top_frame();
            top.operand_depth = top.operand_depth.max(left) + 1;
            let depth = top.operand_depth;
            check_depth(depth, span.clone())?;
        }
        Ok(())
    }

    /// Completes the current expression.
    fn finish(&mut self, span: Range<usize>) -> Result<(), Diagnostic> {
        self.reduce(0, span)?;
        let top = self.top_frame();
        top.max_depth = top.max_depth.max(top.operand_depth);
        Ok(())
    }
}

fn check_depth(depth: usize, span: Range<usize>) -> Result<(), Diagnostic> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Diagnostic::new("this expression is too deep")
        .at(span, format!("more than {MAX_DEPTH} operations deep"))
        .note("every operator of a chain like `a + b + c` adds one level: split it with `let`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_plain(source: &str) -> Result<Vec<Declaration>, Vec<Diagnostic>> {
        scan(source, false)
    }

    #[test]
    fn prelude_uses_few_wgsl_builtins() {
        let mut builtins_used: Vec<_> = PRELUDE_NAMES.builtins_used.iter().copied().collect();
        builtins_used.sort_unstable();
        assert_eq!(
            builtins_used,
            ["array", "bool", "i32", "private", "read", "read_write", "storage", "u32", "vec2"],
            "what a filter may not declare at module scope"
        );
        for (name, _) in prelude::FUNCTIONS {
            assert!(PRELUDE_NAMES.declared.contains(name), "{name}");
        }
        assert!(PRELUDE_NAMES.declared.contains("XDP_PASS") && PRELUDE_NAMES.declared.contains("pc_arena"));
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

    /// The smallest n for which `make(n)` is rejected.
    fn limit(make: impl Fn(usize) -> String) -> usize {
        (1..600).find(|&n| scan_plain(&format!("const x = {};", make(n))).is_err()).expect("a limit")
    }

    #[test]
    fn depth_matches_the_syntax_tree() {
        // A chain of n operators, or n prefix operators, is n + 1 deep.
        assert_eq!(limit(|n| format!("1{}", "+1".repeat(n))), 256);
        assert_eq!(limit(|n| format!("{}true", "!".repeat(n))), 256);
        assert_eq!(limit(|n| format!("a{}", ".b".repeat(n))), 256);
        assert_eq!(limit(|n| format!("a{}", "[0]".repeat(n))), 256);
        // The chain of 100 `*` is 101 deep; each `+` adds one.
        assert_eq!(limit(|n| format!("1{}", "*1".repeat(100) + &"+1*1".repeat(n))), 156);
        // Commas separate trees.
        assert!(scan_plain(&format!("const x = array({});", "1+1,".repeat(1000))).is_ok());
        // Brackets have a limit of their own.
        assert_eq!(limit(|n| format!("{}1{}", "(".repeat(n), ")".repeat(n))), MAX_BRACKETS + 1);
    }

    #[test]
    fn else_ifs_count_as_nesting() {
        let chain = |n: usize| format!("fn f() {{ if a {{}} {} }}", "else if a {} ".repeat(n));
        // The function's body is the first level, the `if`'s block the second.
        assert!(scan_plain(&chain(254)).is_ok());
        let error = &scan_plain(&chain(255)).unwrap_err()[0];
        assert!(error.message.contains("else if"), "{error:?}");
        // Consecutive chains do not add up; nested ones do.
        let twice = format!("fn f() {{ {0} {0} }}", format!("if a {{}} {}", "else if a {} ".repeat(200)));
        assert!(scan_plain(&twice).is_ok());
        let inner = format!("if a {{}} {}", "else if a {} ".repeat(100));
        let nested = format!("fn f() {{ if a {{}} {} else {{ {inner} }} }}", "else if a {} ".repeat(200));
        assert!(scan_plain(&nested).is_err());
    }
}
