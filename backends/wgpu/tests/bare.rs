//! What a machine without Vulkan drivers reports. The drivers are hidden from a child process.

mod common;

use std::process::Command;

use portcullis_core::device::{DeviceError, DeviceKind};

/// Environment variable that is set in the child process.
const CHILD: &str = "PORTCULLIS_TEST_BARE";

#[test]
#[cfg(target_os = "linux")]
fn a_machine_without_drivers_is_told_what_to_install() {
    if std::env::var_os(CHILD).is_some() {
        let error = portcullis_wgpu::probe().expect_err("the drivers are hidden");
        let DeviceError::Missing(text) = error else { panic!("{error:?}") };
        // Whether the loader or the drivers are missing depends on the machine.
        assert!(text.contains("mesa-vulkan-drivers"), "{text}");
        eprintln!("{text}");
        return;
    }
    let test = std::env::current_exe().unwrap();
    let child = Command::new(test)
        .args(["--exact", "a_machine_without_drivers_is_told_what_to_install", "--nocapture"])
        .env(CHILD, "1")
        .env("VK_ICD_FILENAMES", "/nonexistent/driver.json")
        .env("VK_DRIVER_FILES", "/nonexistent/driver.json")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{out}\n{err}");
    assert!(err.contains("install"), "{err}");
}

#[test]
fn devices_are_described_and_gpus_come_first() {
    let devices = common::devices();
    for (index, device) in devices.iter().enumerate() {
        let info = portcullis_core::device::Device::info(device);
        assert_eq!(info.id, format!("wgpu:{index}"));
        assert!(!info.name.is_empty() && !info.driver.is_empty());
        // Software devices also list the limits of a filter.
        assert_eq!(info.limits.len(), 5 + usize::from(info.kind == DeviceKind::Software));
    }
    let gpus: Vec<bool> =
        devices.iter().map(|device| portcullis_core::device::Device::info(device).kind.is_gpu()).collect();
    assert!(gpus.is_sorted_by(|a, b| a >= b), "real GPUs come first: {gpus:?}");
}
