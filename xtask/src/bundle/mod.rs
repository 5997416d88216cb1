//! `cargo xtask gpu-bundle`: one folder with all that it takes to try Portcullis on another
//! machine's GPU.

mod dpdk;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::executables::{self, Executable};
use crate::test::can_build_dpdk;
use crate::wheels::Nvidia;

/// Bytes that a bundle may have: it has to get to machines that are lent for minutes.
const LIMIT: u64 = 60 << 20;

const SCRIPT: &str = include_str!("gpu-check.sh");

/// Benches of devices; those that there are.
const BENCHES: [&str; 3] = ["cuda", "wgpu", "opencl"];

/// What headless servers often lack: the library, and the Debian package whose licence goes with
/// it.
const LOADERS: [(&str, &str); 2] = [("libvulkan.so.1", "libvulkan1"), ("libOpenCL.so.1", "ocl-icd-libopencl1")];

const README: &str = "\
Portcullis, to be tried on an NVIDIA GPU: ./gpu-check.sh [FILE]

The script says at its head what it does and what it needs. FILE, gpu-check.json where nothing is
said, is the report. benches/results/README.md in the repository says what becomes of it.

bin/       the program and its benches, and the program with DPDK
cubins/    filters compiled ahead, for machines with a driver and no NVRTC
lib/       the loaders of Vulkan and OpenCL, for machines that have none, and DPDK's libraries
licences/  those of the loaders, of DPDK, and of what it needs

";

/// Makes the bundle in `folder`, in place of what is there of an earlier one.
pub fn run(folder: Option<&Path>) -> Result<(), String> {
    let root = crate::root();
    let folder = folder.map_or_else(|| root.join("target/gpu-bundle"), Path::to_owned);
    clear(&folder)?;
    // First, for it says what kind of folder this is, should the rest fail.
    let script = folder.join("gpu-check.sh");
    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&script, SCRIPT)).map_err(|e| at(&script, &e))?;
    executable(&script)?;
    for part in ["bin", "cubins", "lib", "licences", "samples", "shaders"] {
        std::fs::create_dir_all(folder.join(part)).map_err(|e| at(&folder.join(part), &e))?;
    }
    // First, as the other program without it takes its place.
    if can_build_dpdk() {
        let program = with_dpdk(&root)?;
        strip(&program, &folder.join("bin/portcullis-dpdk"))?;
        dpdk::put_in(&program, &folder)?;
    } else {
        println!("No DPDK here to be put in: install libdpdk-dev and libclang-dev. The bundle has no l2fwd.");
    }
    for (name, executable) in executables(&root)? {
        strip(&executable, &folder.join("bin").join(name))?;
    }
    for (library, package) in LOADERS {
        let found = crate::find_library(library);
        let found = found.ok_or_else(|| format!("no {library} here to put in: install {package}"))?;
        copy(&found, &folder.join("lib").join(library))?;
        let licence = format!("/usr/share/doc/{package}/copyright");
        copy(Path::new(&licence), &folder.join("licences").join(package))?;
    }
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "samples/mixed.pcap"] {
        copy(&root.join(file), &folder.join(file))?;
    }
    for entry in std::fs::read_dir(root.join("shaders")).map_err(|e| at(&root.join("shaders"), &e))?.flatten() {
        copy(&entry.path(), &folder.join("shaders").join(entry.file_name()))?;
    }
    cubins(&root, &folder.join("cubins"))?;

    let needs = glibc(&folder.join("bin"))?;
    let needs = format!("The programs need x86-64 and the GNU C library {needs} or newer.\n");
    for (file, text) in
        [(folder.join("README"), format!("{README}{needs}")), (folder.join("COMMIT"), commit(&root)? + "\n")]
    {
        std::fs::write(&file, text).map_err(|e| at(&file, &e))?;
    }
    let bytes = size(&folder).map_err(|e| at(&folder, &e))?;
    print!("{}: {:.1} MiB. {needs}", folder.display(), bytes as f64 / f64::from(1 << 20));
    if bytes > LIMIT {
        return Err(format!("the bundle has {bytes} bytes, and {LIMIT} are the limit"));
    }
    Ok(())
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Takes an earlier bundle away, and nothing else: a folder with other things in it is refused.
fn clear(folder: &Path) -> Result<(), String> {
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return Ok(());
    }
    if !folder.join("gpu-check.sh").is_file() {
        return Err(format!("{} has something else in it than a bundle: name another folder", folder.display()));
    }
    std::fs::remove_dir_all(folder).map_err(|e| at(folder, &e))
}

