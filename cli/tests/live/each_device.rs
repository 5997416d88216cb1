//! Every available device, with each of its dispatch methods.

use std::sync::Arc;

use portcullis::device::{Device, Dispatch};
use portcullis::devices::backends;
use portcullis_live_tests::Suite;

/// Environment variable that limits tests to the devices of one backend, such as `cuda`.
const ONLY: &str = "PORTCULLIS_TEST_ONLY";

/// Returns the only backend to test, if one is set.
pub fn only() -> Option<String> {
    std::env::var(ONLY).ok().filter(|only| !only.is_empty())
}

/// Runs a test on each device with each of its dispatch methods. Missing devices are printed with
/// the reason, and fail the suite if required.
pub fn on_each(suite: &Suite, test: impl Fn(&'static str, &Arc<dyn Device>, Dispatch)) {
    let only = only();
    let wanted = |name: &str| only.as_ref().map_or(name != "noop", |only| only == name);
    for backend in backends().iter().filter(|backend| wanted(backend.name)) {
        let devices = match backend.probe() {
            Ok(devices) => devices,
            Err(reason) => {
                suite.lacks(backend.name, &reason.to_string());
                continue;
            }
        };
        let _part = suite.on(backend.name);
        for device in devices {
            for &dispatch in device.info().dispatch {
                println!("{} {dispatch}", device.info().id);
                test(backend.name, &device, dispatch);
            }
        }
    }
}
