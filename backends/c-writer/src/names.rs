//! Names: the filter's own, changed only where they would mean something else in C.

use std::collections::HashSet;
use std::rc::Rc;

use crate::builtins::CALLED;
use crate::dialect::Dialect;

/// Names of one scope. No scope takes a name that one around it has: nothing is hidden, but for built-in
/// functions that the writer does not call.
pub(crate) struct Names {
    outer: Rc<HashSet<String>>,
    /// In the order in which they were taken.
    order: Vec<String>,
    taken: HashSet<String>,
}

fn set(lists: &[&[&str]]) -> HashSet<String> {
    lists.iter().copied().flatten().map(|&word| word.into()).collect()
}

/// The keywords and types of a language, which name nothing of ours.
pub(crate) fn words(dialect: &dyn Dialect) -> Rc<HashSet<String>> {
    Rc::new(set(dialect.words()))
}

impl Names {
    /// A scope in one that is closed.
    pub fn inside(outer: &Rc<HashSet<String>>) -> Names {
        Names { outer: outer.clone(), order: Vec::new(), taken: HashSet::new() }
    }

    /// The scope of a file.
    pub fn file(dialect: &dyn Dialect) -> Names {
        let mut outer = set(dialect.words());
        outer.extend(set(dialect.functions()));
        Names::inside(&Rc::new(outer))
    }

    /// What functions in a file cannot take for their own variables.
    pub fn close(self, dialect: &dyn Dialect) -> Rc<HashSet<String>> {
        let mut all = set(dialect.words());
        all.extend(self.taken);
        all.extend(CALLED.iter().map(|name| dialect.float_function(name)));
        all.extend(["popcount", "clz", "as_uint", "as_float"].map(String::from));
        Rc::new(all)
    }

    /// How many names there are, for [`Names::release`].
    pub fn mark(&self) -> usize {
        self.order.len()
    }

    /// Gives up the names that were taken since: the block that they were good for has ended.
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

    /// A name that is free, as like `wanted` as may be.
    pub fn claim(&mut self, wanted: &str) -> String {
        let base = plain(wanted);
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

    /// `stem` with the next free number behind it.
    pub fn number(&mut self, stem: &str, next: &mut u32) -> String {
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

/// A name in the letters of C that is nobody else's by its form: those with `__` in them or `_` in front are
/// the implementation's (C99, section 7.1.3; C++17, section 5.10), those with `pc_` in front ours.
fn plain(wanted: &str) -> String {
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
    fn names_are_kept_where_they_can_be() {
        let mut file = Names::file(Language::OpenCl.dialect());
        let mut claim = |name: &str| file.claim(name);
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
    fn an_inner_scope_hides_nothing() {
        let mut file = Names::file(Language::Cuda.dialect());
        assert_eq!(file.claim("class"), "class_");
        assert_eq!(file.claim("f"), "f");
        let file = file.close(Language::Cuda.dialect());
        let mut one = Names::inside(&file);
        assert_eq!(one.claim("f"), "f_");
        assert_eq!(one.claim("a"), "a");
        let mut two = Names::inside(&file);
        assert_eq!(two.claim("a"), "a");
        let mark = two.mark();
        assert_eq!((two.claim("min"), two.claim("b"), two.claim("sqrtf")), ("min".into(), "b".into(), "sqrtf_".into()));
        two.release(mark);
        assert_eq!((two.claim("b"), two.claim("a")), ("b".into(), "a_".into()));
        let mut last = 0;
        assert_eq!((two.number("t", &mut last), two.number("t", &mut last)), ("t1".into(), "t2".into()));
    }
}
