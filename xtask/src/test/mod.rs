//! `cargo xtask test`: one command for everything that a change must pass.

mod emulated;
mod failures;
mod features;
mod records;
mod suites;
mod system;
mod tally;

pub use system::can_build_dpdk;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::executables::{self, Executable};
use crate::wheels::{self, Nvidia};
use failures::Failures;
use records::Records;
use suites::TestCounts;
use tally::Tally;

/// Feature sets of the program that are only checked, not built and run.
const FEATURE_SETS: [&[&str]; 5] = [
    &["--no-default-features"],
    &["--no-default-features", "--features", "cpu"],
    &["--no-default-features", "--features", "wgpu"],
    &["--no-default-features", "--features", "cuda"],
    &["--no-default-features", "--features", "opencl"],
];

/// Feature set checked if DPDK is installed: code shared with AF_XDP must build without AF_XDP.
const DPDK_ALONE: &[&str] = &["--no-default-features", "--features", features::DPDK];

/// Devices that may be required, and tools that suites need.
const DEVICES: [&str; 4] = ["cpu", "cuda", "wgpu", "opencl"];
const TOOLS: [&str; 12] = [
    "nvrtc",
    "oclgrind",
    "qemu-aarch64",
    "kernel-bpf",
    "clang-bpf",
    emulated::NAME,
    features::AF_XDP,
    features::NFQUEUE,
    features::DPDK,
    features::PCAP_EXPR,
    "tcpdump",
    "bpftool",
];

/// Options of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Devices and tools that must be available.
    pub require: Vec<String>,
    /// Also test on Intel's OpenCL.
    pub intel: bool,
}

impl Options {
    /// Parses the arguments after `test`; `None` if they are not understood.
    pub fn parse(mut arguments: &[&str]) -> Option<Options> {
        let mut options = Options::default();
        loop {
            arguments = match arguments {
                [] => return Some(options),
                ["--intel", rest @ ..] => {
                    options.intel = true;
                    rest
                }
                ["--require", names, rest @ ..] => {
                    for name in names.split(',') {
                        DEVICES.iter().chain(&TOOLS).find(|known| **known == name)?;
                        options.require.push(name.into());
                    }
                    rest
                }
                _ => return None,
            }
        }
    }
}

/// Published crates, each after its dependencies.
const PUBLISHED: [&str; 17] = [
    "portcullis-core",
    "portcullis-wgsl",
    "portcullis-opencl-c",
    "portcullis-xdp",
    "portcullis-bpf",
    "portcullis-c-writer",
    "portcullis-cache",
    "portcullis-cpu",
    "portcullis-wgpu",
    "portcullis-opencl",
    "portcullis-cuda",
    "portcullis-dpdk-sys",
    "portcullis-io",
    "portcullis",
    "portcullis-conformance",
    "portcullis-bench",
    "portcullis-cli",
];