/// The program and the benches, built for use, by the names that they have in the bundle.
fn executables(root: &Path) -> Result<Vec<(String, PathBuf)>, String> {
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

/// The program with DPDK, built for use with CUDA, and without the devices that the other program
/// is for: a bundle is small.
fn with_dpdk(root: &Path) -> Result<PathBuf, String> {
    let mut arguments = vec!["build", "--release", "--package", "portcullis-cli", "--bin", "portcullis"];
    arguments.extend(["--no-default-features", "--features", "cpu,cuda,dpdk"]);
    let found = built(root, &arguments, "bin")?.find(|built| built.name == "portcullis").map(|built| built.path);
    found.ok_or_else(|| "cargo has not built the program with DPDK".into())
}

/// Executables of a kind that a call of cargo makes.
fn built(root: &Path, arguments: &[&str], kind: &'static str) -> Result<impl Iterator<Item = Executable>, String> {
    println!("cargo {}", arguments.join(" "));
    Ok(executables::built(root, arguments)?.into_iter().filter(move |built| built.kind == kind))
}

/// A copy without what only debuggers read, which is most of it.
fn strip(from: &Path, to: &Path) -> Result<(), String> {
    let status = Command::new("strip").arg("--strip-all").arg("-o").arg(to).arg(from).status();
    match status {
        Ok(status) if status.success() => executable(to),
        Ok(status) => Err(format!("strip of {} ends with {status}", from.display())),
        Err(error) => Err(format!("strip does not start (Debian's package binutils): {error}")),
    }
}

fn executable(file: &Path) -> Result<(), String> {
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(|e| at(file, &e))?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|e| at(from, &e))
}

/// Filters as machine code, where there is an NVRTC to make it.
fn cubins(root: &Path, folder: &Path) -> Result<(), String> {
    let Nvidia { nvrtc, .. } =
        Nvidia::fetch().map_err(|reason| format!("no NVRTC to compile filters with: {reason}"))?;
    let mut command = crate::cargo(root);
    command.args(["run", "--quiet", "--package", "portcullis-compat-tests", "--bin", "cubins", "--"]).arg(folder);
    let status = command.env("PORTCULLIS_NVRTC", nvrtc).status();
    match status.map_err(|error| format!("cargo does not start: {error}"))?.success() {
        true => Ok(()),
        false => Err("the filters could not be compiled".into()),
    }
}

/// The newest version of the C library that any of the programs needs a symbol of.
fn glibc(programs: &Path) -> Result<String, String> {
    let mut newest = Vec::new();
    for entry in std::fs::read_dir(programs).map_err(|e| at(programs, &e))?.flatten() {
        let output = Command::new("objdump").arg("-T").arg(entry.path()).output();
        let output = output.map_err(|error| format!("objdump does not start (Debian's package binutils): {error}"))?;
        newest = newest.max(version(&String::from_utf8_lossy(&output.stdout)));
    }
    match newest.is_empty() {
        true => Err(format!("no program in {} names a version of the C library", programs.display())),
        false => Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join(".")),
    }
}

/// The newest version in a table of symbols: `GLIBC_2.34`.
fn version(table: &str) -> Vec<u32> {
    let versions = table.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
    let numbers =
        versions.filter_map(|word| word.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok()).collect());
    numbers.max().unwrap_or_default()
}

/// The commit that the bundle is made of; with a remark where the tree has changes that are in no
/// commit.
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
    fn versions_of_the_c_library_are_compared_as_numbers() {
        let table =
            "0000 DF *UND* 0000 (GLIBC_2.9) a\n0000 DF *UND* 0000 (GLIBC_2.34) b\n0000 (GLIBC_2.3.4) c (GCC_3.0) d";
        assert_eq!(version(table), [2, 34]);
        assert!(version("0000 (GLIBC_PRIVATE) a").is_empty());
    }

    #[test]
    fn only_a_bundle_is_taken_away() {
        let folder = std::env::temp_dir().join(format!("portcullis-bundle-{}", std::process::id()));
        clear(&folder).unwrap();
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        assert!(clear(&folder).unwrap_err().contains("something else"));
        std::fs::write(folder.join("gpu-check.sh"), "").unwrap();
        clear(&folder).unwrap();
        assert!(!folder.exists());
    }

    /// Whatever steps print, and however they end. The programs are shell scripts here.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_report_is_json_and_says_what_is_missing() {
        let folder = std::env::temp_dir().join(format!("portcullis-gpu-check-{}", std::process::id()));
        for part in ["bin", "lib", "cubins"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        let put = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            executable(&folder.join(name)).unwrap();
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
        assert_eq!(command.status().unwrap().code(), Some(1), "steps fail");
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
        assert!(step("selftest opencl")["result"].is_null(), "half a file is none");
        assert_eq!(step("bench opencl")["skipped"], "the bundle has no such bench");
        let mut command = Command::new("sh");
        command.arg(folder.join("gpu-check.sh")).arg(folder.join("none/report.json"));
        assert_eq!(command.stderr(Stdio::null()).status().unwrap().code(), Some(2));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
