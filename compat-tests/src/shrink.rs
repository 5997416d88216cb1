//! Test-case reduction: makes a failing filter small enough to read.

/// Removes statements and blocks from `text` while `fails` accepts the rest; also replaces a block
/// by its body. `fails` must reject text that does not compile, so the reduction needs to know
/// nothing of the language but its braces.
pub fn shrink(text: &str, fails: impl Fn(&str) -> bool) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    loop {
        let before = lines.len();
        let mut at = lines.len();
        // Go backwards, because later lines use earlier declarations.
        while at > 0 {
            at -= 1;
            let Some((branch, end)) = extent(&lines, at) else { continue };
            let (head, rest) = (&lines[..at], &lines[end..]);
            let without = [head, rest].concat();
            let inside = [head, lines.get(at + 1..branch).unwrap_or_default(), rest].concat();
            let first_branch = [&lines[..branch.max(at + 1)], &lines[end - 1..]].concat();
            for smaller in [without, inside, first_branch] {
                if smaller.len() < lines.len() && fails(&smaller.join("\n")) {
                    lines = smaller;
                    at = at.min(lines.len());
                    break;
                }
            }
        }
        if lines.len() == before {
            return lines.join("\n");
        }
    }
}

/// Returns the line that ends the first branch of the statement at line `at` (`}` or `} else {`),
/// and one past its last line. `None` if no statement begins there.
fn extent(lines: &[&str], at: usize) -> Option<(usize, usize)> {
    if lines[at].trim_start().starts_with('}') {
        return None;
    }
    let mut depth = 0i32;
    let mut branch = None;
    for (index, line) in lines.iter().enumerate().skip(at) {
        if depth == 1 && line.trim_start().starts_with('}') {
            branch.get_or_insert(index);
        }
        depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
        if depth <= 0 {
            return (depth == 0).then_some((branch.unwrap_or(index), index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn irrelevant_statements_are_removed() {
        let text = "fn a() {\n    if x {\n        keep;\n        go;\n    } else {\n        go;\n    }\n}\nfn b() {\n    go;\n}";
        // Braces must balance, as for a compiler, and the marked line must stay.
        let valid = |text: &str| text.matches('{').count() == text.matches('}').count();
        let small = shrink(text, |text| valid(text) && text.contains("keep;"));
        assert_eq!(small.trim(), "keep;");
        let with_function = shrink(text, |text| valid(text) && text.contains("keep;") && text.contains("fn a"));
        assert_eq!(with_function, "fn a() {\n        keep;\n}");
    }

    #[test]
    fn statements_that_are_needed_stay() {
        let text = "a;\nb;\nc;";
        assert_eq!(shrink(text, |smaller| smaller == text), text);
    }
}