/// Runs all steps and prints a summary.
///
/// # Errors
/// If a step or a test failed, or the run could not start.
pub fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    system::prepare();
    let records = root.join("target/test-records");
    // Compiled filters of an earlier run would hide what the compilers produce now.
    for folder in [&records, &root.join("target/cache")] {
        let _ = std::fs::remove_dir_all(folder);
    }
    std::fs::create_dir_all(&records).map_err(|e| format!("cannot create {}: {e}", records.display()))?;
    let environment = environment(options, &records)?;

    let mut suite = Suite { root: &root, environment, tally: Tally::default(), failed: Vec::new(), times: Vec::new() };
    suite.step("format", &["fmt", "--all", "--check"], &[]);
    let started = Instant::now();
    let prose = crate::prose::check(&root).inspect_err(|reason| println!("{reason}"));
    suite.end("prose", Tally::one(prose.is_ok()), started);
    let features = features::Features::find(&mut suite, &options.require);
    let workspace = ["--workspace", "--features", &features.names];
    suite.lints("lints", &workspace);
    if features.has_optional() {
        suite.lints("lints without optional features", &features::PACKAGES_EVERYWHERE);
    }
    let dpdk_alone = features.has(features::DPDK).then_some(DPDK_ALONE);
    for features in FEATURE_SETS.into_iter().chain(dpdk_alone) {
        let arguments: Vec<&str> = ["check", "--package", "portcullis", "--package", "portcullis-cli", "--all-targets"]
            .iter()
            .chain(features)
            .copied()
            .collect();
        suite.step(&format!("check {}", features.join(" ")), &arguments, &[]);
    }
    // Without the command line, which turns two of the library's features on.
    let alone = ["check", "--package", "portcullis", "--lib", "--no-default-features", "--features", "cpu"];
    suite.step("check of the library alone", &alone, &[]);
    let documentation = [&["doc", "--no-deps", "--keep-going"], &workspace[..]].concat();
    suite.step("documentation", &documentation, &[("RUSTDOCFLAGS", "-D warnings")]);
    for package in PUBLISHED {
        let arguments = ["package", "--list", "--allow-dirty", "--quiet", "--package", package];
        suite.step(&format!("package list of {package}"), &arguments, &[]);
    }
    let built = suite.build("build of the tests", &workspace);
    suite.tests("tests", suite.suites_of(&built), Some(&workspace));
    emulated::run(&mut suite, &built, &features, &options.require);

    // The program as users build it.
    let report = root.join("target/selftest.json");
    let _ = std::fs::remove_file(&report);
    let file = report.to_str().ok_or("the repository's path is not UTF-8")?;
    // Together with the program, so that its libraries have the same features and are not built
    // again. `--test "*"` would fail for tests of features that are off, such as the live tests.
    let packages = [
        "--release",
        "--package",
        "portcullis",
        "--package",
        "portcullis-cli",
        "--package",
        "portcullis-cpu",
        "--tests",
    ];
    let packages = [&packages[..], &crate::FEATURES].concat();
    let built = suite.build("build in release", &packages);
    let devices: Vec<&str> = options.require.iter().map(String::as_str).filter(|n| DEVICES.contains(n)).collect();
    let devices = devices.join(",");
    let mut selftest = vec!["selftest", "--json", file];
    if !devices.is_empty() {
        selftest.extend(["--require", &devices]);
    }
    suite.program("selftest", &built, &selftest, &[]);
    suite.tests("tests in release", suite.suites_of(&built), None);
    let readme = std::fs::read_to_string(root.join("README.md")).map_err(|e| format!("cannot read README.md: {e}"))?;
    let command =
        first_command(&readme).ok_or("README.md does not begin with `cargo run --release ... --write FILE`")?;
    suite.step("the README's first command", &command.iter().map(String::as_str).collect::<Vec<_>>(), &[]);

    let mut records = Records::read(&records);
    records.add_selftest(&report);
    suite.tally.skipped += records.skipped();
    records.print();
    suite.print_times();
    for (step, failures) in &suite.failed {
        print!("\nfailed: {step}\n{failures}");
    }
    println!("\n{}", suite.tally);
    if suite.tally.failed == 0 { Ok(()) } else { Err("not everything passed".into()) }
}

/// Returns the environment variables of every step: what is required, and where tools are.
fn environment(options: &Options, records: &Path) -> Result<Vec<(String, String)>, String> {
    let folder = records.to_str().ok_or("the repository's path is not UTF-8")?;
    let mut environment = vec![
        ("PORTCULLIS_REQUIRE".to_owned(), options.require.join(",")),
        ("PORTCULLIS_TEST_RECORDS".to_owned(), folder.to_owned()),
    ];
    match Nvidia::fetch() {
        Ok(Nvidia { nvrtc, ptxas }) => {
            environment.push(("PORTCULLIS_NVRTC".into(), nvrtc.to_string_lossy().into_owned()));
            environment.push(("PORTCULLIS_PTXAS".into(), ptxas.to_string_lossy().into_owned()));
        }
        Err(reason) => println!("NVRTC and ptxas are unavailable: {reason}"),
    }
    if options.intel {
        let found = wheels::intel();
        environment.extend(found.map_err(|reason| format!("Intel's OpenCL is unavailable: {reason}"))?);
    }
    Ok(environment)
}

/// Returns cargo's arguments in the README's first command, with its output in target/.
fn first_command(readme: &str) -> Option<Vec<String>> {
    let command = readme.lines().find_map(|line| line.strip_prefix("    cargo "))?;
    let mut arguments: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    let output = arguments.iter().position(|argument| argument == "--write")? + 1;
    let name = arguments.get_mut(output)?;
    *name = format!("target/{name}");
    arguments.starts_with(&["run".into(), "--release".into()]).then_some(arguments)
}

