//! Vendors' compilers in Python wheels: fetched with pip and unpacked into a folder under target/,
//! outside any Python path.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A set of packages that are fetched together.
pub struct Wheels {
    /// Name of the folder.
    name: &'static str,
    /// pip's requirements, each with version and checksum, as fetched programs are run.
    list: &'static str,
}

/// NVRTC and ptxas.
pub const NVIDIA: Wheels = Wheels { name: "nvidia", list: include_str!("../wheels/nvidia.txt") };

/// Intel's OpenCL for CPUs.
pub const INTEL: Wheels = Wheels { name: "intel", list: include_str!("../wheels/intel.txt") };

/// File that marks a complete folder; it holds the list that the folder was made from.
const STAMP: &str = "list.txt";

impl Wheels {
    /// Returns the folder with the unpacked wheels, fetching them if needed.
    ///
    /// # Errors
    /// The reason why they are unavailable.
    pub fn fetch(&self) -> Result<PathBuf, String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err("the wheels are for x86-64 Linux only".into());
        }
        let all = crate::root().join("target/wheels");
        let folder = all.join(self.name);
        if std::fs::read_to_string(folder.join(STAMP)).is_ok_and(|list| list == self.list) {
            return Ok(folder);
        }
        let text = |error: std::io::Error| error.to_string();
        // Under a temporary name first, so that a folder of this name is complete.
        let new = all.join(format!("{}.new", self.name));
        for old in [&folder, &new] {
            if old.exists() {
                std::fs::remove_dir_all(old).map_err(text)?;
            }
        }
        std::fs::create_dir_all(&new).map_err(text)?;
        std::fs::write(new.join(STAMP), self.list).map_err(text)?;
        println!("Fetching with pip, into {}:", folder.display());
        self.list.lines().filter(|line| !line.starts_with('#')).for_each(|line| {
            println!("  {}", line.split(' ').next().unwrap_or_default());
        });
        let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"];
        python(&new, pip.iter().copied().chain(["--only-binary=:all:", "--requirement", STAMP]))?;
        for entry in std::fs::read_dir(&new).map_err(text)?.flatten() {
            if entry.path().extension().is_some_and(|e| e == "whl") {
                let wheel = entry.file_name().to_string_lossy().into_owned();
                python(&new, ["-m", "zipfile", "-e", &wheel, "."])?;
                std::fs::remove_file(entry.path()).map_err(text)?;
            }
        }
        std::fs::rename(&new, &folder).map_err(text)?;
        Ok(folder)
    }
}

fn python<'a>(folder: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let output = Command::new("python3").args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("python3 does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("python3 fails without a message").to_owned())
}

/// NVIDIA's compilers.
pub struct Nvidia {
    /// The library NVRTC.
    pub nvrtc: PathBuf,
    /// The program ptxas.
    pub ptxas: PathBuf,
}

impl Nvidia {
    /// Fetches NVRTC and ptxas.
    ///
    /// # Errors
    /// The reason why they are unavailable.
    pub fn fetch() -> Result<Nvidia, String> {
        let folder = NVIDIA.fetch()?.join("nvidia");
        let nvidia =
            Nvidia { nvrtc: folder.join("cuda_nvrtc/lib/libnvrtc.so.12"), ptxas: folder.join("cuda_nvcc/bin/ptxas") };
        for file in [&nvidia.nvrtc, &nvidia.ptxas] {
            // Unpacking does not restore the archive's permissions.
            #[cfg(unix)]
            std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(nvidia)
    }
}

/// Returns the variables with which an OpenCL loader and the dynamic linker find Intel's OpenCL
/// beside the system's drivers.
///
/// # Errors
/// The reason why it is unavailable.
pub fn intel() -> Result<Vec<(String, String)>, String> {
    let folder = INTEL.fetch()?;
    let mut libraries = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|error| error.to_string())?.flatten() {
        let library = entry.path().join("data/lib");
        if library.is_dir() {
            libraries.push(library.to_string_lossy().into_owned());
        }
    }
    libraries.sort();
    let driver = libraries.iter().map(|folder| Path::new(folder).join("libintelocl.so")).find(|file| file.exists());
    let driver = driver.ok_or_else(|| format!("no libintelocl.so in {}", folder.display()))?;
    // All drivers in one folder, as a loader reads only one.
    let vendors = folder.join("vendors");
    let _ = std::fs::remove_dir_all(&vendors);
    let put = |name: &std::ffi::OsStr, text: &str| std::fs::write(vendors.join(name), text).map_err(|e| e.to_string());
    std::fs::create_dir_all(&vendors).map_err(|error| error.to_string())?;
    for entry in std::fs::read_dir("/etc/OpenCL/vendors").into_iter().flatten().flatten() {
        put(&entry.file_name(), &std::fs::read_to_string(entry.path()).unwrap_or_default())?;
    }
    put("portcullis-intel.icd".as_ref(), &driver.to_string_lossy())?;
    let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    libraries.extend((!before.is_empty()).then_some(before));
    let vendors = vendors.to_string_lossy().into_owned();
    Ok(vec![
        ("LD_LIBRARY_PATH".into(), libraries.join(":")),
        ("OCL_ICD_VENDORS".into(), vendors.clone()),
        ("OPENCL_VENDOR_PATH".into(), vendors),
    ])
}
