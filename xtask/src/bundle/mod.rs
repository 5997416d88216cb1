//! `cargo xtask gpu-bundle`: one packed file with everything needed to try Portcullis on another
//! machine's GPU.
//!
//! `tool/` is a program of its own, which is part of the bundle.

mod dpdk;
mod libraries;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::executables::{self, Executable};
use crate::test::can_build_dpdk;
use crate::wheels::Nvidia;

/// Maximum size of the packed bundle, in bytes: it is copied to machines that are available for
/// minutes.
const MAX_BYTES: u64 = 25 << 20;

const SCRIPT: &str = include_str!("gpu-check.sh");

/// Programs of the bundle: the target that cargo builds, and the name in the bundle.
const PROGRAMS: [(&str, &str); 3] =
    [("portcullis", "portcullis"), ("device_suites", "device-suites"), ("gpu-tool", "gpu-tool")];

/// Libraries that headless servers often lack, each with its Debian package: the loaders of Vulkan
/// and OpenCL, and those of OpenGL, to which NVIDIA's Vulkan driver links.
const LOADERS: [(&str, &str); 8] = [
    ("libvulkan.so.1", "libvulkan1"),
    ("libOpenCL.so.1", "ocl-icd-libopencl1"),
    ("libGLdispatch.so.0", "libglvnd0"),
    ("libEGL.so.1", "libegl1"),
    ("libGLX.so.0", "libglx0"),
    ("libGL.so.1", "libgl1"),
    ("libOpenGL.so.0", "libopengl0"),
    ("libGLESv2.so.2", "libgles2"),
];

const README: &str = "\
Portcullis, ready to try on an NVIDIA GPU: ./gpu-check.sh [FILE]

The head of the script says what it does and needs. FILE, gpu-check.json by default, is the
report. benches/results/README.md in the repository says how reports are used.

bin/       the program, the suites of devices, and what the script needs besides
cubins/    precompiled filters, for machines with a driver and no NVRTC
lib/       the loaders of Vulkan, OpenCL and OpenGL, for machines that have none, and DPDK's libraries
licences/  licences of the loaders, of DPDK and of their dependencies

";

/// Creates the bundle in `folder`, replacing an earlier one, and packs it beside the folder.
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
    for part in ["bin", "cubins", "licences"] {
        std::fs::create_dir_all(folder.join(part)).map_err(|e| io_error(&folder.join(part), &e))?;
    }
    let has_dpdk = can_build_dpdk();
    let programs = build_programs(&root, has_dpdk)?;
    for (target, name) in PROGRAMS {
        copy(find(&programs, target)?, &folder.join("bin").join(name))?;
    }
    if has_dpdk {
        dpdk::add_to_bundle(&folder.join("bin/portcullis"), &folder)?;
    } else {
        println!("DPDK cannot be built: install libdpdk-dev and libclang-dev. The bundle has no l2fwd.");
    }
    add_loaders(&folder)?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(file), &folder.join(file))?;
    }
    compile_cubins(find(&programs, "cubins")?, &folder.join("cubins"))?;

    let needs = required_glibc(&folder.join("bin"))?;
    let needs = format!("The programs need x86-64 and the GNU C library {needs} or newer.\n");
    for (file, text) in
        [(folder.join("README"), format!("{README}{needs}")), (folder.join("COMMIT"), commit(&root)? + "\n")]
    {
        std::fs::write(&file, text).map_err(|e| io_error(&file, &e))?;
    }
    let packed = pack(&folder)?;
    let bytes = std::fs::metadata(&packed).map_err(|e| io_error(&packed, &e))?.len();
    print!("{}: {:.1} MiB. {needs}", packed.display(), bytes as f64 / f64::from(1 << 20));
    check_size(bytes)
}

/// Refuses a packed bundle that is too large.
fn check_size(bytes: u64) -> Result<(), String> {
    match bytes <= MAX_BYTES {
        true => Ok(()),
        false => Err(format!("the packed bundle has {bytes} bytes, and at most {MAX_BYTES} are allowed")),
    }
}

/// Packs a folder into `FOLDER.tar.gz`, which every system unpacks; returns that file.
fn pack(folder: &Path) -> Result<PathBuf, String> {
    let name = folder.file_name().ok_or_else(|| format!("{} has no name to pack it by", folder.display()))?;
    let mut packed = folder.as_os_str().to_owned();
    packed.push(".tar.gz");
    let packed = PathBuf::from(packed);
    let mut command = Command::new("tar");
    command.args(["--create", "--owner=0", "--group=0", "--sort=name", "--use-compress-program=gzip -9"]);
    command.arg("--file").arg(&packed).arg("--directory").arg(folder.join("..")).arg(name);
    match command.status().map_err(|error| format!("tar does not start: {error}"))? {
        status if status.success() => Ok(packed),
        status => Err(format!("tar of {} ends with {status}", folder.display())),
    }
}

