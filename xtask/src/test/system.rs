//! What the tests need of the system, and getting it on Debian.

use std::path::Path;
use std::process::{Command, Stdio};

/// The software Vulkan driver and the Vulkan loader: with them the GPU backend runs anywhere.
const PACKAGES: [&str; 2] = ["mesa-vulkan-drivers", "libvulkan1"];

/// Installs a Vulkan driver where there is none and it may. What it does, or why it does nothing,
/// is printed: the tests then run with what is there.
pub fn prepare() {
    if !cfg!(target_os = "linux") || (has_loader() && has_driver()) {
        return;
    }
    let packages = PACKAGES.join(" ");
    if !quiet("apt-get", &["--version"]) {
        println!("No Vulkan driver: without one the wgpu device is missing. Debian has it in {packages}.");
        return;
    }
    let prefix: &[&str] = if is_root() {
        &[]
    } else if quiet("sudo", &["-n", "true"]) {
        &["sudo", "-n"]
    } else {
        println!("No Vulkan driver, and no right to install one. To have it: sudo apt-get install {packages}");
        return;
    };
    println!("No Vulkan driver: installing {packages} with apt-get.");
    let apt = |arguments: &[&str]| {
        let words: Vec<&str> = prefix
            .iter()
            .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
            .chain(arguments)
            .copied()
            .collect();
        let status = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    };
    // The lists of packages may be old, so that the first try fails; a fresh machine has none.
    let install: Vec<&str> =
        ["install", "--yes", "--quiet", "--no-install-recommends"].into_iter().chain(PACKAGES).collect();
    let installed = apt(&install) || (apt(&["update", "--quiet"]) && apt(&install));
    if !installed {
        println!("That did not work; the tests run without.");
    }
}

/// Whether a command runs and succeeds; what it prints is thrown away.
pub fn quiet(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

fn is_root() -> bool {
    // The owner of one's own entry in /proc is oneself.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

fn has_loader() -> bool {
    let folders = [
        "/usr/lib",
        "/usr/lib64",
        "/lib64",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ];
    folders.iter().any(|folder| Path::new(folder).join("libvulkan.so.1").exists())
}

/// Whether any driver has put its manifest where the Vulkan loader looks (LoaderDriverInterface.md,
/// "Driver Discovery on Linux"), or the environment names one.
fn has_driver() -> bool {
    let named = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].iter().any(|name| std::env::var_os(name).is_some());
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
    named
        || folders.iter().any(|folder| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.path().extension().is_some_and(|e| e == "json"))
        })
}
