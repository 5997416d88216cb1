//! Counts of this thread's calls of wgpu that cost more than a few instructions, for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;

pub(crate) type Counts = BTreeMap<&'static str, usize>;

thread_local! {
    static COUNTS: RefCell<Counts> = const { RefCell::new(Counts::new()) };
}

pub(crate) fn record(call: &'static str) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(call).or_default() += 1);
}

/// Takes the counts since the last call of this function.
pub(crate) fn take() -> Counts {
    COUNTS.take()
}
