//! C expressions as text, with parentheses by precedence.

/// Precedence of an expression, as far as this writer distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// Names, literals, calls, members, anything in parentheses.
    Atom,
    /// Casts, `!`, `~`, `-`.
    Unary,
    /// `* / %`
    Product,
    /// `+ -`
    Sum,
    /// `== != < <= > >=`
    Comparison,
    /// `<< >> & | ^ && ||`, by operator: different ones are always parenthesised, although C does
    /// not require it.
    Other(&'static str),
    /// `? :`
    Conditional,
}

#[derive(Debug, Clone)]
pub(crate) struct CExpr {
    pub text: String,
    pub level: Precedence,
}

impl CExpr {
    pub fn atom(text: impl Into<String>) -> CExpr {
        CExpr { text: text.into(), level: Precedence::Atom }
    }

    /// A function call.
    pub fn call(name: &str, arguments: &[CExpr]) -> CExpr {
        let arguments: Vec<&str> = arguments.iter().map(|a| a.text.as_str()).collect();
        CExpr::atom(format!("{name}({})", arguments.join(", ")))
    }

    /// `(ty)value`
    pub fn cast(ty: &str, value: CExpr) -> CExpr {
        CExpr { text: format!("({ty}){}", value.parenthesized()), level: Precedence::Unary }
    }

    /// A prefix operator.
    pub fn unary(operator: &str, value: CExpr) -> CExpr {
        let value = if value.level == Precedence::Atom { value.text } else { format!("({})", value.text) };
        CExpr { text: format!("{operator}{value}"), level: Precedence::Unary }
    }

    /// A binary operator.
    pub fn binary(operator: &'static str, left: CExpr, right: CExpr) -> CExpr {
        let level = match operator {
            "*" | "/" | "%" => Precedence::Product,
            "+" | "-" => Precedence::Sum,
            "==" | "!=" | "<" | "<=" | ">" | ">=" => Precedence::Comparison,
            other => Precedence::Other(other),
        };
        // Left-associative: `a - b - c` is `(a - b) - c`, and a right operand of the same level
        // keeps its parentheses.
        let chains = matches!(operator, "*" | "+" | "-" | "&" | "|" | "^" | "&&" | "||");
        let left_open = match (left.level, level) {
            (Precedence::Atom | Precedence::Unary, _) => true,
            (Precedence::Product, Precedence::Product) => chains && !left.text.contains(['/', '%']),
            (Precedence::Product, Precedence::Sum | Precedence::Comparison)
            | (Precedence::Sum, Precedence::Comparison) => true,
            (Precedence::Comparison, Precedence::Other("&&" | "||")) => true,
            (a, b) => a == b && chains,
        };
        let right_open = matches!(
            (right.level, level),
            (Precedence::Atom | Precedence::Unary, _)
                | (Precedence::Product, Precedence::Sum | Precedence::Comparison)
                | (Precedence::Sum, Precedence::Comparison)
                | (Precedence::Comparison, Precedence::Other("&&" | "||"))
        );
        let side = |value: CExpr, open| if open { value.text } else { format!("({})", value.text) };
        CExpr { text: format!("{} {operator} {}", side(left, left_open), side(right, right_open)), level }
    }

    /// `condition ? accept : reject`
    pub fn conditional(condition: CExpr, accept: CExpr, reject: CExpr) -> CExpr {
        let side = |value: CExpr| {
            if value.level == Precedence::Conditional { format!("({})", value.text) } else { value.text }
        };
        let text = format!("{} ? {} : {}", side(condition), side(accept), side(reject));
        CExpr { text, level: Precedence::Conditional }
    }

    /// The text as an operand of a cast or a member access.
    pub fn parenthesized(self) -> String {
        match self.level {
            Precedence::Atom | Precedence::Unary => self.text,
            _ => format!("({})", self.text),
        }
    }

    /// Appends a suffix: `.x`, `[i]`.
    pub fn with(self, suffix: &str) -> CExpr {
        let text = if self.level == Precedence::Atom { self.text } else { format!("({})", self.text) };
        CExpr::atom(text + suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_are_written_where_needed_or_helpful() {
        let [a, b, c] = ["a", "b", "c"].map(CExpr::atom);
        let two = |op, x: &CExpr, y: &CExpr| CExpr::binary(op, x.clone(), y.clone());
        for (text, want) in [
            (two("-", &two("-", &a, &b), &c), "a - b - c"),
            (two("-", &a, &two("-", &b, &c)), "a - (b - c)"),
            (two("+", &a, &two("*", &b, &c)), "a + b * c"),
            (two("*", &two("+", &a, &b), &c), "(a + b) * c"),
            (two("/", &a, &two("*", &b, &c)), "a / (b * c)"),
            (two("*", &two("/", &a, &b), &c), "(a / b) * c"),
            (two("|", &two("&", &a, &b), &c), "(a & b) | c"),
            (two("&", &two("&", &a, &b), &c), "a & b & c"),
            (two("==", &two("&", &a, &b), &c), "(a & b) == c"),
            (two("==", &two("==", &a, &b), &c), "(a == b) == c"),
            (two("&&", &two("==", &a, &b), &two("<", &b, &c)), "a == b && b < c"),
            (two("&&", &two("||", &a, &b), &c), "(a || b) && c"),
            (two("<<", &two("<<", &a, &b), &c), "(a << b) << c"),
            (CExpr::unary("-", CExpr::unary("-", a.clone())), "-(-a)"),
            (CExpr::cast("int", two("+", &a, &b)), "(int)(a + b)"),
            (CExpr::cast("int", CExpr::cast("uint", a.clone())), "(int)(uint)a"),
            (CExpr::cast("int", a.clone()).with(".x"), "((int)a).x"),
        ] {
            assert_eq!(text.text, want);
        }
    }
}
