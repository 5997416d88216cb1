//! Vulkan's driver manifests: why the loader finds no driver that creates an instance.
//!
//! The loader itself says nothing to its callers. It reads manifests, JSON files that name a
//! driver's library, and ignores each whose library does not load (LoaderDriverInterface.md,
//! "Driver Discovery on Linux").

use std::path::{Path, PathBuf};

/// Environment variables that replace the search for manifests, the older name last.
const FILE_VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Folders that the loader searches.
const FOLDERS: [&str; 3] = ["/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];

/// Libraries that NVIDIA's driver opens or links to, with Debian's packages. Containers that mount
/// the driver often lack them.
const NVIDIA_NEEDS: [(&str, &str); 6] = [
    ("libGLdispatch.so.0", "libglvnd0"),
    ("libEGL.so.1", "libegl1"),
    ("libGLX.so.0", "libglx0"),
    ("libGL.so.1", "libgl1"),
    ("libOpenGL.so.0", "libopengl0"),
    ("libGLESv2.so.2", "libgles2"),
];

/// Describes what is wrong with each driver of this machine; `None` if there is no manifest.
pub fn describe_faults() -> Option<String> {
    let named = FILE_VARIABLES.iter().find_map(|name| std::env::var_os(name).filter(|files| !files.is_empty()));
    let manifests: Vec<PathBuf> = match named {
        Some(files) => std::env::split_paths(&files).collect(),
        None => FOLDERS.iter().flat_map(|folder| manifests(Path::new(folder))).collect(),
    };
    let faults: Vec<String> = manifests.iter().map(|manifest| describe_fault(manifest, load)).collect();
    (!faults.is_empty()).then(|| faults.join("; "))
}

/// Returns the manifests in a folder, sorted.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_manifest = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "json");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_manifest).collect();
    found.sort();
    found
}

/// Loads a library as the loader does; the error is the dynamic linker's.
fn load(library: &str) -> Result<(), String> {
    // SAFETY: runs the initialisers of a library that Vulkan's loader has just tried to load.
    match unsafe { ash::Entry::load_from(library) } {
        Err(ash::LoadingError::LibraryLoadFailure(error)) => Err(error.to_string()),
        // A driver's library need not export the loader's functions.
        Err(ash::LoadingError::MissingEntryPoint(_)) | Ok(_) => Ok(()),
    }
}

/// Describes why the driver of a manifest creates no instance.
fn describe_fault(manifest: &Path, load: impl Fn(&str) -> Result<(), String>) -> String {
    let file = manifest.display();
    let text = match std::fs::read_to_string(manifest) {
        Ok(text) => text,
        Err(error) => return format!("{file}: {error}"),
    };
    let Some(library) = library_path(&text) else { return format!("{file} names no library") };
    // A path with a folder is relative to the manifest's, a bare name is the linker's to find.
    let place = match (library.contains('/'), manifest.parent()) {
        (true, Some(folder)) => folder.join(library).to_string_lossy().into_owned(),
        _ => library.to_owned(),
    };
    let fault = match load(&place) {
        Ok(()) => format!("{library}, which {file} names, loads but creates no instance"),
        Err(error) => format!("{library}, which {file} names, does not load: {error}"),
    };
    let is_missing = |(library, _): &&(&str, &str)| load(library).is_err();
    let missing: Vec<_> = NVIDIA_NEEDS.iter().filter(is_missing).filter(|_| library.contains("nvidia")).collect();
    if missing.is_empty() {
        return fault;
    }
    let join = |part: fn(&(&'static str, &'static str)) -> &'static str| {
        missing.iter().map(|it| part(it)).collect::<Vec<_>>().join(" ")
    };
    format!("{fault}; it needs {}, which are not here: install {} (Debian's names)", join(|it| it.0), join(|it| it.1))
}

/// Returns the value of `library_path` in a manifest.
fn library_path(manifest: &str) -> Option<&str> {
    let (_, rest) = manifest.split_once("\"library_path\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    rest.split_once('"').map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a manifest to a folder of its own, which is removed with the returned guard.
    struct Manifest(PathBuf);

    impl Manifest {
        fn new(name: &str, text: &str) -> Manifest {
            let folder = std::env::temp_dir().join(format!("portcullis-icd-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("icd.json"), text).unwrap();
            Manifest(folder)
        }

        fn fault(&self, load: impl Fn(&str) -> Result<(), String>) -> String {
            describe_fault(&self.0.join("icd.json"), load).replace(self.0.to_str().unwrap(), "ICD")
        }
    }

    impl Drop for Manifest {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_driver_that_does_not_load_is_named_with_the_linkers_reason() {
        let text =
            r#"{"file_format_version": "1.0.1", "ICD": {"library_path" : "libGLX_nvidia.so.0", "api_version": "1.4"}}"#;
        let manifest = Manifest::new("nvidia", text);
        let load = |library: &str| match library {
            "libGL.so.1" | "libGLX.so.0" | "libGLdispatch.so.0" | "libOpenGL.so.0" => Ok(()),
            _ => Err(format!("{library}: cannot open shared object file: No such file or directory")),
        };
        assert_eq!(
            manifest.fault(load),
            "libGLX_nvidia.so.0, which ICD/icd.json names, does not load: libGLX_nvidia.so.0: cannot open shared object \
             file: No such file or directory; it needs libEGL.so.1 libGLESv2.so.2, which are not here: install libegl1 \
             libgles2 (Debian's names)"
        );
        // With everything there, the driver is at fault.
        assert_eq!(
            manifest.fault(|_| Ok(())),
            "libGLX_nvidia.so.0, which ICD/icd.json names, loads but creates no instance"
        );
    }

    #[test]
    fn other_drivers_need_none_of_nvidias_libraries() {
        let manifest = Manifest::new("relative", r#"{"ICD":{"library_path":"../lib/libvulkan_lvp.so"}}"#);
        let fault = manifest.fault(|library| Err(format!("{library} is gone")));
        assert!(
            fault.starts_with("../lib/libvulkan_lvp.so, which ICD/icd.json names, does not load: ICD/../lib"),
            "{fault}"
        );
        assert!(!fault.contains("install"), "{fault}");
        assert_eq!(Manifest::new("empty", "{}").fault(|_| Ok(())), "ICD/icd.json names no library");
        let missing = describe_fault(Path::new("/nowhere/icd.json"), |_| Ok(()));
        assert_eq!(missing, "/nowhere/icd.json: No such file or directory (os error 2)");
    }

    #[test]
    fn the_linkers_reason_is_passed_on() {
        let reason = load("libportcullis-none.so.9").unwrap_err();
        assert!(reason.contains("libportcullis-none.so.9"), "{reason}");
    }
}
