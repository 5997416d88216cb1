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

fn io_error(file: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", file.display())
}
