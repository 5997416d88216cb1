//! Inferred facts compared with facts worked out by hand, and with runs of random filters.

mod large;
mod loops;
mod random;
mod verdicts;
mod windows;

use super::{Facts, Window};
use crate::testing::program;

fn facts(text: &str) -> Facts {
    program(text).facts().clone()
}

/// Facts about a filter with this body, which returns a verdict or falls through to XDP_PASS.
fn body(text: &str) -> Facts {
    facts(&filter(text))
}

fn filter(body: &str) -> String {
    format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} return XDP_PASS; }}")
}

/// Read window of a filter with this body.
fn reads(text: &str) -> Window {
    body(text).reads
}
