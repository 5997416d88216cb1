//! `cargo xtask test`: one command for everything that a change must pass.

mod records;
mod system;
mod tally;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use records::Records;
use tally::Tally;

/// Feature sets other than the default one; these are only checked, not built and run.
const FEATURE_SETS: [&[&str]; 3] = [
    &["--no-default-features"],
    &["--no-default-features", "--features", "cpu"],
    &["--no-default-features", "--features", "wgpu"],
];

/// Crates that are published.
const PUBLISHED: [&str; 8] = [
    "portcullis-core",
    "portcullis-c-writer",
    "portcullis-cache",
    "portcullis-cpu",
    "portcullis-wgpu",
    "portcullis-opencl",
    "portcullis-io",
    "portcullis",
];

/// Runs everything, prints a summary, and says whether all is well. `require` names devices, with
/// commas between, that must be there.
pub fn run(require: Option<&str>) -> Result<(), String> {
    let root = crate::root();
    system::prepare();
    let records = root.join("target/test-records");
    let _ = std::fs::remove_dir_all(&records);
    std::fs::create_dir_all(&records).map_err(|e| format!("cannot make {}: {e}", records.display()))?;

    let mut suite = Suite { root: &root, tally: Tally::default(), failed: Vec::new() };
    suite.step("format", &["fmt", "--all", "--check"], &[]);
    suite.step("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]);
    for features in FEATURE_SETS {
        let arguments: Vec<&str> =
            ["check", "--package", "portcullis", "--all-targets"].iter().chain(features).copied().collect();
        suite.step(&format!("check {}", features.join(" ")), &arguments, &[]);
    }
    suite.step(
        "documentation",
        &["doc", "--workspace", "--no-deps", "--keep-going"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    );
    for package in PUBLISHED {
        let arguments = ["package", "--list", "--allow-dirty", "--quiet", "--package", package];
        suite.step(&format!("package list of {package}"), &arguments, &[]);
    }
    let required = require.unwrap_or_default();
    let folder = records.to_str().ok_or("the repository's path is not UTF-8")?;
    let environment = [("PORTCULLIS_REQUIRE", required), ("PORTCULLIS_TEST_RECORDS", folder)];
    suite.tests("tests", &["--workspace"], &environment);

    // As it is built for use.
    let report = root.join("target/selftest.json");
    let _ = std::fs::remove_file(&report);
    let file = report.to_str().ok_or("the repository's path is not UTF-8")?;
    let mut selftest = vec!["run", "--release", "--quiet", "--package", "portcullis", "--", "selftest", "--json", file];
    if !required.is_empty() {
        selftest.extend(["--require", required]);
    }
    suite.step("selftest", &selftest, &[]);
    let readme = std::fs::read_to_string(root.join("README.md")).map_err(|e| format!("cannot read README.md: {e}"))?;
    let command =
        first_command(&readme).ok_or("README.md does not begin with `cargo run --release ... --write FILE`")?;
    suite.step("the README's first command", &command.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    // With the whole program, so that the libraries beneath have the same features and are not built again.
    let packages = ["--release", "--package", "portcullis", "--package", "portcullis-cpu", "--lib", "--test", "*"];
    suite.tests("tests in release", &packages, &[("PORTCULLIS_REQUIRE", required)]);

    let mut records = Records::read(&records);
    records.add_selftest(&report);
    suite.tally.skipped += records.skipped();
    records.print();
    if !suite.failed.is_empty() {
        println!("\nfailed: {}", suite.failed.join(", "));
    }
    println!("\n{}", suite.tally);
    if suite.tally.failed == 0 { Ok(()) } else { Err("not everything passed".into()) }
}

/// What the README's first command gives cargo, its output put into target/.
fn first_command(readme: &str) -> Option<Vec<String>> {
    let command = readme.lines().find_map(|line| line.strip_prefix("    cargo "))?;
    let mut arguments: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    let output = arguments.iter().position(|argument| argument == "--write")? + 1;
    let name = arguments.get_mut(output)?;
    *name = format!("target/{name}");
    arguments.starts_with(&["run".into(), "--release".into()]).then_some(arguments)
}

/// Builds every published crate from its package, one against the other.
pub fn package() -> Result<(), String> {
    let root = crate::root();
    let mut arguments = vec!["package", "--allow-dirty"];
    for package in PUBLISHED {
        arguments.extend(["--package", package]);
    }
    let status = cargo(&root).args(arguments).status().map_err(|e| format!("cargo does not start: {e}"))?;
    if status.success() { Ok(()) } else { Err("a package does not build by itself".into()) }
}

struct Suite<'a> {
    root: &'a Path,
    tally: Tally,
    /// Names of the steps that failed.
    failed: Vec<String>,
}

impl Suite<'_> {
    /// One call of cargo that must succeed.
    fn step(&mut self, name: &str, arguments: &[&str], environment: &[(&str, &str)]) {
        println!("\n== {name}: cargo {}", arguments.join(" "));
        let mut command = cargo(self.root);
        command.args(arguments).envs(environment.iter().copied());
        // A list of files is of no interest; that there is one is.
        if arguments.contains(&"--list") {
            command.stdout(Stdio::null());
        }
        let passed = command.status().is_ok_and(|s| s.success());
        self.end(name, Tally::one(passed));
    }

    /// `cargo test`, its tests counted one by one.
    fn tests(&mut self, name: &str, what: &[&str], environment: &[(&str, &str)]) {
        let arguments = [&["test", "--no-fail-fast"], what].concat();
        println!("\n== {name}: cargo {}", arguments.join(" "));
        let mut command = cargo(self.root);
        command.args(arguments).envs(environment.iter().copied()).stdout(Stdio::piped());
        let mut tally = Tally::default();
        let passed = command.spawn().is_ok_and(|mut child| {
            let lines = BufReader::new(child.stdout.take().expect("it is piped"));
            let mut out = std::io::stdout();
            for line in lines.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                // Nobody listening is no reason to stop.
                let _ = writeln!(out, "{line}");
                tally += Tally::from_line(&line).unwrap_or_default();
            }
            child.wait().is_ok_and(|s| s.success())
        });
        // A test program that dies, or does not compile, prints no result.
        if !passed && tally.failed == 0 {
            tally.failed = 1;
        }
        self.end(name, tally);
    }

    fn end(&mut self, name: &str, tally: Tally) {
        if tally.failed > 0 {
            println!("== {name}: failed");
            self.failed.push(name.into());
        }
        self.tally += tally;
    }
}

/// The cargo that runs this, in the repository's root, with nothing to read.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_that_may_be_published_is() {
        let root = crate::root();
        let manifest = |folder: &Path| std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let workspace = manifest(&root);
        let members = workspace.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
        let members = members.trim_end_matches(']').split(',').map(|member| root.join(member.trim().trim_matches('"')));
        for folder in members {
            let text = manifest(&folder);
            let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            assert_eq!(PUBLISHED.contains(&name), !text.contains("publish = false"), "{name}");
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
