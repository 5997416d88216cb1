//! Checks that the modules at the top of each crate do not import each other in circles
//! (docs/architecture.md, "Folders"). Unit tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// For each module, the modules that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Removes modules that import none of the others until only circles and their importers are left.
fn circles(mut graph: Graph) -> Graph {
    loop {
        let left: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|_, imports| !imports.is_disjoint(&left));
        if graph.len() == left.len() {
            return graph;
        }
    }
}

/// Adds the imports of a file, `path` below the crate's `src`, to those of its module.
fn add_imports(graph: &mut Graph, modules: &BTreeSet<String>, path: &str, text: &str) {
    let module = top_module(path);
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    // `mod.rs` is one level above the other files of its folder.
    let depth = path.matches('/').count() + usize::from(!path.ends_with("/mod.rs"));
    for prefix in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&prefix) {
            if code[..at].ends_with(|c: char| c == ':' || c == '_' || c.is_alphanumeric()) {
                continue;
            }
            let imports = imported(&code[at + prefix.len()..]);
            let others = imports.into_iter().filter(|name| *name != module && modules.contains(*name));
            graph.entry(module.to_owned()).or_default().extend(others.map(str::to_owned));
        }
    }
}

/// Returns the first names of a path, or of the paths in a list in braces.
fn imported(path: &str) -> Vec<&str> {
    let name = |path: &str| path.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(path.len());
    let Some(list) = path.strip_prefix('{') else { return vec![&path[..name(path)]] };
    let mut nesting = 0;
    let parts = list.split(|c: char| {
        nesting += i32::from(c == '{') - i32::from(c == '}');
        nesting == 0 && c == ',' || nesting < 0
    });
    let list = parts.take_while(|part| !part.starts_with(';')).map(str::trim_start);
    list.map(|part| &part[..name(part)]).collect()
}

/// Returns the module at the top of the crate that a file belongs to.
fn top_module(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Returns the paths of a folder's Rust files, below it.
fn rust_files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name().into_string().unwrap())).unwrap();
        if path.is_dir() {
            files.extend(rust_files(&path).into_iter().map(|file| format!("{name}/{file}")));
        } else if name.ends_with(".rs") {
            files.push(name);
        }
    }
    files
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_circles() {
    let root = crate::root();
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let members = members.trim_end_matches(']').split(',').map(|member| member.trim().trim_matches('"'));
    let mut checked = 0;
    for member in members.chain(["."]) {
        let folder = root.join(member).join("src");
        if !folder.is_dir() {
            continue;
        }
        let is_test = |path: &str| path.split('/').any(|part| matches!(top_module(part), "tests" | "testing"));
        let files: Vec<String> = rust_files(&folder).into_iter().filter(|path| !is_test(path)).collect();
        let modules = files.iter().map(|path| top_module(path).to_owned()).collect();
        let mut graph = Graph::new();
        for path in files.iter().filter(|path| !matches!(path.as_str(), "lib.rs" | "main.rs")) {
            add_imports(&mut graph, &modules, path, &std::fs::read_to_string(folder.join(path)).unwrap());
        }
        checked += graph.len();
        assert!(circles(graph.clone()).is_empty(), "{member}: {:#?}", circles(graph));
    }
    assert!(checked > 100, "only {checked} modules import others");
}

#[test]
fn circles_are_found() {
    let modules = ["a", "b", "c"].map(str::to_owned).into();
    let mut graph = Graph::new();
    add_imports(&mut graph, &modules, "a/x.rs", "use crate::{b::{c, D}, c};\nuse std::fs;");
    add_imports(
        &mut graph,
        &modules,
        "b.rs",
        "// use crate::a;\nuse super::c::d;\n#[cfg(test)]\nmod tests { use crate::a; }",
    );
    add_imports(&mut graph, &modules, "c/mod.rs", "use my_crate::b;\nuse super::super::a;");
    assert_eq!(graph["a"], ["b", "c"].map(str::to_owned).into());
    assert_eq!(graph["b"], ["c"].map(str::to_owned).into());
    assert!(circles(graph.clone()).is_empty(), "{graph:?}");
    add_imports(&mut graph, &modules, "c/y.rs", "fn f() { super::super::b::g() }");
    assert_eq!(circles(graph).into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
}
