//! `cargo xtask gpu-bundle`: a folder with everything needed to try Portcullis on another machine's
//! GPU.

mod dpdk;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::executables::{self, Executable};
use crate::test::can_build_dpdk;
use crate::wheels::Nvidia;

/// Maximum size of a bundle, in bytes: it is copied to machines that are available for minutes.
const MAX_BYTES: u64 = 60 << 20;

const SCRIPT: &str = include_str!("gpu-check.sh");

/// Device benchmarks; those that exist are included.
const BENCHES: [&str; 3] = ["cuda", "wgpu", "opencl"];

/// Libraries that headless servers often lack, each with the Debian package that has its licence.
const LOADERS: [(&str, &str); 2] = [("libvulkan.so.1", "libvulkan1"), ("libOpenCL.so.1", "ocl-icd-libopencl1")];

const README: &str = "\
Portcullis, ready to try on an NVIDIA GPU: ./gpu-check.sh [FILE]

The head of the script says what it does and needs. FILE, gpu-check.json by default, is the
report. benches/results/README.md in the repository says how reports are used.

bin/       the program and its benchmarks, and the program with DPDK
cubins/    precompiled filters, for machines with a driver and no NVRTC
lib/       the loaders of Vulkan and OpenCL, for machines that have none, and DPDK's libraries
licences/  licences of the loaders, of DPDK and of its dependencies

";

/// Creates the bundle in `folder`, replacing an earlier one.
pub fn run(folder: Option<&Path>) -> Result<(), String> {
    let root = crate::root();
    let folder = folder.map_or_else(|| root.join("target/gpu-bundle"), Path::to_owned);
    clear(&folder)?;
    // First of all, as this file marks the folder as a bundle in case of an error later.
    let script = folder.join("gpu-check.sh");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&script, SCRIPT))
        .map_err(|e| io_error(&script, &e))?;
    make_executable(&script)?;
    for part in ["bin", "cubins", "lib", "licences", "samples", "shaders"] {
        std::fs::create_dir_all(folder.join(part)).map_err(|e| io_error(&folder.join(part), &e))?;
    }
    // Before the other programs, as both builds write the same file.
    if can_build_dpdk() {
        let program = build_with_dpdk(&root)?;
        strip(&program, &folder.join("bin/portcullis-dpdk"))?;
        dpdk::add_to_bundle(&program, &folder)?;
    } else {
        println!("DPDK cannot be built: install libdpdk-dev and libclang-dev. The bundle has no l2fwd.");
    }
    for (name, executable) in build_executables(&root)? {
        strip(&executable, &folder.join("bin").join(name))?;
    }
    for (library, package) in LOADERS {
        let found = crate::find_library(library);
        let found = found.ok_or_else(|| format!("{library} is missing: install {package}"))?;
        copy(&found, &folder.join("lib").join(library))?;
        let licence = format!("/usr/share/doc/{package}/copyright");
        copy(Path::new(&licence), &folder.join("licences").join(package))?;
    }
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "samples/mixed.pcap"] {
        copy(&root.join(file), &folder.join(file))?;
    }
    for entry in std::fs::read_dir(root.join("shaders")).map_err(|e| io_error(&root.join("shaders"), &e))?.flatten() {
        copy(&entry.path(), &folder.join("shaders").join(entry.file_name()))?;
    }
    compile_cubins(&root, &folder.join("cubins"))?;

    let needs = required_glibc(&folder.join("bin"))?;
    let needs = format!("The programs need x86-64 and the GNU C library {needs} or newer.\n");
    for (file, text) in
        [(folder.join("README"), format!("{README}{needs}")), (folder.join("COMMIT"), commit(&root)? + "\n")]
    {
        std::fs::write(&file, text).map_err(|e| io_error(&file, &e))?;
    }
    let bytes = size(&folder).map_err(|e| io_error(&folder, &e))?;
    print!("{}: {:.1} MiB. {needs}", folder.display(), bytes as f64 / f64::from(1 << 20));
    if bytes > MAX_BYTES {
        return Err(format!("the bundle has {bytes} bytes, and at most {MAX_BYTES} are allowed"));
    }
    Ok(())
}

fn io_error(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Removes an earlier bundle; refuses a folder with other contents.
fn clear(folder: &Path) -> Result<(), String> {
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return Ok(());
    }
    if !folder.join("gpu-check.sh").is_file() {
        return Err(format!("{} holds something else than a bundle: name another folder", folder.display()));
    }
    std::fs::remove_dir_all(folder).map_err(|e| io_error(folder, &e))
}

