//! The bundle's own program, `gpu-tool`: what `gpu-check.sh` needs besides the programs that it
//! measures.

mod bars;
mod routes;
mod suites;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: gpu-tool routes FOLDER COUNT    write the map files of router_v4 with that many prefixes
       gpu-tool suites PROGRAM RESULT  run the suites of a test program, and write their results as JSON
       gpu-tool json FILE              fail unless the file is one JSON value
       gpu-tool bars REPORT            compare a report of gpu-check.sh with the bars, and add them to it
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["routes", folder, count] if count.parse::<usize>().is_ok() => {
            routes::write(Path::new(folder), count.parse().unwrap_or_default())
        }
        ["suites", program, result] => suites::run(Path::new(program), Path::new(result)),
        ["json", file] => check_json(Path::new(file)),
        ["bars", report] => bars::add(Path::new(report)).map(|table| print!("{table}")),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("gpu-tool: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Checks that a file holds one JSON value.
fn check_json(file: &Path) -> Result<(), String> {
    let text = std::fs::read(file).map_err(|error| io_error(file, &error))?;
    let value: Result<serde_json::Value, _> = serde_json::from_slice(&text);
    value.map(drop).map_err(|error| format!("{}: {error}", file.display()))
}

fn io_error(file: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_json_files_are_taken() {
        let file = std::env::temp_dir().join(format!("portcullis-json-{}", std::process::id()));
        for (text, is_whole) in [("{\"a\": [1, 2]}\n", true), ("{\"half", false), ("", false), ("1 2", false)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(check_json(&file).is_ok(), is_whole, "{text}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(check_json(&file).unwrap_err().contains("No such file"));
    }
}
