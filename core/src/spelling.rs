//! The name that a misspelt one may have been meant to be.

use std::borrow::Borrow;

/// The longest name that is compared, in characters: comparing takes the square of it.
const MAX_NAME: usize = 64;

/// Of `known`, the name that is nearest to `name`, if one is near: one slip in four characters, whatever
/// the case. Of several as near the first in the order of letters.
pub fn nearest<T: Borrow<str>>(name: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let letters = |name: &str| name.chars().take(MAX_NAME + 1).flat_map(char::to_lowercase).collect::<Vec<_>>();
    let wanted = letters(name);
    let most = match wanted.len() {
        0..3 => return None,
        length if length > MAX_NAME => return None,
        length => length.div_ceil(4),
    };
    let near = known.into_iter().filter_map(|candidate| {
        let other = letters(candidate.borrow());
        let is_other = candidate.borrow() != name && other.len().abs_diff(wanted.len()) <= most;
        let slips = is_other.then(|| slips(&wanted, &other)).filter(|slips| *slips <= most)?;
        Some((slips, candidate))
    });
    let best = near.min_by(|(a, x), (b, y)| (a, x.borrow()).cmp(&(b, y.borrow())));
    best.map(|(_, candidate)| candidate)
}

/// Letters put in, left out, replaced or exchanged with the next, each letter once at most: the optimal
/// string alignment distance.
fn slips(a: &[char], b: &[char]) -> usize {
    // Rows of the table of distances between beginnings: the one before the last, the last, this one.
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(x != y);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abd", 1),
            ("abc", "acb", 1),
            ("abc", "ac", 1),
            ("ac", "abc", 1),
            ("kitten", "sitting", 3),
            // No letter takes part in two slips: by way of `ac` it would be two.
            ("ca", "abc", 3),
        ] {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(slips(&letters(a), &letters(b)), wanted, "{a} {b}");
        }
    }

    #[test]
    fn what_is_near_is_found_and_nothing_else() {
        let known = ["load_be16", "load_be32", "load_le16", "min", "max", "XDP_DROP"];
        for (name, wanted) in [
            ("load_be_16", Some("load_be16")),
            ("laod_be32", Some("load_be32")),
            ("load_xe16", Some("load_be16")),
            ("xdp_drp", Some("XDP_DROP")),
            // As near to `min` is `max`.
            ("mix", Some("max")),
            ("mi", None),
            ("nowhere", None),
            ("store_be16", None),
        ] {
            assert_eq!(nearest(name, known), wanted, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(MAX_NAME + 1), ["x"]), None);
    }
}
