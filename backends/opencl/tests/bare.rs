//! What a machine without OpenCL is told, and that a program starts there. The loader and the drivers
//! are hidden from a child process.

use std::process::{Command, Output};

use portcullis_core::device::{Device, DeviceError};

/// Set in the child, which is the test again.
const CHILD: &str = "PORTCULLIS_TEST_BARE";

/// Runs a test of this file once more, in a process of its own with these variables.
fn again(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").envs(variables.iter().copied());
    child.output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The child's part: what `probe` says is printed.
fn say_what_is_missing() {
    let error = portcullis_opencl::probe().expect_err("it is hidden");
    let DeviceError::Missing(text) = error else { panic!("{error:?}") };
    eprintln!("<<{text}>>");
}

fn said(child: &Output) -> String {
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}\n{error}", String::from_utf8_lossy(&child.stdout));
    let text = error.split_once("<<").and_then(|(_, rest)| rest.split_once(">>"));
    text.unwrap_or_else(|| panic!("nothing said: {error}")).0.to_owned()
}

#[test]
fn without_a_loader() {
    if is_child() {
        return say_what_is_missing();
    }
    let child = again("without_a_loader", &[("PORTCULLIS_OPENCL_LIBRARY", "/nonexistent/libOpenCL.so.1")]);
    let text = said(&child);
    assert!(text.contains("install") && text.contains("/nonexistent/libOpenCL.so.1"), "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains("ocl-icd-libopencl1") && text.contains("pocl-opencl-icd"), "{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn with_a_library_that_is_another() {
    if is_child() {
        return say_what_is_missing();
    }
    let child = again("with_a_library_that_is_another", &[("PORTCULLIS_OPENCL_LIBRARY", "libm.so.6")]);
    let text = said(&child);
    assert!(text.contains("libm.so.6") && text.contains("no clGetPlatformIDs"), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn without_drivers() {
    if is_child() {
        return say_what_is_missing();
    }
    // Both loaders that distributions have, ocl-icd and Khronos's, go by these.
    let started = std::time::Instant::now();
    let child =
        again("without_drivers", &[("OCL_ICD_VENDORS", "/nonexistent"), ("OPENCL_VENDOR_PATH", "/nonexistent")]);
    let text = said(&child);
    assert!(text.contains("pocl-opencl-icd"), "{text}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "it waits for a driver that is not there");
}

#[test]
#[cfg(target_os = "linux")]
fn a_program_does_not_need_the_library_to_start() {
    let program = std::env::current_exe().unwrap();
    let Ok(listed) = Command::new("readelf").arg("--dynamic").arg("--wide").arg(&program).output() else {
        println!("skipped: no readelf (Debian's package binutils)");
        return;
    };
    let listed = String::from_utf8_lossy(&listed.stdout);
    // The list is what it should be: this is there in any case.
    assert!(listed.contains("NEEDED") && listed.contains("libc.so"), "{listed}");
    assert!(!listed.contains("OpenCL"), "{listed}");
}

#[test]
fn devices_say_what_they_are() {
    let devices = match portcullis_opencl::probe() {
        Ok(devices) => devices,
        Err(error) => {
            let demanded = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
            assert!(!demanded.split(',').any(|device| device.trim() == "opencl"), "opencl is demanded: {error}");
            println!("skipped: {error}");
            return;
        }
    };
    for (index, device) in devices.iter().enumerate() {
        let info = device.info();
        assert_eq!(info.id, format!("opencl:{index}"));
        assert!(!info.name.is_empty() && !info.driver.is_empty());
        assert!(info.limits.iter().all(|(_, value)| !value.is_empty()), "{info:?}");
    }
    let gpus: Vec<bool> = devices.iter().map(|device| device.info().kind.is_gpu()).collect();
    assert!(gpus.is_sorted_by(|a, b| a >= b), "real GPUs come first: {gpus:?}");
}
