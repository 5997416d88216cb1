//! Every operator, built-in and conversion on every device.

use portcullis_compat_tests::{devices, operators};

#[test]
fn every_operator_on_every_device() {
    let cases = operators::cases();
    devices::on_each("operators", |device| operators::check(device, &cases));
}