/// Adds the loaders, what they link to, and their licences.
fn add_loaders(bundle: &Path) -> Result<(), String> {
    let mut all = BTreeSet::new();
    for (library, package) in LOADERS {
        let found = crate::find_library(library);
        let found = found.ok_or_else(|| format!("{library} is missing: install {package}"))?;
        for needed in libraries::linked_libraries(&found)?.into_iter().chain([found]) {
            // Listed under another folder when others link to it; once is enough.
            if !all.iter().any(|known: &PathBuf| known.file_name() == needed.file_name()) {
                all.insert(needed);
            }
        }
    }
    libraries::add_libraries(&all, "lib", bundle)
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

/// Builds the programs in one call, so that they share their libraries. With DPDK the program links
/// to its libraries.
fn build_programs(root: &Path, has_dpdk: bool) -> Result<Vec<Executable>, String> {
    let features = if has_dpdk { "portcullis-cli/opencl,portcullis-cli/dpdk" } else { "portcullis-cli/opencl" };
    let mut arguments = vec!["build", "--profile", "bundle", "--features", features];
    arguments.extend(["--package", "portcullis-cli", "--package", "portcullis-compat-tests", "--package", "xtask"]);
    arguments.extend(["--bin", "portcullis", "--test", "device_suites", "--bin", "gpu-tool", "--bin", "cubins"]);
    println!("cargo {}", arguments.join(" "));
    executables::built(root, &arguments)
}

/// Returns the path of a program that cargo has built.
fn find<'a>(built: &'a [Executable], target: &str) -> Result<&'a Path, String> {
    let program = built.iter().find(|program| program.name == target);
    program.map(|program| program.path.as_path()).ok_or_else(|| format!("cargo has not built {target}"))
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