/// Builds the program and the benchmarks in release; returns them by their names in the bundle.
fn build_executables(root: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let benches: Vec<&str> =
        BENCHES.into_iter().filter(|bench| root.join(format!("benches/{bench}.rs")).exists()).collect();
    let mut arguments = vec!["bench", "--no-run", "--package", "portcullis"];
    arguments.extend(crate::FEATURES);
    benches.iter().for_each(|bench| arguments.extend(["--bench", bench]));
    let mut found: Vec<(String, PathBuf)> =
        built(root, &arguments, "bench")?.map(|bench| (format!("bench-{}", bench.name), bench.path)).collect();
    let mut arguments = vec!["build", "--release", "--package", "portcullis-cli", "--bin", "portcullis"];
    arguments.extend(crate::FEATURES);
    found.extend(built(root, &arguments, "bin")?.map(|program| (program.name, program.path)));
    let all = benches.iter().map(|bench| format!("bench-{bench}")).chain(["portcullis".into()]);
    match all.into_iter().find(|name| !found.iter().any(|(built, _)| built == name)) {
        Some(missing) => Err(format!("cargo has not built {missing}")),
        None => Ok(found),
    }
}

/// Builds the program with DPDK and CUDA only, which keeps the bundle small.
fn build_with_dpdk(root: &Path) -> Result<PathBuf, String> {
    let mut arguments = vec!["build", "--release", "--package", "portcullis-cli", "--bin", "portcullis"];
    arguments.extend(["--no-default-features", "--features", "cpu,cuda,dpdk"]);
    let found = built(root, &arguments, "bin")?.find(|built| built.name == "portcullis").map(|built| built.path);
    found.ok_or_else(|| "cargo has not built the program with DPDK".into())
}

/// Returns the executables of one kind that a call of cargo builds.
fn built(root: &Path, arguments: &[&str], kind: &'static str) -> Result<impl Iterator<Item = Executable>, String> {
    println!("cargo {}", arguments.join(" "));
    Ok(executables::built(root, arguments)?.into_iter().filter(move |built| built.kind == kind))
}

/// Copies a program without its debug information and symbols, which are most of it.
fn strip(from: &Path, to: &Path) -> Result<(), String> {
    let status = Command::new("strip").arg("--strip-all").arg("-o").arg(to).arg(from).status();
    match status {
        Ok(status) if status.success() => make_executable(to),
        Ok(status) => Err(format!("strip of {} ends with {status}", from.display())),
        Err(error) => Err(format!("strip does not start (Debian's package binutils): {error}")),
    }
}

fn make_executable(file: &Path) -> Result<(), String> {
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .map_err(|e| io_error(file, &e))?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|e| io_error(from, &e))
}

/// Compiles filters to machine code with NVRTC.
fn compile_cubins(root: &Path, folder: &Path) -> Result<(), String> {
    let Nvidia { nvrtc, .. } =
        Nvidia::fetch().map_err(|reason| format!("cannot fetch NVRTC to compile filters: {reason}"))?;
    let mut command = crate::cargo(root);
    command.args(["run", "--quiet", "--package", "portcullis-compat-tests", "--bin", "cubins", "--"]).arg(folder);
    let status = command.env("PORTCULLIS_NVRTC", nvrtc).status();
    match status.map_err(|error| format!("cargo does not start: {error}"))?.success() {
        true => Ok(()),
        false => Err("the filters could not be compiled".into()),
    }
}

/// Returns the newest version of the GNU C library that one of the programs needs.
fn required_glibc(programs: &Path) -> Result<String, String> {
    let mut newest = Vec::new();
    for entry in std::fs::read_dir(programs).map_err(|e| io_error(programs, &e))?.flatten() {
        let output = Command::new("objdump").arg("-T").arg(entry.path()).output();
        let output = output.map_err(|error| format!("objdump does not start (Debian's package binutils): {error}"))?;
        newest = newest.max(newest_glibc(&String::from_utf8_lossy(&output.stdout)));
    }
    match newest.is_empty() {
        true => Err(format!("no program in {} names a version of the GNU C library", programs.display())),
        false => Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join(".")),
    }
}

