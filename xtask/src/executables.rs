//! Programs that cargo builds, found through its JSON messages.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

/// An executable that cargo built: a program, or the tests of a target.
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
    /// Path of the executable.
    pub path: PathBuf,
}

/// Runs cargo and returns the executables that it builds, including those that are up to date.
///
/// # Errors
/// Cargo's exit status if the build fails; cargo prints the errors itself.
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
    /// Parses one line of cargo's output (the Cargo Book, "External tools", "Artifact messages");
    /// `None` for any other message.
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
    fn only_artifact_messages_with_an_executable_are_taken() {
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