/// Compiles filters to machine code with NVRTC, by the program `cubins` of the test suites.
fn compile_cubins(program: &Path, folder: &Path) -> Result<(), String> {
    let Nvidia { nvrtc, .. } =
        Nvidia::fetch().map_err(|reason| format!("cannot fetch NVRTC to compile filters: {reason}"))?;
    let status = Command::new(program).arg(folder).env("PORTCULLIS_NVRTC", nvrtc).stdin(Stdio::null()).status();
    match status.map_err(|error| format!("{} does not start: {error}", program.display()))?.success() {
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

    #[test]
    fn the_limit_is_on_the_packed_file() {
        let folder = std::env::temp_dir().join(format!("portcullis-pack-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("part")).unwrap();
        std::fs::write(folder.join("part/zeros"), vec![0; 1 << 20]).unwrap();
        let packed = pack(&folder).unwrap();
        assert!(std::fs::metadata(&packed).unwrap().len() < 1 << 16);
        let listed = Command::new("tar").arg("tzf").arg(&packed).output().unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert_eq!(String::from_utf8_lossy(&listed.stdout), format!("{name}/\n{name}/part/\n{name}/part/zeros\n"));
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::remove_file(&packed).unwrap();
        assert!(pack(Path::new("/")).unwrap_err().contains("has no name"));
        assert_eq!(check_size(MAX_BYTES), Ok(()));
        assert!(check_size(MAX_BYTES + 1).unwrap_err().contains("at most 26214400 are allowed"));
    }

    /// Programs of the bundle, as shell scripts.
    struct FakeBundle(PathBuf);

    impl FakeBundle {
        fn new(name: &str, portcullis: &str) -> FakeBundle {
            let folder = std::env::temp_dir().join(format!("portcullis-{name}-{}", std::process::id()));
            for part in ["bin", "lib", "cubins"] {
                std::fs::create_dir_all(folder.join(part)).unwrap();
            }
            let bundle = FakeBundle(folder);
            bundle.put("gpu-check.sh", SCRIPT);
            bundle.put("COMMIT", "0123abc\n");
            bundle.put("lib/libportcullis-none.so.1", "");
            bundle.put("bin/portcullis", portcullis);
            // Of the files that the tests write, those that end with a bracket are whole.
            let tool = "#!/bin/sh\nif [ \"$1\" = json ]; then grep -q '[]}]$' \"$2\"; else echo \"gpu-tool $1\"; fi\n";
            bundle.put("bin/gpu-tool", tool);
            bundle
        }

        fn put(&self, name: &str, text: &str) {
            std::fs::write(self.0.join(name), text).unwrap();
            make_executable(&self.0.join(name)).unwrap();
        }

        /// Runs the script; returns its exit status, its output and the report.
        fn check(&self) -> (Option<i32>, String, serde_json::Value) {
            let report = self.0.join("report.json");
            let mut command = Command::new("sh");
            command.arg(self.0.join("gpu-check.sh")).arg(&report).env_remove("PORTCULLIS_NVRTC");
            let output = command.output().unwrap();
            let text = std::fs::read_to_string(&report).unwrap();
            let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), value)
        }
    }

    impl Drop for FakeBundle {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn step(report: &serde_json::Value, name: &str) -> serde_json::Value {
        let mut steps = report["steps"].as_array().unwrap().iter();
        steps.find(|step| step["name"] == name).unwrap_or_else(|| panic!("no {name}\n{report}")).clone()
    }

    /// Proves it for any output and exit code of a step.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_report_is_valid_json_and_names_skipped_steps() {
        let bundle = FakeBundle::new(
            "gpu-check",
            r#"#!/bin/sh
            case "$*" in
            "devices --json") echo '{"backends": []}' ;;
            devices) printf 'cuda: GPUs\n  none: no "driver" in C:\\here\nwgpu: more\n  wgpu:0 a card\nopencl: last\n  opencl:0 x\n' ;;
            "selftest --quick --device wgpu"*) printf 'tab\tand \\ and \303\251\001\n' && echo '[1, 2]' >"$6" ;;
            bench*) echo '{"figures": 3}' >"$3"; exit 3 ;;
            *) echo "gives up" >&2; echo '{"half' >"$6"; exit 124 ;;
            esac
            "#,
        );
        let (rc, output, report) = bundle.check();
        assert_eq!(rc, Some(1), "two steps fail");
        assert_eq!(report["commit"], "0123abc");
        assert_eq!(report["found"]["loaders"]["libportcullis-none.so.1"], "the bundle's");
        let step = |name: &str| step(&report, name);
        assert_eq!(step("devices")["rc"], 0);
        let on_cuda = [
            "latency, 64 packets",
            "large",
            "resident",
            "stateful",
            "router",
            "peer",
            "l2fwd, 4 pipelines",
            "suites",
            "memcheck",
        ];
        for name in on_cuda.into_iter().chain(["selftest cuda", "l2fwd, 1 pipeline"]) {
            assert_eq!(step(name)["skipped"], r#"no "driver" in C:\here"#, "{name}");
        }
        assert_eq!(step("selftest wgpu")["result"], serde_json::json!([1, 2]));
        assert_eq!(step("selftest wgpu")["output"], "tab\tand \\ and ");
        let others = step("opencl and wgpu");
        assert_eq!((&others["rc"], &others["result"]["figures"]), (&3.into(), &3.into()));
        let opencl = step("selftest opencl");
        assert_eq!((&opencl["rc"], &opencl["output"]), (&124.into(), &"gives up".into()));
        assert!(opencl["result"].is_null(), "an incomplete result is dropped");
        assert!(output.contains("gpu-tool bars\n"), "{output}");
        let mut command = Command::new("sh");
        command.arg(bundle.0.join("gpu-check.sh")).arg(bundle.0.join("none/report.json"));
        assert_eq!(command.stderr(Stdio::null()).status().unwrap().code(), Some(2));
    }

    /// Each step may use its budget and what is left of those before it, and all of them together
    /// no more than the script's.
    #[test]
    #[cfg(target_os = "linux")]
    fn budgets_add_up_to_less_than_six_minutes() {
        let bundle = FakeBundle::new(
            "gpu-check-limits",
            r#"#!/bin/sh
            case "$*" in devices) printf 'cuda: x\n  cuda:0 a\nwgpu: x\n  wgpu:0 a\nopencl: x\n  opencl:0 a\n' ;; esac
            "#,
        );
        std::fs::create_dir_all(bundle.0.join("lib/dpdk")).unwrap();
        let (rc, output, report) = bundle.check();
        assert_eq!(rc, Some(0), "{output}");
        let limits: Vec<u64> =
            report["steps"].as_array().unwrap().iter().filter_map(|step| step["limit"].as_u64()).collect();
        assert!(limits.len() >= 12 && limits.is_sorted(), "{report}");
        assert!((240..=350).contains(limits.last().unwrap()), "{limits:?}");
    }
}