/// Returns the newest version in a symbol table, such as `GLIBC_2.34`.
fn newest_glibc(table: &str) -> Vec<u32> {
    let versions = table.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
    let numbers =
        versions.filter_map(|word| word.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok()).collect());
    numbers.max().unwrap_or_default()
}

/// Returns the commit that the bundle is built from, with a remark if the tree has uncommitted
/// changes.
fn commit(root: &Path) -> Result<String, String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("git does not start: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    };
    let changed = if git(&["status", "--porcelain"])?.is_empty() { "" } else { ", with changes" };
    Ok(git(&["rev-parse", "HEAD"])? + changed)
}

fn size(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_versions_are_compared_as_numbers() {
        let table =
            "0000 DF *UND* 0000 (GLIBC_2.9) a\n0000 DF *UND* 0000 (GLIBC_2.34) b\n0000 (GLIBC_2.3.4) c (GCC_3.0) d";
        assert_eq!(newest_glibc(table), [2, 34]);
        assert!(newest_glibc("0000 (GLIBC_PRIVATE) a").is_empty());
    }

    #[test]
    fn only_a_bundle_is_removed() {
        let folder = std::env::temp_dir().join(format!("portcullis-bundle-{}", std::process::id()));
        clear(&folder).unwrap();
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        assert!(clear(&folder).unwrap_err().contains("holds something else"));
        std::fs::write(folder.join("gpu-check.sh"), "").unwrap();
        clear(&folder).unwrap();
        assert!(!folder.exists());
    }

    /// Proves it for any output and exit code of a step. The programs are shell scripts here.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_report_is_valid_json_and_names_skipped_steps() {
        let folder = std::env::temp_dir().join(format!("portcullis-gpu-check-{}", std::process::id()));
        for part in ["bin", "lib", "cubins"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        let put = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            make_executable(&folder.join(name)).unwrap();
        };
        put("gpu-check.sh", SCRIPT);
        put("COMMIT", "0123abc\n");
        for (loader, _) in LOADERS {
            put(&format!("lib/{loader}"), "");
        }
        put(
            "bin/portcullis",
            r#"#!/bin/sh
            case "$*" in
            "devices --json") echo '{"backends": []}' ;;
            devices) printf 'cuda: GPUs\n  none: no "driver" in C:\\here\nwgpu: more\n  wgpu:0 a card\nopencl: last\n  opencl:0 x\n' ;;
            *"--device wgpu"*) printf 'tab\tand \\ and \303\251\001\n' && echo '[1, 2]' >"$5" ;;
            *) echo "gives up" >&2; echo '{"half' >"$5"; exit 124 ;;
            esac
            "#,
        );
        put("bin/bench-wgpu", "#!/bin/sh\necho '{\"figures\": 3}' >\"$PORTCULLIS_BENCH_JSON\"\nexit 3\n");
        let report = folder.join("report.json");
        let mut command = Command::new("sh");
        command.arg(folder.join("gpu-check.sh")).arg(&report).stdout(Stdio::null());
        assert_eq!(command.status().unwrap().code(), Some(1), "two steps fail");
        let text = std::fs::read_to_string(&report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(value["commit"], "0123abc");
        let step = |name: &str| {
            let mut steps = value["steps"].as_array().unwrap().iter();
            steps.find(|step| step["name"] == name).unwrap_or_else(|| panic!("no {name}\n{text}")).clone()
        };
        assert_eq!(step("devices")["rc"], 0);
        for name in ["selftest cuda", "bench cuda", "l2fwd", "l2fwd over a capture"] {
            assert_eq!(step(name)["skipped"], r#"no "driver" in C:\here"#);
        }
        assert_eq!(step("selftest wgpu")["result"], serde_json::json!([1, 2]));
        assert_eq!(step("selftest wgpu")["output"], "tab\tand \\ and ");
        assert_eq!((&step("bench wgpu")["rc"], &step("bench wgpu")["result"]["figures"]), (&3.into(), &3.into()));
        assert_eq!(
            (&step("selftest opencl")["rc"], &step("selftest opencl")["output"]),
            (&124.into(), &"gives up".into())
        );
        assert!(step("selftest opencl")["result"].is_null(), "an incomplete result is dropped");
        assert_eq!(step("bench opencl")["skipped"], "the bundle has no such benchmark");
        let mut command = Command::new("sh");
        command.arg(folder.join("gpu-check.sh")).arg(folder.join("none/report.json"));
        assert_eq!(command.stderr(Stdio::null()).status().unwrap().code(), Some(2));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
