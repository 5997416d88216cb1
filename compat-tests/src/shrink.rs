//! Making a failing filter small enough to read.

/// Takes lines out of `text`, one statement or block at a time, as long as `fails` still says so of
/// what is left; also takes away what is around a block and leaves what is in it. `fails` is false
/// for what does not compile, so nothing has to be known of the language but its braces.
pub fn shrink(text: &str, fails: impl Fn(&str) -> bool) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    loop {
        let before = lines.len();
        let mut at = lines.len();
        // From the end: what is declared early is used later.
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

/// Where the statement that begins at line `at` has the end of its first branch (`}` or `} else {`),
/// and one past its last line; `None` where no statement begins.
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
    fn what_does_not_matter_goes() {
        let text = "fn a() {\n    if x {\n        keep;\n        go;\n    } else {\n        go;\n    }\n}\nfn b() {\n    go;\n}";
        // Braces have to match, as a compiler would have it, and the line to keep has to stay.
        let valid = |text: &str| text.matches('{').count() == text.matches('}').count();
        let small = shrink(text, |text| valid(text) && text.contains("keep;"));
        assert_eq!(small.trim(), "keep;");
        let with_function = shrink(text, |text| valid(text) && text.contains("keep;") && text.contains("fn a"));
        assert_eq!(with_function, "fn a() {\n        keep;\n}");
    }

    #[test]
    fn what_does_not_fail_in_part_stays_whole() {
        let text = "a;\nb;\nc;";
        assert_eq!(shrink(text, |smaller| smaller == text), text);
    }
}
