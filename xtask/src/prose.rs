//! `cargo xtask prose`: mechanical checks of the project's prose.
//!
//! Finds documentation whose first sentence does not stand by itself, comments and pages wider than
//! 100 columns, type names from a list of everyday words, pages of `docs/` missing from its index,
//! paths and links in pages that lead to no file, and dependencies of core on the project's other
//! crates. Meaning is left to reviewers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Maximum width of comments and of prose in pages, in characters. Code may be wider.
const MAX_COLUMNS: usize = 100;

/// First words of a rustdoc that only make sense after the item's name or the item before.
const OPENINGS: [&str; 17] = [
    "It",
    "The same",
    "What there is",
    "What came",
    "What is",
    "What it",
    "What was",
    "As many",
    "As above",
    "Those",
    "That",
    "These",
    "Its",
    "Whether it",
    "Judges",
    "The session's",
    "Most",
];

/// Beginnings that one of [`OPENINGS`] matches but that stand by themselves.
const DEFENDED_OPENINGS: [&str; 1] = ["Most significant"];

/// Type names that do not say what the type is, one a line.
const VAGUE_NAMES: &str = include_str!("prose/vague_names.txt");

/// Vague names that are right where they are: `Name path: reason`, one a line.
const DEFENDED_NAMES: &str = include_str!("prose/defended_names.txt");

/// One finding, at a line of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks every tracked file of the repository.
///
/// # Errors
/// The number of findings, each printed; or why the files cannot be read.
pub fn check(root: &Path) -> Result<(), String> {
    let listed = std::process::Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let listed = listed.map_err(|error| format!("git does not start: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files ends with {}", listed.status));
    }
    let listed = String::from_utf8_lossy(&listed.stdout);
    let tree: BTreeSet<&str> = listed.split_terminator('\0').collect();
    let mut files = BTreeMap::new();
    for &path in &tree {
        if !is_checked(path) {
            continue;
        }
        // A file that is deleted but not yet committed is still listed.
        match std::fs::read_to_string(root.join(path)) {
            Ok(text) => _ = files.insert(path.to_owned(), text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read {path}: {error}")),
        }
    }
    let findings = findings(&files, &tree);
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} places to reword; see \"Prose\" in CONTRIBUTING.md")),
    }
}

fn is_checked(path: &str) -> bool {
    [".rs", ".wgsl", ".cl", ".h", ".c", ".md", ".toml"].iter().any(|ending| path.ends_with(ending))
}

/// Findings in `files` (path and text), where `tree` has every tracked path.
fn findings(files: &BTreeMap<String, String>, tree: &BTreeSet<&str>) -> Vec<Violation> {
    let mut all = Vec::new();
    for (path, text) in files {
        match path.rsplit_once('.') {
            Some((_, "rs")) => check_rust(path, text, &mut all),
            Some((_, "wgsl" | "cl" | "h" | "c")) => check_comments(path, text, &mut all),
            Some((_, "md")) => check_page(path, text, (files, tree), &mut all),
            _ => check_toml(path, text, &mut all),
        }
    }
    if let Some(index) = files.get("docs/README.md") {
        let pages = files.keys().filter_map(|path| path.strip_prefix("docs/")).filter(|page| *page != "README.md");
        for page in pages.filter(|page| !index.contains(&format!("({page})"))) {
            let message = "docs/README.md does not link to this page".to_owned();
            all.push(Violation { path: format!("docs/{page}"), line: 1, message });
        }
    }
    all.sort();
    all
}

