//! The program `portcullis`: one module per subcommand. Doc comments of arguments are their help.

mod bench;
mod calibrate;
mod check;
mod completions;
mod ctl;
mod demo;
mod device_choice;
mod devices;
mod exit;
mod explain;
mod failure;
mod filter;
mod filters;
mod header;
mod l2fwd;
mod man;
mod out;
mod progress_bar;
mod run;
mod selftest;
mod startup;

use std::panic::PanicHookInfo;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

/// Run packet filters on the CPU or a GPU, a capture in, verdicts out: WGSL, OpenCL C, XDP objects,
/// tcpdump expressions.
///
/// Run without a command to list devices and try a sample filter on each.
#[derive(Debug, Parser)]
#[command(name = "portcullis", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 the filter or the input is wrong or a device failed, 2 wrong usage, \
130 interrupted, 141 the reader closed the pipe (SIGPIPE).")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Check(check::Args),
    Filters(filters::Args),
    Ctl(ctl::Args),
    L2fwd(Box<l2fwd::Args>),
    Bench(Box<bench::Args>),
    Devices(devices::Args),
    Calibrate(calibrate::Args),
    Selftest(selftest::Args),
    Header(header::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Parses the arguments, runs the command and reports its failure.
fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_panic));
    startup::ignore_sigxfsz();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let message = with_advice_for_tcpdump_users(error);
            // Help and version are such errors too, and go to standard output.
            let is_help = !message.use_stderr();
            return match message.print().map_err(|error| out::stdout_failed(&error)).and(out::check_stdout()) {
                Err(failure) if is_help => out::report_failure(failure).into(),
                _ => ExitCode::from(message.exit_code() as u8),
            };
        }
    };
    let result = std::panic::catch_unwind(|| match cli.command {
        None => demo::run(),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Check(args)) => check::run(args),
        Some(Command::Filters(args)) => filters::run(&args),
        Some(Command::Ctl(args)) => ctl::run(&args),
        Some(Command::L2fwd(args)) => l2fwd::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Devices(args)) => devices::run(args),
        Some(Command::Calibrate(args)) => calibrate::run(&args),
        Some(Command::Selftest(args)) => selftest::run(args),
        Some(Command::Header(args)) => header::run(args),
        Some(Command::Completions(args)) => completions::run(args),
        Some(Command::Man(args)) => man::run(&args),
    });
    exit::finish(match result {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => out::report_failure(failure),
        // The panic hook has reported it.
        Err(_) => failure::FAILED,
    })
}

/// Adds the next step to the error for an option that tcpdump has and `run` has not.
fn with_advice_for_tcpdump_users(mut error: clap::Error) -> clap::Error {
    let is_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let advice = match option.as_str() {
        _ if !is_run || error.kind() != ErrorKind::UnknownArgument => return error,
        "-A" | "-e" | "-q" | "-S" | "-t" | "-v" | "-x" | "-X" | "-#" => format!(
            "portcullis prints no packets: write those that pass to tcpdump, `portcullis run … -w - | tcpdump {option} -r -`"
        ),
        "-d" => "`portcullis check --emit bpf EXPRESSION` prints the instructions of an expression".into(),
        "-D" => "`ip link` lists the interfaces".into(),
        "-F" => "give the expression itself: `\"$(cat FILE)\"`".into(),
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    error
}

/// Reports a panic in one line. It is a fault of this program, never the user's.
fn report_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
    let what = panic.payload_as_str().unwrap_or("no message").lines().next().unwrap_or_default();
    out::warn(&format!("internal error{place}, please report it: {what}"));
}
