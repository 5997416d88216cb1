//! Every operator, built-in function and conversion on every device, in two tests that run
//! concurrently.

use portcullis_compat_tests::{devices, operators};

fn on_every_device(suite: &str, types: &[&'static str]) {
    let cases = operators::cases(types);
    devices::on_each(suite, |device| operators::check(device, &cases));
}

#[test]
fn operators_of_32_bit_types() {
    on_every_device("operators", &operators::TYPES[..3]);
}

#[test]
fn operators_of_64_bit_types() {
    on_every_device("operators of 64 bits", &operators::TYPES[3..]);
}