fn check_rust(path: &str, text: &str, all: &mut Vec<Violation>) {
    let mut is_in_doc = false;
    for (index, line) in text.lines().enumerate() {
        let mut find = |message: String| all.push(Violation { path: path.to_owned(), line: index + 1, message });
        let trimmed = line.trim_start();
        let doc = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!"));
        if let Some(doc) = doc.filter(|_| !is_in_doc)
            && let Some(opening) = OPENINGS.iter().find(|opening| opens_with(doc.trim_start(), opening))
            && !DEFENDED_OPENINGS.iter().any(|defended| opens_with(doc.trim_start(), defended))
        {
            find(format!("documentation opens with `{opening}`: name the thing"));
        }
        is_in_doc = doc.is_some();
        let is_verbatim = doc.is_some_and(|doc| doc.trim_start().starts_with('|') || doc.starts_with("     "));
        if trimmed.starts_with("//") && !is_verbatim {
            check_columns(line, &mut find);
        }
        if let Some(name) = defined_type(trimmed)
            && VAGUE_NAMES.lines().any(|vague| vague == name)
            && !is_defended(name, path)
        {
            find(format!("type name `{name}` does not say what the type is"));
        }
    }
}

/// Checks the width of comments in WGSL, OpenCL C and C. The declaration of a map is one line,
/// however long.
fn check_comments(path: &str, text: &str, all: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let is_comment = ["//", "/*", "* "].iter().any(|marker| trimmed.starts_with(marker));
        if is_comment && !trimmed.starts_with("//! map ") {
            check_columns(line, &mut |message| all.push(Violation { path: path.to_owned(), line: index + 1, message }));
        }
    }
}

/// Returns whether a text starts with these words, and not with a longer word: `It` does not open
/// `Items`.
fn opens_with(doc: &str, opening: &str) -> bool {
    doc.strip_prefix(opening).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\''))
}

/// Returns the name of the type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let keyword = words.find(|word| !matches!(*word, "pub" | "crate" | "super" | "in" | "self"))?;
    matches!(keyword, "struct" | "enum" | "trait" | "type" | "union").then(|| words.next()).flatten()
}

fn is_defended(name: &str, path: &str) -> bool {
    DEFENDED_NAMES.lines().filter_map(|line| line.split_once(": ")).any(|(place, _)| place == format!("{name} {path}"))
}

fn check_page(
    path: &str,
    text: &str,
    (files, tree): (&BTreeMap<String, String>, &BTreeSet<&str>),
    all: &mut Vec<Violation>,
) {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (mut is_in_fence, mut is_in_code) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let mut find = |message: String| all.push(Violation { path: path.to_owned(), line: index + 1, message });
        is_in_fence ^= line.trim_start().starts_with("```");
        if is_in_fence || line.starts_with("    ") {
            continue;
        }
        if !line.trim_start().starts_with('|') {
            check_columns(line, &mut find);
        }
        // Code between backticks may go on in the next line of its paragraph.
        is_in_code &= !line.trim().is_empty();
        let parts: Vec<&str> = line.split('`').collect();
        for (place, part) in parts.iter().enumerate() {
            let is_whole = place > 0 && place + 1 < parts.len();
            if is_in_code && is_whole && is_missing(part, folder, tree) {
                find(format!("no `{part}` in the tree"));
            }
            is_in_code ^= place + 1 < parts.len();
        }
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (to, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = if to.is_empty() { path.to_owned() } else { normalized(folder, to) };
            let has_anchor = anchor.is_empty() || files.get(&to).is_none_or(|text| has_heading(text, anchor));
            let is_external = target.contains(':');
            if !is_external && (!is_in_tree(&to, tree) || !has_anchor) {
                find(format!("the link leads nowhere: {target}"));
            }
        }
    }
}

/// Whether `code`, cited by a page in `folder`, looks like a path of the tree and is none.
///
/// Rust files may be cited by the end of their path; everything else counts as a path if it begins
/// with a folder at the root, and has to be whole.
fn is_missing(code: &str, folder: &str, tree: &BTreeSet<&str>) -> bool {
    let is_path = code.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c)) && !code.starts_with('/');
    let has_placeholder = code.split('/').any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()));
    if !is_path || has_placeholder || is_in_tree(code, tree) || is_in_tree(&normalized(folder, code), tree) {
        return false;
    }
    if code.ends_with(".rs") {
        return !tree.iter().any(|path| path.strip_suffix(code).is_some_and(|rest| rest.ends_with('/')));
    }
    code.split_once('/').is_some_and(|(first, _)| first != "target" && is_in_tree(first, tree))
}

