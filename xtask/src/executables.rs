//! Programs that cargo builds, found by what it says about them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

/// A program, or the tests of something.
#[derive(Debug, PartialEq, Eq)]
pub struct Executable {
    /// The folder of its crate, in which cargo runs tests.
    pub folder: PathBuf,
    /// Kind of target: `bin`, `bench`, `test`, or `lib`, which has unit tests.
    pub kind: String,
    /// The target's name.
    pub name: String,
    /// Whether the executable runs the target's tests.
    pub is_test: bool,
    /// Where it lies.
    pub path: PathBuf,
}

/// What a call of cargo builds; what is built already is named as well.
///
/// # Errors
/// In words, when it does not build.
pub fn built(root: &Path, arguments: &[&str]) -> Result<Vec<Executable>, String> {
    let mut command = crate::cargo(root);
    command.args(arguments).arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cargo does not start: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(Executable::from_message).collect()),
        false => Err(format!("cargo {} ends with {}", arguments.join(" "), output.status)),
    }
}

impl Executable {
    /// What a line tells of one (the Cargo Book, "External tools", "Artifact messages"); `None`
    /// where it is about something else.
    fn from_message(line: &str) -> Option<Executable> {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Executable {
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
            kind: text(&message["target"]["kind"][0])?,
            name: text(&message["target"]["name"])?,
            is_test: message["profile"]["test"].as_bool()?,
            path: message["executable"].as_str()?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_programs_are_taken() {
        let artifact = r#"{"reason":"compiler-artifact","package_id":"path+file:///p/io#portcullis-io@0.1.0",
            "manifest_path":"/p/io/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"synth","src_path":"/p/io/tests/synth.rs"},
            "profile":{"opt_level":"1","test":true},"features":[],"filenames":["/p/target/debug/deps/synth-1f"],"executable":EXECUTABLE,"fresh":true}"#
            .replace('\n', "");
        let synth = Executable {
            folder: "/p/io".into(),
            kind: "test".into(),
            name: "synth".into(),
            is_test: true,
            path: "/p/target/debug/deps/synth-1f".into(),
        };
        let with = |executable: &str| Executable::from_message(&artifact.replace("EXECUTABLE", executable));
        assert_eq!(with("\"/p/target/debug/deps/synth-1f\""), Some(synth));
        assert_eq!(with("null"), None, "a library");
        assert_eq!(Executable::from_message(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(Executable::from_message("warning: something"), None);
    }
}
