//! Pieces of C expressions, and the parentheses around them.

/// How an expression binds, as far as this writer makes use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
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
    /// `<< >> & | ^ && ||`, by the operator: between different ones there are always parentheses.
    Other(&'static str),
    /// `? :`
    Choice,
}

#[derive(Debug, Clone)]
pub(crate) struct Text {
    pub text: String,
    pub level: Level,
}

impl Text {
    pub fn atom(text: impl Into<String>) -> Text {
        Text { text: text.into(), level: Level::Atom }
    }

    /// A call of a function.
    pub fn call(name: &str, arguments: &[Text]) -> Text {
        let arguments: Vec<&str> = arguments.iter().map(|a| a.text.as_str()).collect();
        Text::atom(format!("{name}({})", arguments.join(", ")))
    }

    /// `(ty)value`
    pub fn cast(ty: &str, value: Text) -> Text {
        Text { text: format!("({ty}){}", value.tight()), level: Level::Unary }
    }

    /// An operator in front.
    pub fn unary(operator: &str, value: Text) -> Text {
        let value = if value.level == Level::Atom { value.text } else { format!("({})", value.text) };
        Text { text: format!("{operator}{value}"), level: Level::Unary }
    }

    /// An operator between.
    pub fn binary(operator: &'static str, left: Text, right: Text) -> Text {
        let level = match operator {
            "*" | "/" | "%" => Level::Product,
            "+" | "-" => Level::Sum,
            "==" | "!=" | "<" | "<=" | ">" | ">=" => Level::Comparison,
            other => Level::Other(other),
        };
        // `a - b - c` is `(a - b) - c`; the right side of an operator of the same level keeps its parentheses.
        let chains = matches!(operator, "*" | "+" | "-" | "&" | "|" | "^" | "&&" | "||");
        let left_open = match (left.level, level) {
            (Level::Atom | Level::Unary, _) => true,
            (Level::Product, Level::Product) => chains && !left.text.contains(['/', '%']),
            (Level::Product, Level::Sum | Level::Comparison) | (Level::Sum, Level::Comparison) => true,
            (Level::Comparison, Level::Other("&&" | "||")) => true,
            (a, b) => a == b && chains,
        };
        let right_open = matches!(
            (right.level, level),
            (Level::Atom | Level::Unary, _)
                | (Level::Product, Level::Sum | Level::Comparison)
                | (Level::Sum, Level::Comparison)
                | (Level::Comparison, Level::Other("&&" | "||"))
        );
        let side = |value: Text, open| if open { value.text } else { format!("({})", value.text) };
        Text { text: format!("{} {operator} {}", side(left, left_open), side(right, right_open)), level }
    }

    /// `condition ? accept : reject`
    pub fn choice(condition: Text, accept: Text, reject: Text) -> Text {
        let side = |value: Text| if value.level == Level::Choice { format!("({})", value.text) } else { value.text };
        let text = format!("{} ? {} : {}", side(condition), side(accept), side(reject));
        Text { text, level: Level::Choice }
    }

    /// The text as an operand of a cast or a member access.
    pub fn tight(self) -> String {
        match self.level {
            Level::Atom | Level::Unary => self.text,
            _ => format!("({})", self.text),
        }
    }

    /// The text with something behind it: `.x`, `[i]`.
    pub fn with(self, suffix: &str) -> Text {
        let text = if self.level == Level::Atom { self.text } else { format!("({})", self.text) };
        Text::atom(text + suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_stand_where_they_must_and_where_they_help() {
        let [a, b, c] = ["a", "b", "c"].map(Text::atom);
        let two = |op, x: &Text, y: &Text| Text::binary(op, x.clone(), y.clone());
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
            (Text::unary("-", Text::unary("-", a.clone())), "-(-a)"),
            (Text::cast("int", two("+", &a, &b)), "(int)(a + b)"),
            (Text::cast("int", Text::cast("uint", a.clone())), "(int)(uint)a"),
            (Text::cast("int", a.clone()).with(".x"), "((int)a).x"),
        ] {
            assert_eq!(text.text, want);
        }
    }
}
