//! Spelling suggestions: the known name closest to a misspelt one.
//!
//! The distance is computed here and not by a crate, so that the library for the CPU stays below 90
//! crates, which `cargo xtask test` checks.

use std::borrow::Borrow;

/// Maximum length in characters of names that are compared, since the cost is quadratic.
const MAX_NAME_CHARS: usize = 64;

/// Returns the name in `known` closest to `name`, ignoring case, if it is at most one edit per four
/// characters away. Of equally close names, the first in alphabetical order.
pub fn nearest<T: Borrow<str>>(name: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let letters = |name: &str| name.chars().take(MAX_NAME_CHARS + 1).flat_map(char::to_lowercase).collect::<Vec<_>>();
    let target = letters(name);
    let max_edits = match target.len() {
        0..3 => return None,
        length if length > MAX_NAME_CHARS => return None,
        length => length.div_ceil(4),
    };
    let near = known.into_iter().filter_map(|candidate| {
        let other = letters(candidate.borrow());
        let is_other = candidate.borrow() != name && other.len().abs_diff(target.len()) <= max_edits;
        let edits = is_other.then(|| edit_distance(&target, &other)).filter(|edits| *edits <= max_edits)?;
        Some((edits, candidate))
    });
    let best = near.min_by(|(a, x), (b, y)| (a, x.borrow()).cmp(&(b, y.borrow())));
    best.map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance: insertions, deletions, substitutions and transpositions of
/// adjacent characters, where no character is edited twice.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    // Three rows of the distance table between prefixes: the one before the previous, the previous,
    // and the current.
    let mut before_previous: Vec<usize> = vec![0; b.len() + 1];
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let substituted = previous[j] + usize::from(x != y);
            let mut distance = substituted.min(previous[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                distance = distance.min(before_previous[j - 1] + 1);
            }
            row.push(distance);
        }
        before_previous = std::mem::replace(&mut previous, row);
    }
    previous[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_every_kind_of_edit() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abd", 1),
            ("abc", "acb", 1),
            ("abc", "ac", 1),
            ("ac", "abc", 1),
            ("kitten", "sitting", 3),
            // No character is edited twice: by way of `ac` the distance would be two.
            ("ca", "abc", 3),
        ] {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(edit_distance(&letters(a), &letters(b)), wanted, "{a} {b}");
        }
    }

    #[test]
    fn only_close_names_are_suggested() {
        let known = ["load_be16", "load_be32", "load_le16", "min", "max", "XDP_DROP"];
        for (name, wanted) in [
            ("load_be_16", Some("load_be16")),
            ("laod_be32", Some("load_be32")),
            ("load_xe16", Some("load_be16")),
            ("xdp_drp", Some("XDP_DROP")),
            // `min` is equally close; `max` comes first.
            ("mix", Some("max")),
            ("mi", None),
            ("nowhere", None),
            ("store_be16", None),
        ] {
            assert_eq!(nearest(name, known), wanted, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(MAX_NAME_CHARS + 1), ["x"]), None);
    }
}
