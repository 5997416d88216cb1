//! Identifiers: the filter's own, changed only if they would mean something else in C.

use std::collections::HashSet;
use std::rc::Rc;

use crate::dialect::{Dialect, MATH_FUNCTIONS};

/// The names of one scope. No name shadows one of an enclosing scope, except built-in functions
/// that the writer does not call.
#[derive(Clone)]
pub(crate) struct Scope {
    outer: Rc<HashSet<String>>,
    /// Names of the scope, in the order in which they were taken.
    order: Vec<String>,
    taken: HashSet<String>,
}

fn set(lists: &[&str]) -> HashSet<String> {
    lists.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect()
}

/// The reserved words of a language: keywords and types.
pub(crate) fn reserved_words(dialect: &dyn Dialect) -> Rc<HashSet<String>> {
    Rc::new(set(dialect.reserved_words()))
}

impl Scope {
    /// A scope within others, whose names are complete.
    pub fn within(outer: &Rc<HashSet<String>>) -> Scope {
        Scope { outer: outer.clone(), order: Vec::new(), taken: HashSet::new() }
    }

    /// The file scope.
    pub fn file_scope(dialect: &dyn Dialect) -> Scope {
        let mut outer = set(dialect.reserved_words());
        outer.extend(set(dialect.builtin_functions()));
        Scope::within(&Rc::new(outer))
    }

    /// Ends the file scope, and returns the names that functions cannot use for their variables.
    pub fn into_outer_names(self, dialect: &dyn Dialect) -> Rc<HashSet<String>> {
        let mut all = set(dialect.reserved_words());
        all.extend(self.taken);
        all.extend(MATH_FUNCTIONS.iter().map(|name| dialect.float_function(name)));
        all.extend(["popcount", "clz", "as_uint", "as_float"].map(String::from));
        Rc::new(all)
    }

    /// Number of names so far, for [`Scope::release`].
    pub fn mark(&self) -> usize {
        self.order.len()
    }

    /// Releases the names taken since the mark, at the end of a block.
    pub fn release(&mut self, mark: usize) {
        for name in self.order.drain(mark..) {
            self.taken.remove(&name);
        }
    }

    fn take(&mut self, name: &str) {
        self.taken.insert(name.into());
        self.order.push(name.into());
    }

    fn is_taken(&self, name: &str) -> bool {
        self.taken.contains(name) || self.outer.contains(name)
    }

    /// Takes a name as it is.
    pub fn reserve(&mut self, name: &str) {
        self.take(name);
    }

    /// Takes the free name that is closest to `wanted`.
    pub fn unique_name(&mut self, wanted: &str) -> String {
        let base = valid_identifier(wanted);
        let mut name = base.clone();
        let mut number = 1;
        while self.is_taken(&name) {
            name = if number == 1 { format!("{base}_") } else { format!("{base}_{number}") };
            name = single_underscores(&name);
            number += 1;
        }
        self.take(&name);
        name
    }

    /// Takes `stem` with the next free number appended.
    pub fn numbered_name(&mut self, stem: &str, next: &mut u32) -> String {
        loop {
            *next += 1;
            let name = format!("{stem}{next}");
            if !self.is_taken(&name) {
                self.take(&name);
                return name;
            }
        }
    }
}

/// Makes a valid identifier that is not reserved by its form: C and C++ reserve names that contain
/// `__` or start with `_` (C99, section 7.1.3; C++17, section 5.10), this writer those that start
/// with `pc_`.
fn valid_identifier(wanted: &str) -> String {
    let mut name = String::with_capacity(wanted.len());
    for c in wanted.chars() {
        match c {
            'A'..='Z' | 'a'..='z' | '0'..='9' | '_' => name.push(c),
            other => name.push_str(&format!("u{:x}", u32::from(other))),
        }
    }
    let name = single_underscores(name.trim_start_matches('_'));
    match name.chars().next() {
        Some(first) if first.is_ascii_alphabetic() && !name.starts_with("pc_") => name,
        _ => format!("n_{name}"),
    }
}

fn single_underscores(name: &str) -> String {
    let mut last = ' ';
    name.chars().filter(|&c| std::mem::replace(&mut last, c) != '_' || c != '_').collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Language;

    #[test]
    fn names_are_kept_unless_reserved_or_taken() {
        let mut file = Scope::file_scope(Language::OpenCl.dialect());
        let mut claim = |name: &str| file.unique_name(name);
        assert_eq!(claim("port"), "port");
        assert_eq!(claim("port"), "port_");
        assert_eq!(claim("port"), "port_2");
        assert_eq!(claim("half"), "half_");
        assert_eq!(claim("kernel"), "kernel_");
        assert_eq!(claim("a__b"), "a_b");
        assert_eq!(claim("_x"), "x");
        assert_eq!(claim("x_"), "x_");
        assert_eq!(claim("x"), "x_2");
        assert_eq!(claim("x_"), "x_3");
        assert_eq!(claim("\u{e4}1"), "ue41");
        assert_eq!(claim("pc_word"), "n_pc_word");
        assert_eq!(claim("_"), "n_");
    }

    #[test]
    fn an_inner_scope_shadows_nothing() {
        let mut file = Scope::file_scope(Language::Cuda.dialect());
        assert_eq!(file.unique_name("class"), "class_");
        assert_eq!(file.unique_name("f"), "f");
        let file = file.into_outer_names(Language::Cuda.dialect());
        let mut one = Scope::within(&file);
        assert_eq!(one.unique_name("f"), "f_");
        assert_eq!(one.unique_name("a"), "a");
        let mut two = Scope::within(&file);
        assert_eq!(two.unique_name("a"), "a");
        let mark = two.mark();
        assert_eq!(
            (two.unique_name("min"), two.unique_name("b"), two.unique_name("sqrtf")),
            ("min".into(), "b".into(), "sqrtf_".into())
        );
        two.release(mark);
        assert_eq!((two.unique_name("b"), two.unique_name("a")), ("b".into(), "a_".into()));
        let mut last = 0;
        assert_eq!((two.numbered_name("t", &mut last), two.numbered_name("t", &mut last)), ("t1".into(), "t2".into()));
    }
}