/// Whether a page has the heading that an anchor names.
fn has_heading(text: &str, anchor: &str) -> bool {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|heading| heading.trim_start_matches('#').trim()).any(|heading| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).eq(anchor.chars())
    })
}

/// Whether `path` is a tracked file, or a folder that has one.
fn is_in_tree(path: &str, tree: &BTreeSet<&str>) -> bool {
    let path = path.trim_end_matches('/');
    let folder = format!("{path}/");
    path.is_empty()
        || tree.contains(path)
        || tree.range(&*folder..).next().is_some_and(|next| next.starts_with(&folder))
}

/// `path` as seen from `folder`, without `..`.
fn normalized(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')).filter(|part| !matches!(*part, "" | ".")) {
        match part {
            ".." => _ = parts.pop(),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn check_columns(line: &str, find: &mut impl FnMut(String)) {
    let columns = line.chars().count();
    // A URL or a path cannot be broken.
    let has_long_word = line.split_whitespace().any(|word| word.chars().count() > 60);
    if columns > MAX_COLUMNS && !line.contains("://") && !has_long_word {
        find(format!("{columns} columns, at most {MAX_COLUMNS} are allowed"));
    }
}

/// Checks the width of comments in TOML, and that core's manifest names no other crate of the
/// project.
fn check_toml(path: &str, text: &str, all: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        let mut find = |message: String| all.push(Violation { path: path.to_owned(), line: index + 1, message });
        if line.trim_start().starts_with('#') {
            check_columns(line, &mut find);
        }
        if path == "core/Cargo.toml" && line.starts_with("portcullis") {
            find(format!("core depends on no other crate of the project: {line}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<(usize, String)> {
        let files = BTreeMap::from([(path.to_owned(), text.to_owned())]);
        findings(&files, &BTreeSet::from([path])).into_iter().map(|it| (it.line, it.message)).collect()
    }

    #[test]
    fn openings_are_matched_by_whole_words_and_only_at_the_start() {
        let text = "/// It.\nstruct A;\n/// Items in the queue.\nstruct B;\n/// Releases frames.\n/// It never blocks.\nfn c() {}\n";
        assert_eq!(messages("a.rs", text), [(1, "documentation opens with `It`: name the thing".into())]);
        assert_eq!(messages("a.rs", "//! What there is of it.\n").len(), 1);
        assert_eq!(messages("a.rs", "/// Most packets of a batch.\n").len(), 1);
        assert!(messages("a.rs", "/// Most significant word first.\n").is_empty());
        assert!(messages("a.rs", "// It is a comment, not documentation.\n").is_empty());
    }

    #[test]
    fn comments_and_pages_wider_than_a_hundred_columns_are_found() {
        let wide = "word ".repeat(20);
        assert_eq!(messages("a.rs", &format!("// {wide}\n")).len(), 1);
        assert!(messages("a.rs", &format!("let a = b; // {wide}\n")).is_empty(), "code has its own limit");
        for path in ["a.wgsl", "a.cl", "a.h", "a.c"] {
            assert_eq!(messages(path, &format!("code\n    // {wide}\n")).len(), 1, "{path}");
            assert_eq!(messages(path, &format!("/* {wide}\n * {wide} */\n")).len(), 2, "{path}");
            assert!(messages(path, &format!("//! map {wide}\nlet a = b; // {wide}\n")).is_empty(), "{path}");
        }
        for path in ["Cargo.toml", "rustfmt.toml"] {
            assert_eq!(messages(path, &format!("[a]\n## {wide}\n  # {wide}\n")).len(), 2, "{path}");
            assert!(messages(path, &format!("a = \"{wide}\"\n")).is_empty(), "{path}");
        }
        assert_eq!(messages("a.md", &format!("{wide}x\n")).len(), 1);
        for exempt in [format!("| {wide} |"), format!("    {wide}"), format!("https://a.example {wide}")] {
            assert!(messages("a.md", &exempt).is_empty(), "{exempt}");
        }
        assert!(messages("a.md", &format!("```\n{wide}x\n```\n")).is_empty());
    }

    #[test]
    fn vague_type_names_are_found_unless_defended() {
        assert_eq!(messages("a.rs", "pub(crate) struct Begun<'a> {\n").len(), 1);
        assert_eq!(messages("a.rs", "enum Vain {\n").len(), 1);
        assert!(messages("a.rs", "struct FramePool {\nlet begun: Begun;\n").is_empty());
    }

    #[test]
    fn every_defence_names_a_vague_name_and_gives_a_reason() {
        for line in DEFENDED_NAMES.lines() {
            let (place, reason) = line.split_once(": ").unwrap_or_else(|| panic!("no reason: {line}"));
            let (name, path) = place.split_once(' ').unwrap_or_else(|| panic!("no path: {line}"));
            assert!(VAGUE_NAMES.lines().any(|vague| vague == name), "{name} needs no defence");
            let text = std::fs::read_to_string(crate::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert!(text.lines().any(|line| defined_type(line.trim_start()) == Some(name)), "{path} defines no {name}");
            assert!(!reason.is_empty());
        }
    }

    #[test]
    fn unlinked_pages_and_dependencies_of_core_are_found() {
        let page = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let files = BTreeMap::from([
            page("docs/README.md", "[a](a.md)"),
            page("docs/a.md", ""),
            page("docs/b.md", ""),
            page("core/Cargo.toml", "[dependencies]\nportcullis-wgsl.workspace = true\n"),
        ]);
        let tree = files.keys().map(String::as_str).collect();
        let paths: Vec<String> = findings(&files, &tree).into_iter().map(|it| it.path).collect();
        assert_eq!(paths, ["core/Cargo.toml", "docs/b.md"]);
    }

    #[test]
    fn paths_and_links_of_pages_lead_to_files_of_the_tree() {
        let tree = BTreeSet::from(["core/src/map/shards.rs", "docs/guide/a.md", "docs/b.md", "samples/mixed.pcap"]);
        let messages = |text: &str| {
            let other = "# b\n\n## 64-bit `int`s, etc.\n";
            let files =
                [("docs/guide/a.md", text), ("docs/b.md", other)].map(|(path, text)| (path.into(), text.into()));
            let files = BTreeMap::from(files);
            findings(&files, &tree).into_iter().map(|it| (it.line, it.message)).collect::<Vec<_>>()
        };
        for right in [
            "`core/src/map/shards.rs`, `map/shards.rs`, `shards.rs`, `core/src/`, `core/src/map`, `core/`",
            "[a](a.md), [b](../b.md#64-bit-ints-etc), [map](../../core/src/map/), [far](https://a.example/b)",
            "# There\n[here](#there)",
            "`target/wheels`, `linux/bpf.h`, `/dev/hugepages/`, `out/7.pcap`, `core/NAME/src`, `u32/u64`",
            "    `core/src/lang/`",
            "```\n`gone.rs`\n```",
        ] {
            assert_eq!(messages(right), [], "{right}");
        }
        for wrong in ["core/src/lang/a.rs", "ards.rs", "core/src/lang/", "core/src/lang", "samples/mixed.pcapng"] {
            let line = format!("first\n`a b`, `{wrong}`.\n");
            assert_eq!(messages(&line), [(2, format!("no `{wrong}` in the tree"))]);
        }
        assert_eq!(messages("`a\nb` and `gone.rs`"), [(2, "no `gone.rs` in the tree".into())]);
        assert_eq!(messages("| `gone.rs` |").len(), 1);
        for link in ["b.md", "../guide/c.md#d", "../../lang/", "../b.md#64", "#here"] {
            assert_eq!(messages(&format!("[x]({link})")).len(), 1, "{link}");
        }
    }
}
