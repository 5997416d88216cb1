//! What a machine without OpenCL reports, and that a program starts there. Loader and drivers are
//! hidden from a child process.

use std::process::{Command, Output};

use portcullis_core::device::{Device, DeviceError};

/// Environment variable that is set in the child process.
const CHILD: &str = "PORTCULLIS_TEST_BARE";

/// Runs a test of this file again in a child process with these environment variables.
fn run_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").envs(variables.iter().copied());
    child.output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Called in the child: prints the error of `probe`.
fn print_probe_error() {
    let error = portcullis_opencl::probe().expect_err("OpenCL is hidden");
    let DeviceError::Missing(text) = error else { panic!("{error:?}") };
    eprintln!("<<{text}>>");
}

/// Returns what a child that must have succeeded has printed between `<<` and `>>`.
fn text_between_markers(child: &Output) -> String {
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}\n{error}", String::from_utf8_lossy(&child.stdout));
    let text = error.split_once("<<").and_then(|(_, rest)| rest.split_once(">>"));
    text.unwrap_or_else(|| panic!("nothing printed: {error}")).0.to_owned()
}

#[test]
fn a_missing_loader_is_explained() {
    if is_child() {
        return print_probe_error();
    }
    let child =
        run_child("a_missing_loader_is_explained", &[("PORTCULLIS_OPENCL_LIBRARY", "/nonexistent/libOpenCL.so.1")]);
    let text = text_between_markers(&child);
    assert!(text.contains("install") && text.contains("/nonexistent/libOpenCL.so.1"), "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains("ocl-icd-libopencl1") && text.contains("pocl-opencl-icd"), "{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_that_is_not_opencl_is_explained() {
    if is_child() {
        return print_probe_error();
    }
    let child = run_child("a_library_that_is_not_opencl_is_explained", &[("PORTCULLIS_OPENCL_LIBRARY", "libm.so.6")]);
    let text = text_between_markers(&child);
    assert!(text.contains("libm.so.6") && text.contains("no clGetPlatformIDs"), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn missing_drivers_are_explained() {
    if is_child() {
        return print_probe_error();
    }
    // Both loaders in use, ocl-icd and Khronos's, respect one of these.
    let started = std::time::Instant::now();
    let child = run_child(
        "missing_drivers_are_explained",
        &[("OCL_ICD_VENDORS", "/nonexistent"), ("OPENCL_VENDOR_PATH", "/nonexistent")],
    );
    let text = text_between_markers(&child);
    assert!(text.contains("pocl-opencl-icd"), "{text}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "it waits for a driver that does not exist");
}

#[test]
#[cfg(target_os = "linux")]
fn programs_do_not_link_against_opencl() {
    let program = std::env::current_exe().unwrap();
    let Ok(listed) = Command::new("readelf").arg("--dynamic").arg("--wide").arg(&program).output() else {
        println!("skipped: no readelf (Debian's package binutils)");
        return;
    };
    let listed = String::from_utf8_lossy(&listed.stdout);
    // The check is meaningful: libc is listed in any case.
    assert!(listed.contains("NEEDED") && listed.contains("libc.so"), "{listed}");
    assert!(!listed.contains("OpenCL"), "{listed}");
}

#[test]
fn devices_are_described_and_gpus_come_first() {
    let devices = match portcullis_opencl::probe() {
        Ok(devices) => devices,
        Err(error) => {
            let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|device| device.trim() == "opencl"), "opencl is required: {error}");
            println!("skipped: {error}");
            return;
        }
    };
    for (index, device) in devices.iter().enumerate() {
        let info = device.info();
        assert_eq!(info.id, format!("opencl:{index}"));
        assert!(!info.name.is_empty() && !info.driver.is_empty());
        assert!(info.limits.iter().all(|limit| !limit.value().is_empty()), "{info:?}");
    }
    let gpus: Vec<bool> = devices.iter().map(|device| device.info().kind.is_gpu()).collect();
    assert!(gpus.is_sorted_by(|a, b| a >= b), "real GPUs come first: {gpus:?}");
}
