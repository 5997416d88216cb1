//! Floating-point operations (f32) on every device, within a tolerance.

use portcullis_compat_tests::{devices, floating_point};

#[test]
fn devices_agree_within_the_tolerance() {
    let cases = floating_point::cases();
    devices::on_each("floating point", |device| floating_point::check(device, &cases));
}
