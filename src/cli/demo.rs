//! `portcullis` with no arguments: a look around.

use portcullis::devices::backends;

use super::failure::Failure;
use super::out;

/// Lists the devices and says what to try.
pub fn run() -> Result<(), Failure> {
    let mut rows = Vec::new();
    for backend in backends() {
        match backend.probe() {
            Ok(devices) => {
                rows.extend(devices.iter().map(|d| vec![d.info().id.clone(), d.info().name.clone()]));
            }
            Err(reason) => rows.push(vec![backend.name.into(), format!("none: {reason}")]),
        }
    }
    out::print(out::table(rows, &[]))
}