/// Builds every published crate from its package.
pub fn package() -> Result<(), String> {
    let root = crate::root();
    let mut arguments = vec!["package", "--allow-dirty"];
    for package in PUBLISHED {
        arguments.extend(["--package", package]);
    }
    let status = crate::cargo(&root).args(arguments).status().map_err(|e| format!("cargo does not start: {e}"))?;
    if status.success() { Ok(()) } else { Err("a crate does not build from its package".into()) }
}

struct Suite<'a> {
    root: &'a Path,
    /// Environment variables of every step.
    environment: Vec<(String, String)>,
    tally: Tally,
    /// Steps that failed, with the output of failed tests.
    failed: Vec<(String, Failures)>,
    /// Duration of each step.
    times: Vec<(String, Duration)>,
}

impl Suite<'_> {
    /// Runs cargo once; the step passes if cargo succeeds.
    fn step(&mut self, name: &str, arguments: &[&str], environment: &[(&str, &str)]) {
        println!("\n== {name}: cargo {}", arguments.join(" "));
        let started = Instant::now();
        let mut command = self.cargo();
        command.args(arguments).envs(environment.iter().copied());
        // `cargo package --list` prints many files; only its exit status matters.
        if arguments.contains(&"--list") {
            command.stdout(Stdio::null());
        }
        let passed = command.status().is_ok_and(|s| s.success());
        self.end(name, Tally::one(passed), started);
    }

    /// Runs Clippy on all targets of some packages, with warnings as errors.
    fn lints(&mut self, name: &str, what: &[&str]) {
        self.step(name, &[&["clippy", "--all-targets"], what, &["--", "-D", "warnings"]].concat(), &[]);
    }

    /// Runs suites side by side and counts their tests; beside them the tests in the documentation
    /// of the packages that these arguments of cargo name.
    fn tests(&mut self, name: &str, mut suites: Vec<suites::Suite>, documentation: Option<&[&str]>) {
        println!("\n== {name}");
        let started = Instant::now();
        if let Some(what) = documentation {
            let mut command = self.cargo();
            command.args(["test", "--doc", "--no-fail-fast"]).args(what);
            suites.push(suites::Suite { name: "documentation".into(), command, uses_network: false, is_slow: false });
        }
        self.end(name, suites::run(suites, std::io::stdout()), started);
    }

    /// Returns all suites built.
    fn suites_of(&self, built: &[Executable]) -> Vec<suites::Suite> {
        let tests = built.iter().filter(|executable| executable.is_test);
        tests.map(|test| suites::Suite::of_executable(test, self.command(test, &[]))).collect()
    }

    /// Builds the tests that `cargo test` runs with these arguments, and the program, for use in
    /// other steps.
    fn build(&mut self, name: &str, what: &[&str]) -> Vec<Executable> {
        let arguments = [&["test", "--no-run"], what].concat();
        println!("\n== {name}: cargo {}", arguments.join(" "));
        let started = Instant::now();
        let built = executables::built(self.root, &arguments).map_err(|reason| println!("{reason}"));
        self.end(name, Tally::one(built.is_ok()), started);
        built.unwrap_or_default()
    }

    /// Runs the program already built; the step passes if it succeeds.
    fn program(&mut self, name: &str, built: &[Executable], arguments: &[&str], environment: &[(&str, &str)]) {
        println!("\n== {name}: portcullis {}", arguments.join(" "));
        let started = Instant::now();
        let program = built.iter().find(|it| !it.is_test && it.kind == "bin" && it.name == "portcullis");
        let passed = program.is_some_and(|program| {
            self.command(program, environment).args(arguments).status().is_ok_and(|status| status.success())
        });
        self.end(name, Tally::one(passed), started);
    }

    /// Returns the command that runs an executable as cargo would.
    fn command(&self, built: &Executable, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(&built.path);
        command.current_dir(if built.is_test { &built.folder } else { self.root }).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).envs(environment.iter().copied());
        command
    }

    fn cargo(&self) -> Command {
        let mut command = crate::cargo(self.root);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn end(&mut self, name: &str, counted: impl Into<TestCounts>, started: Instant) {
        let counted = counted.into();
        self.times.push((name.into(), started.elapsed()));
        if counted.tally.failed > 0 {
            println!("== {name}: failed");
            self.failed.push((name.into(), counted.failures));
        }
        self.tally += counted.tally;
    }

    fn print_times(&self) {
        println!("\nseconds  step");
        for (name, time) in &self.times {
            println!("{:>7.1}  {name}", time.as_secs_f32());
        }
        println!("{:>7.1}  all", self.times.iter().map(|(_, time)| time.as_secs_f32()).sum::<f32>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(folder: &Path) -> String {
        std::fs::read_to_string(folder.join("Cargo.toml")).unwrap()
    }

    /// Returns the names and manifests of the workspace's members.
    fn members() -> Vec<(String, String)> {
        let root = crate::root();
        let workspace = manifest(&root);
        let members = workspace.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
        let members = members.trim_end_matches(']').split(',').map(|member| root.join(member.trim().trim_matches('"')));
        let named = |text: String| {
            let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            (name.to_owned(), text)
        };
        members.chain([root.clone()]).map(|folder| named(manifest(&folder))).collect()
    }

    /// A requirement that nothing requires could be missing forever without notice.
    #[test]
    fn every_requirement_is_listed_in_the_usage_and_required_by_ci() {
        let root = crate::root();
        let text = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
        let (script, workflow) = (text(".ci/run"), text(".github/workflows/ci.yml"));
        let list = |text: &str, before: &str, after: &[char]| {
            text.split_once(before)
                .unwrap()
                .1
                .split(after)
                .next()
                .unwrap()
                .split(',')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let required: Vec<String> =
            [list(&script, "--require \"", &['$']), list(&workflow, "run: .ci/run ", &['\n'])].concat();
        for name in DEVICES.iter().chain(&TOOLS) {
            let is_listed = |separator: char| crate::USAGE.contains(&format!("{name}{separator}"));
            assert!(is_listed(',') || is_listed(')'), "{name}: {}", crate::USAGE);
            // CI has no NVIDIA GPU, only the emulated one.
            assert_eq!(required.contains(&(*name).to_owned()), *name != "cuda", "{name}: {required:?}");
        }
        let all: Option<Options> = Options::parse(&["--require", &required.join(",")]);
        assert!(all.is_some(), "{required:?}");
    }

    #[test]
    fn every_crate_without_publish_false_is_listed_as_published() {
        for (name, text) in members() {
            assert_eq!(PUBLISHED.contains(&name.as_str()), !text.contains("publish = false"), "{name}");
        }
    }

    /// A program with only the CPU back end compiles fewer than 90 crates, ours included, and none
    /// that only the command line needs.
    #[test]
    fn the_library_for_the_cpu_needs_few_crates() {
        let tree = ["tree", "--offline", "-p", "portcullis", "--no-default-features", "--features", "cpu"];
        let tree = crate::cargo(&crate::root()).args(tree).args(["-e", "normal", "--prefix", "none"]).output().unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let text = String::from_utf8(tree.stdout).unwrap();
        let name_and_version = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let crates: std::collections::BTreeSet<String> =
            text.lines().filter(|line| !line.is_empty()).map(name_and_version).collect();
        assert!(crates.iter().any(|name| name.starts_with("cranelift-jit ")), "{crates:?}");
        assert!(crates.len() < 90, "{}: {crates:?}", crates.len());
        for name in ["clap", "clap_complete", "indicatif", "comfy-table", "ctrlc", "maud", "plotters"] {
            assert!(!crates.iter().any(|known| known.starts_with(&format!("{name} "))), "{name}");
        }
    }

    #[test]
    fn every_member_has_an_opt_level_for_tests() {
        let workspace = manifest(&crate::root());
        for (name, _) in members() {
            let start = format!("{name} = {{ opt-level = ");
            let is_named = workspace.lines().any(|line| line.starts_with(&start));
            assert!(is_named, "profile.dev.package does not name {name}, so it is optimised like a dependency");
        }
    }

    #[test]
    fn the_readmes_first_command_is_run_in_release_and_writes_into_target() {
        let command = first_command(include_str!("../../../README.md")).unwrap();
        assert_eq!(command[..4], ["run", "--release", "--", "run"]);
        assert_eq!(command[command.len() - 2..], ["--write", "target/passed.pcap"]);
        assert_eq!(first_command("    cargo run -- run f.wgsl --write o.pcap"), None);
        assert_eq!(first_command("cargo run --release"), None);
    }
}
