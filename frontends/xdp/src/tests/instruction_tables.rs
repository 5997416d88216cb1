//! Every instruction with operands at all corners, compared with the model.

use super::model::compare::{Comparison, compare};
use super::model::table::{self, Case};

#[track_caller]
fn check(cases: &[Case]) {
    for Case { name, code, packets, .. } in cases {
        match compare(code, packets) {
            Ok(Comparison::Same(count, None)) if count == packets.len() => {}
            Ok(held) => panic!("{name}: {held:?}"),
            Err(difference) => {
                panic!("{name}: {}\n{}", difference.what, table::part(code, difference.at.unwrap_or(0)))
            }
        }
    }
}

#[test]
fn arithmetic_agrees_with_the_standard() {
    check(&table::of_arithmetic());
}

#[test]
fn jumps_agree_with_the_standard() {
    check(&table::of_jumps());
}

#[test]
fn loads_and_stores_agree_with_the_standard() {
    check(&table::of_memory());
}

#[test]
fn atomics_agree_with_the_standard() {
    check(&table::of_atomics());
}
